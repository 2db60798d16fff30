import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from asrl.data.dataset import SpeechDataset
from asrl.data.features import read_cmvn
from asrl.data.sampler import Row
from asrl.models.firered import load_firered
from asrl.optimization import build_optimizer
from asrl.sft import SupervisedModel, SupervisedTrainer, Transcripts, ctc_loss, encode_transcripts
from asrl.utterance import Utterance


@pytest.fixture
def model(golden):
    return load_firered(golden / "FireRedASR-LLM-tiny", lora_start="none", train_decoder=True)


@pytest.fixture(scope="module")
def batch(golden):
    texts = {"synth": "好", "bacp": "你好，GPS。"}
    utterances = [Utterance(name, str(golden / "wav" / f"{name}.wav"), text) for name, text in texts.items()]
    dataset = SpeechDataset(utterances, cmvn=read_cmvn(golden / "FireRedASR-LLM-tiny" / "cmvn.ark"))
    return dataset.collate([Row(index, 0, index, 0) for index in range(2)])


def test_transcripts_are_cleaned_tokenised_ended_and_padded(model, batch):
    prompt = model.prompt
    transcripts = encode_transcripts(batch, prompt)
    rows = [prompt.encode_transcript("好"), prompt.encode_transcript("你好gps")]
    assert len(rows[0]) < len(rows[1])
    assert rows[0][-1] == rows[1][-1] == prompt.end_id
    padding = [prompt.pad_id] * (len(rows[1]) - len(rows[0]))
    assert transcripts.tokens.tolist() == [rows[0] + padding, rows[1]]
    assert transcripts.mask.tolist() == [
        [True] * len(rows[0]) + [False] * len(padding),
        [True] * len(rows[1]),
    ]


def align(logits, tokens, blank):
    """CTC by its definition: the probability of every path of the frames that collapses to the tokens."""
    probs = logits.softmax(-1)
    total = 0.0
    for path in itertools.product(range(logits.shape[1]), repeat=len(logits)):
        collapsed = [token for token, _ in itertools.groupby(path) if token != blank]
        if collapsed == tokens:
            total += math.prod(float(probs[frame, token]) for frame, token in enumerate(path))
    return -math.log(total)


def test_ctc_is_the_sum_over_alignments_per_token_without_the_end_token():
    # Three frames (the second utterance has two and a stray one), four tokens; 0 is the blank, 3 the end.
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    transcripts = Transcripts(
        torch.tensor([[1, 2, 3], [2, 3, 0]]), torch.tensor([[True, True, True], [True, True, False]])
    )
    loss = ctc_loss(logits, torch.tensor([3, 2]), transcripts, blank=0)
    expected = align(logits[0], [1, 2], 0) + align(logits[1, :2], [2], 0)
    # Three tokens in all.
    assert float(loss) == pytest.approx(expected / 3, abs=1e-6)


def test_ctc_of_uniform_logits_by_hand():
    # Two frames, one token: of nine paths 1-1, 1-0 and 0-1 collapse to 1.
    transcripts = Transcripts(torch.tensor([[1, 2]]), torch.tensor([[True, True]]))
    loss = ctc_loss(torch.zeros(1, 2, 3), torch.tensor([2]), transcripts, blank=0)
    assert float(loss) == pytest.approx(math.log(3), abs=1e-6)


def test_an_utterance_with_more_tokens_than_frames_counts_as_zero_and_has_no_gradient():
    logits = torch.zeros(1, 1, 3, requires_grad=True)
    transcripts = Transcripts(torch.tensor([[1, 2, 2]]), torch.tensor([[True] * 3]))
    loss = ctc_loss(logits, torch.tensor([1]), transcripts, blank=0)
    loss.backward()
    assert float(loss) == 0
    assert (logits.grad == 0).all()


def test_transcripts_of_only_the_end_token_do_not_divide_by_zero():
    transcripts = Transcripts(torch.tensor([[2]]), torch.tensor([[True]]))
    loss = ctc_loss(torch.zeros(1, 2, 3), torch.tensor([2]), transcripts, blank=0)
    # Both frames are blank: 1/9 of the paths. Nothing to divide by, so the sum stands.
    assert float(loss) == pytest.approx(math.log(9), abs=1e-6)


