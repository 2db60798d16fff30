import math
import subprocess
import sys

import pytest
import torch

import asrl.sampling
from asrl.sampling import draw, filtered_distribution, keyed_uniforms, sampling_logps, stable_hash

ALL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
LAST = 1 - 2**-53  # the largest number that a generator of uniforms returns


def logits_of(*probs):
    return torch.tensor([probs], dtype=torch.float64).log()


def uniforms(*values):
    return torch.tensor(values, dtype=torch.float64)


def drawn_at(logits, *values, **options):
    rows = logits.expand(len(values), -1)
    return draw(rows, uniforms(*values), **{**ALL, **options}).tolist()


def test_hash_is_fixed_for_all_time():
    # blake2b of b"s1:ai3:-12" with an 8-byte digest, big-endian; from Python's hashlib, by hand.
    assert stable_hash("a", -12) == 0xD4F53A01E9E63C9A


def test_hash_tells_apart_types_and_cuts():
    parts = [
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        ("1",),
        (1,),
        (1, 1),
        (11,),
        ("1:", "1"),
        ("", "x"),
        ("x", ""),
        (),
    ]
    assert len({stable_hash(*part) for part in parts}) == len(parts)


def test_hash_is_the_same_in_another_process():
    code = "from asrl.sampling import stable_hash; print(stable_hash('BAC009S0764W0121', 3, '你好'))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(printed) == stable_hash("BAC009S0764W0121", 3, "你好")


def test_first_uniforms_do_not_depend_on_how_many_are_asked_for():
    key = {"seed": 7, "epoch": 2, "key": "utt1", "replica": 3}
    assert keyed_uniforms(1000, **key)[:5].tolist() == keyed_uniforms(5, **key).tolist()
    assert len(keyed_uniforms(0, **key)) == 0


def test_each_part_of_the_key_changes_the_uniforms():
    key = {"seed": 7, "epoch": 2, "key": "utt1", "replica": 3}
    changed = [key, *({**key, name: value} for name, value in
                      [("seed", 8), ("epoch", 3), ("key", "utt2"), ("replica", 4)])]  # fmt: skip
    # Seed 2 and epoch 7 instead of 7 and 2: a sum or an xor of the parts would not tell.
    changed.append({**key, "seed": 2, "epoch": 7})
    assert len({keyed_uniforms(1, **each).item() for each in changed}) == len(changed)


def test_uniforms_of_neighbouring_replicas_are_uniform_and_unrelated():
    numbers = torch.stack([keyed_uniforms(2000, seed=0, epoch=0, key="utt", replica=g) for g in range(8)])
    assert (numbers >= 0).all()
    assert (numbers < 1).all()
    # 16,000 numbers in 10 cells of 1,600: chi-square with 9 degrees of freedom, 99.9 % below 27.9.
    counts = torch.histc(numbers.float(), 10, 0, 1)
    assert ((counts - 1600) ** 2 / 1600).sum() < 27.9
    # Correlations of 2,000 pairs have standard deviation 0.022.
    correlation = torch.corrcoef(numbers) - torch.eye(8)
    assert correlation.abs().max() < 0.1


def test_cdf_runs_in_order_of_token_ids():
    # Ids 0, 1, 2 with 0.2, 0.5, 0.3: boundaries at 0.2 and 0.7.
    logits = logits_of(0.2, 0.5, 0.3)
    assert drawn_at(logits, 0.0, 0.199, 0.201, 0.699, 0.701, LAST) == [0, 0, 1, 1, 2, 2]


def test_rounding_that_swaps_two_ranks_hardly_moves_a_draw():
    # 0.3 and 0.3 + 1e-9 in either order: in order of probability the two boundaries would trade places.
    for logits in (logits_of(0.3, 0.3 + 1e-9, 0.4 - 1e-9), logits_of(0.3 + 1e-9, 0.3, 0.4 - 1e-9)):
        assert drawn_at(logits, 0.2999, 0.3001, 0.5999, 0.6001) == [0, 1, 1, 2]


def test_temperature_divides_the_logits():
    # Odds 1:3 are 1:9 at temperature 1/2 and 1:sqrt(3) at temperature 2.
    logits = logits_of(0.25, 0.75)
    cold = filtered_distribution(logits, temperature=0.5, top_k=0, top_p=1.0).probs
    torch.testing.assert_close(cold, torch.tensor([[0.1, 0.9]], dtype=torch.float64), atol=1e-12, rtol=0)
    warm = filtered_distribution(logits, temperature=2.0, top_k=0, top_p=1.0).probs
    assert warm[0, 1] / warm[0, 0] == pytest.approx(math.sqrt(3), abs=1e-12)


