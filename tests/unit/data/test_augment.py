"""SpecAugment: what is masked, how much at most, and what the masks depend on."""

import pytest
import torch

from asrl.data.augment import SpecAugment
from asrl.errors import UserError

NO_MASKS = {"num_time_masks": 0, "max_time_frames": 0, "num_frequency_masks": 0, "max_frequency_bins": 0}


def augment(**options):
    return SpecAugment(**NO_MASKS | options)


def masked(features):
    """Numbers of the frames and of the bins that are zero throughout, in order."""
    frames = (features == 0).all(dim=1).nonzero().flatten().tolist()
    bins = (features == 0).all(dim=0).nonzero().flatten().tolist()
    return frames, bins


def test_without_masks_the_features_are_unchanged():
    features = torch.randn(20, 80)
    assert torch.equal(augment(max_time_frames=9, max_frequency_bins=9)(features, epoch=0, key="a"), features)


@pytest.mark.parametrize("epoch", range(5))
def test_masks_are_whole_spans_and_the_rest_is_unchanged(epoch):
    features = torch.rand(100, 80) + 1
    before = features.clone()
    both = augment(num_time_masks=1, max_time_frames=10, num_frequency_masks=1, max_frequency_bins=8)
    result = both(features, epoch=epoch, key="a")
    assert torch.equal(features, before)  # a copy is masked
    frames, bins = masked(result)
    kept = torch.ones(100, 80, dtype=torch.bool)
    for number, span in enumerate((frames, bins)):
        if span:
            assert span == list(range(span[0], span[-1] + 1))
            kept.index_fill_(number, torch.tensor(span), False)
    assert torch.equal(result, torch.where(kept, features, 0.0))


def test_every_width_and_both_ends_occur():
    # Widths 0 to 2 of 10 frames, starts 0 to 10 - width: a draw gives a certain outcome with p >= 1/30.
    over_time = augment(num_time_masks=1, max_time_frames=2)
    spans = {tuple(masked(over_time(torch.ones(10, 3), epoch=epoch, key="a"))[0]) for epoch in range(300)}
    assert spans == {()} | {(t,) for t in range(10)} | {(t, t + 1) for t in range(9)}
    over_bins = augment(num_frequency_masks=1, max_frequency_bins=9)
    spans = {tuple(masked(over_bins(torch.ones(7, 2), epoch=epoch, key="a"))[1]) for epoch in range(100)}
    assert spans == {(), (0,), (1,), (0, 1)}  # no wider than there are bins


def test_a_time_mask_hides_at_most_a_fifth():
    widths = {
        len(masked(augment(num_time_masks=1, max_time_frames=50)(torch.ones(14, 3), epoch=e, key="a"))[0])
        for e in range(100)
    }
    assert widths == {0, 1, 2}  # 14 / 5 = 2.8


def test_masks_depend_on_seed_epoch_and_key_alone():
    def spans(seed=0, epoch=0, key="a"):
        options = {
            "num_time_masks": 2,
            "max_time_frames": 99,
            "num_frequency_masks": 2,
            "max_frequency_bins": 40,
        }
        torch.rand(1)  # moves the global random state on
        return masked(augment(**options, seed=seed)(torch.ones(500, 80), epoch=epoch, key=key))

    assert spans() == spans()
    assert spans() != spans(seed=1)
    assert spans() != spans(epoch=1)
    assert spans() != spans(key="b")


def test_negative_settings_are_refused():
    with pytest.raises(UserError) as caught:
        augment(max_time_frames=-1)
    assert str(caught.value) == (
        "augment.spec_augment.max_time_frames must be at least 0, got -1; 0 switches it off"
    )