def gradients(model, batch, **weights):
    """Gradient of each part under the given CTC weights, and the losses."""
    supervised = SupervisedModel(model, **({"encoder_ctc": 0.0, "projector_ctc": 0.0} | weights))
    model.zero_grad()
    losses = supervised(batch, encode_transcripts(batch, model.prompt))
    losses["loss"].backward()
    parts = {
        "encoder": model.encoder.encoder_layers[0]
        if hasattr(model.encoder, "encoder_layers")
        else model.encoder,
        "projector": model.projector,
        "layers": model.causal_lm.model.layers,
        "embeddings": model.causal_lm.get_input_embeddings(),
    }
    return losses, {
        name: torch.cat([p.grad.flatten().clone() for p in part.parameters() if p.grad is not None])
        for name, part in parts.items()
    }


def test_cross_entropy_is_the_mean_negative_log_prob_of_all_tokens(model, batch):
    transcripts = encode_transcripts(batch, model.prompt)
    with torch.no_grad():
        scores = model(batch, transcripts.tokens, transcripts.mask, temperature=1.0)
    losses, _ = gradients(model, batch)
    expected = -float(scores.logps.sum()) / int(transcripts.mask.sum())
    assert float(losses["loss"]) == float(losses["cross_entropy"]) == pytest.approx(expected, abs=1e-5)
    assert losses.keys() == {"loss", "cross_entropy"}


def test_the_encoder_helper_trains_the_encoder_and_its_head_and_nothing_else(model, batch):
    _, plain = gradients(model, batch)
    losses, helped = gradients(model, batch, encoder_ctc=0.5)
    assert not torch.equal(helped["encoder"], plain["encoder"])
    for part in ("projector", "layers", "embeddings"):
        torch.testing.assert_close(helped[part], plain[part], rtol=1e-5, atol=1e-7)
    assert float(losses["loss"]) == pytest.approx(
        float(losses["cross_entropy"]) + 0.5 * float(losses["encoder_ctc"]), rel=1e-6
    )


def test_the_projector_helper_trains_encoder_projector_and_token_embeddings(model, batch):
    _, plain = gradients(model, batch)
    losses, helped = gradients(model, batch, projector_ctc=0.25)
    for part in ("encoder", "projector", "embeddings"):
        assert not torch.allclose(helped[part], plain[part], rtol=1e-3, atol=1e-6), part
    torch.testing.assert_close(helped["layers"], plain["layers"], rtol=1e-5, atol=1e-7)
    assert float(losses["loss"]) == pytest.approx(
        float(losses["cross_entropy"]) + 0.25 * float(losses["projector_ctc"]), rel=1e-6
    )


def test_only_the_encoder_helper_has_a_head(model):
    assert SupervisedModel(model, encoder_ctc=0.0, projector_ctc=1.0).ctc_head is None
    head = SupervisedModel(model, encoder_ctc=1.0, projector_ctc=0.0).ctc_head
    assert head.in_features == model.projector.linear1.in_features // model.projector.downsample


def draw(seed, step, rank):
    trainer = SupervisedTrainer.__new__(SupervisedTrainer)
    trainer.parts = SimpleNamespace(accelerator=SimpleNamespace(process_index=rank))
    trainer.config = SimpleNamespace(seed=seed)
    trainer.seed(step)
    return torch.rand(1).item()


def test_each_part_inside_the_supervised_model_has_its_rate(model):
    supervised = SupervisedModel(model, encoder_ctc=0.3, projector_ctc=0.0)
    rates = {"encoder": 1.0, "projector": 2.0, "decoder": 3.0}
    optimizer = build_optimizer(supervised, rates, weight_decay=0.0, betas=(0.9, 0.95))
    rate_of = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for part, rate in (
        (supervised.ctc_head, 1.0),
        (model.encoder, 1.0),
        (model.projector, 2.0),
        (model.llm, 3.0),
    ):
        assert {rate_of[id(parameter)] for parameter in part.parameters()} == {rate}


def test_dropout_is_a_function_of_seed_step_and_rank():
    assert draw(1, 2, 0) == draw(1, 2, 0)
    assert len({draw(1, 2, 0), draw(2, 2, 0), draw(1, 3, 0), draw(1, 2, 1)}) == 4