def test_temperature_zero_takes_the_lowest_id_of_the_largest_logits():
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0], [2.0, 2.0, 2.0, 1.0], [0.0, 1.0, 5.0, 6.0]])
    assert draw(logits, uniforms(LAST, 0.5, 0.0), temperature=0.0, top_k=2, top_p=0.5).tolist() == [1, 0, 3]


def test_top_k_keeps_the_most_probable_and_renormalises():
    # The two largest of 0.1, 0.4, 0.2, 0.3 are ids 1 and 3: 4/7 and 3/7.
    kept = filtered_distribution(logits_of(0.1, 0.4, 0.2, 0.3), temperature=1.0, top_k=2, top_p=1.0)
    assert kept.tokens.tolist() == [[1, 3]]
    torch.testing.assert_close(kept.probs, uniforms(4 / 7, 3 / 7)[None], atol=1e-12, rtol=0)


def test_top_k_breaks_ties_towards_the_lower_id():
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0, 5.0], [4.0, 3.0, 2.0, 1.0, 0.0]])
    kept = filtered_distribution(logits, temperature=1.0, top_k=3, top_p=1.0)
    assert kept.tokens.tolist() == [[0, 1, 3], [0, 1, 4], [0, 1, 2]]


def test_top_k_ties_are_found_in_a_large_vocabulary():
    # topk itself returns arbitrary ids here: 2,000 equal values, of which the first 50 are wanted.
    logits = torch.zeros(1, 4000)
    logits[0, 2000:] = 1.0
    kept = filtered_distribution(logits, temperature=1.0, top_k=50, top_p=1.0)
    assert kept.tokens.tolist() == [list(range(2000, 2050))]


@pytest.mark.parametrize("top_k", [0, 3, 4, 100])
def test_top_k_that_does_not_bind_keeps_everything(top_k):
    kept = filtered_distribution(logits_of(0.5, 0.3, 0.2), temperature=1.0, top_k=top_k, top_p=1.0)
    torch.testing.assert_close(kept.probs, uniforms(0.5, 0.3, 0.2)[None], atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (0.001, [0, 1, 0, 0]),  # never empty
        (0.499, [0, 1, 0, 0]),  # 0.5 alone reaches 0.499
        (0.501, [0, 5 / 7, 2 / 7, 0]),  # 0.5 does not reach 0.501: the token that crosses is kept
        (0.699, [0, 5 / 7, 2 / 7, 0]),
        (0.701, [0.18 / 0.88, 0.5 / 0.88, 0.2 / 0.88, 0]),
        (0.881, [0.18, 0.5, 0.2, 0.12]),
        (1.0, [0.18, 0.5, 0.2, 0.12]),
    ],
)
def test_top_p_keeps_the_fewest_tokens_that_reach_the_mass(top_p, expected):
    kept = filtered_distribution(logits_of(0.18, 0.5, 0.2, 0.12), temperature=1.0, top_k=0, top_p=top_p)
    torch.testing.assert_close(kept.probs, uniforms(*expected)[None], atol=1e-12, rtol=0)


def test_top_p_reached_exactly_keeps_no_more():
    # Four logits 0: 1/4 each, exactly; two reach one half, and ties go to the lower ids.
    kept = filtered_distribution(torch.zeros(1, 4), temperature=1.0, top_k=0, top_p=0.5)
    assert kept.probs.tolist() == [[0.5, 0.5, 0.0, 0.0]]


def test_temperature_comes_before_top_p_and_top_p_after_top_k():
    # At temperature 1/2, 0.5 0.3 0.2 becomes 25 9 4 / 38: 25/38 = 0.66 reaches 0.6 alone.
    cold = filtered_distribution(logits_of(0.5, 0.3, 0.2), temperature=0.5, top_k=0, top_p=0.6)
    assert cold.probs.tolist() == [[1.0, 0.0, 0.0]]
    # Among the top two, 0.5 is 0.625 of the mass, which reaches 0.6; among all three it would not.
    few = filtered_distribution(logits_of(0.5, 0.3, 0.2), temperature=1.0, top_k=2, top_p=0.6)
    assert few.probs.tolist() == [[1.0, 0.0]]


def test_top_p_of_one_keeps_the_rarest_token():
    # 1 - 1e-17 rounds to 1: the running sum reaches 1 before the last token.
    logits = torch.tensor([[0.0, -math.inf, math.log(1e-17)]], dtype=torch.float64)
    assert filtered_distribution(logits, **ALL).probs[0, 2] > 0


@pytest.mark.parametrize("u", [0.0, 5e-324, 2**-53, 0.5, 1 - 2**-52, LAST])
@pytest.mark.parametrize("top_k", [0, 5])
@pytest.mark.parametrize("top_p", [0.9, 1.0])
def test_no_token_of_zero_probability_is_ever_drawn(u, top_k, top_p):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(400, 12, generator=generator) * 3
    # Forbidden at both ends of the CDF and inside it; row 0 allows a single token.
    logits[:, [0, 1, 6, 10, 11]] = -math.inf
    logits[0, :] = -math.inf
    logits[0, 4] = -3.0
    kept = filtered_distribution(logits, temperature=0.7, top_k=top_k, top_p=top_p)
    tokens = draw(
        logits, torch.full((400,), u, dtype=torch.float64), temperature=0.7, top_k=top_k, top_p=top_p
    )
    probs = torch.zeros(400, 12, dtype=torch.float64).scatter_(1, kept.tokens, kept.probs)
    assert (probs.gather(1, tokens[:, None]) > 0).all()
    assert tokens[0] == 4


def test_draw_survives_a_cdf_that_rounds_below_or_above_one():
    # 1,000 equal probabilities add up to 1 + 7e-16 or so: the last uniform number still draws the last token.
    logits = torch.zeros(1, 1001)
    logits[0, 1000] = -math.inf
    assert drawn_at(logits, 0.0, LAST) == [0, 999]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.6}, {"top_k": 5}, {"top_k": 8, "top_p": 0.8}])
def test_frequencies_follow_the_distribution(options):
    # 40,000 draws from 20 tokens; expected frequencies from an independent, dense computation.
    options = {**ALL, **options}
    logits = torch.randn(20, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 1.5
    scaled = logits / options["temperature"]
    ranked = sorted(range(20), key=lambda token: -scaled[token].item())[: options["top_k"] or 20]
    mass = {token: math.exp(scaled[token].item()) for token in ranked}
    total, expected, reached = sum(mass.values()), {}, 0.0
    for token in ranked:
        if reached < options["top_p"]:
            expected[token] = mass[token]
        reached += mass[token] / total
    u = keyed_uniforms(40_000, seed=1, epoch=0, key="chi-square", replica=0)
    counts = draw(logits.expand(40_000, 20), u, **options).bincount(minlength=20).tolist()
    assert {token for token in range(20) if counts[token]} <= set(expected)
    kept = sum(expected.values())
    chi_square = sum((counts[t] - 40_000 * m / kept) ** 2 / (40_000 * m / kept) for t, m in expected.items())
    # Mean df, variance 2 df: five standard deviations above the mean, for a fixed seed.
    freedom = len(expected) - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)


def test_a_row_draws_the_same_alone_as_in_a_batch_cut_into_parts(monkeypatch):
    logits = torch.randn(7, 30, generator=torch.Generator().manual_seed(2))
    u = torch.rand(7, dtype=torch.float64)
    options = {"temperature": 1.0, "top_k": 10, "top_p": 0.95}
    together = draw(logits, u, **options).tolist()
    assert together == [draw(logits[i : i + 1], u[i : i + 1], **options).item() for i in range(7)]
    monkeypatch.setattr(asrl.sampling, "MAX_LOGITS_AT_ONCE", 65)
    assert draw(logits, u, **options).tolist() == together


def test_half_precision_logits_and_no_rows_are_drawn_from():
    assert drawn_at(torch.tensor([[0.0, 4.0]], dtype=torch.bfloat16), 0.0, 0.5) == [0, 1]
    assert draw(torch.zeros(0, 5), uniforms(), **ALL).tolist() == []


def test_sampling_logps_know_temperature_but_no_filter():
    # Odds 1:3 at temperature 1/2 are 1:9.
    logits = logits_of(0.25, 0.75).float().expand(2, -1)
    tokens = torch.tensor([0, 1])
    logps = sampling_logps(logits, tokens, 0.5)
    torch.testing.assert_close(logps.exp(), torch.tensor([0.1, 0.9]), atol=1e-6, rtol=0)
    assert sampling_logps(logits.bfloat16(), tokens, 1.0).dtype == torch.float32
    # Greedy decoding reports the model's own log-probs.
    greedy = sampling_logps(logits, tokens, 0.0)
    torch.testing.assert_close(greedy.exp(), torch.tensor([0.25, 0.75]), atol=1e-6, rtol=0)
