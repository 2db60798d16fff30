"""The gradient of an optimizer step does not depend on how its rows were drawn, laid out, cut or left out."""

from dataclasses import replace

import learner_runs
import pytest
import torch
from learner_runs import backward, build, collect, write_manifest

from asrl import learner
from asrl.cli.build import load_model
from asrl.cli.compose import compose_config
from asrl.config_checks import check_combinations
from asrl.errors import UserError
from asrl.optimization import trainable_parameters


@pytest.fixture(scope="session")
def manifest(tmp_path_factory):
    return write_manifest(tmp_path_factory.mktemp("learner") / "train.jsonl")


@pytest.fixture
def make_trainer(manifest, golden, tmp_path):
    return lambda *overrides: build(manifest, golden / "FireRedASR-LLM-tiny", tmp_path / "run", *overrides)


@pytest.fixture
def first_step(make_trainer):
    def run(*overrides):
        trainer = make_trainer(*overrides)
        return backward(trainer, collect(trainer))

    return run


@pytest.fixture
def without_signal(monkeypatch):
    """Give all transcripts of these utterances of the manifest the same reward."""

    def choose(*numbers):
        monkeypatch.setattr(learner_runs, "WITHOUT_SIGNAL", {f"train-{number:04d}" for number in numbers})

    return choose


def assert_equal_gradients(gradients, expected):
    """To 3e-5 of each tensor's largest entry; the one that is 0 but for rounding, of that of its weight.

    Rows of a group pull in opposite ways, so an entry is less than the terms that it is the sum of.
    """
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        is_zero = name.endswith("mhsa.layer_norm_k.bias")  # it moves all keys alike
        scale = expected[name.replace(".bias", ".weight") if is_zero else name].abs().max()
        assert scale > 0, name
        assert (gradients[name] - gradient).abs().max() <= 3e-5 * scale, name


def assert_equal_steps(one, other):
    assert one.experience.transcripts() == other.experience.transcripts()
    assert torch.equal(one.experience.advantages, other.experience.advantages)
    assert_equal_gradients(one.gradients, other.gradients)
    for name, value in other.metrics.items():
        assert one.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("layout", ["tree", "replicas"])
@pytest.mark.parametrize("beta", [0, 0.1])
def test_gradients_do_not_depend_on_the_budget_of_positions(first_step, layout, beta):
    settings = (f"model.layout={layout}", f"beta={beta}", "importance_sampling_level=token")
    whole = first_step(*settings)
    cut = first_step(*settings, "trainer.max_positions=60")
    # Old, reference (with beta) and new.
    num_passes = 3 if beta else 2
    assert whole.work["decoder_forwards"] == num_passes
    assert cut.work["decoder_forwards"] >= 3 * num_passes
    assert_equal_steps(cut, whole)


@pytest.mark.parametrize("level", ["token", "sequence", "sequence_token"])
def test_gradients_do_not_depend_on_the_layout(first_step, level):
    settings = (f"importance_sampling_level={level}", "beta=0.1")
    tree = first_step(*settings)
    replicas = first_step(*settings, "model.layout=replicas")
    assert_equal_steps(tree, replicas)
    # Twelve rows of three utterances, three times: old, reference, new.
    assert tree.work["encoder_utterances"] == 3 * 3
    assert replicas.work["encoder_utterances"] == 3 * 12


def test_gradients_do_not_depend_on_the_engine(first_step):
    assert_equal_steps(first_step("rollout.engine=drafted"), first_step("rollout.engine=plain"))


def test_the_encoder_runs_once_for_a_batch_if_it_is_frozen(make_trainer):
    settings = ("beta=0.1", "model.train_encoder=false")
    trainer = make_trainer(*settings)
    batch = next(trainer.batches())
    assert trainer.parts.model.work["encoder_utterances"] == 3
    experience = trainer.collect(batch, trainer.rollout(batch))
    step = backward(trainer, experience)
    assert step.work["encoder_utterances"] == 3
    # The same as without the kept output.
    other = make_trainer(*settings)
    other.parts.model.keep_encoded = lambda batch: batch
    assert_equal_steps(step, backward(other, collect(other)))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_rows_without_signal_are_left_out_and_nothing_changes(first_step, without_signal, monkeypatch, level):
    without_signal(0, 2)
    settings = (f"importance_sampling_level={level}", "loss_type=dapo")
    skipping = first_step(*settings)
    assert skipping.experience.advantages.count_nonzero() > 0
    # Old and new log-probs of one utterance.
    assert skipping.work["encoder_utterances"] == 2
    monkeypatch.setattr(learner, "rows_with_signal", lambda advantages, _: torch.ones_like(advantages).bool())
    everything = first_step(*settings)
    assert everything.work["encoder_utterances"] == 6
    assert_equal_gradients(skipping.gradients, everything.gradients)
    assert skipping.metrics["loss"] == pytest.approx(everything.metrics["loss"], abs=1e-6)


def test_no_row_is_left_out_where_there_is_a_reference(first_step, without_signal):
    without_signal(0, 2)
    assert first_step("beta=0.1").work["encoder_utterances"] == 9


def test_the_replica_layout_reads_every_row(first_step, without_signal):
    without_signal(0, 2)
    assert first_step("model.layout=replicas").work["encoder_utterances"] == 2 * 12


def test_a_rank_without_signal_still_computes_a_gradient_of_zero(first_step, without_signal):
    without_signal(0, 1, 2)
    step = first_step()
    assert step.work["decoder_forwards"] == 2  # one row, so that the collectives of other ranks are joined
    assert step.work["encoder_utterances"] == 2
    assert all((gradient == 0).all() for gradient in step.gradients.values())
    assert step.metrics["loss"] == 0


@pytest.mark.parametrize("layout", ["tree", "replicas"])
@pytest.mark.parametrize("options", [(), ("model.gradient_checkpointing=true",)])
def test_with_the_same_masks_the_first_ratio_is_one_despite_dropout(first_step, layout, options):
    settings = (
        "dropout=true",
        "importance_sampling_level=token",
        f"model.layout={layout}",
        "trainer.max_positions=90",  # several micro-batches, each with masks of its own
        *options,
    )
    same = first_step(*settings, "old_logps=same_masks")
    assert same.work["decoder_forwards"] >= 4
    assert same.metrics["ratio/min"] == pytest.approx(1, abs=1e-5)
    assert same.metrics["ratio/max"] == pytest.approx(1, abs=1e-5)
    anew = first_step(*settings, "old_logps=recompute")
    assert anew.metrics["ratio/max"] > 1.01
    assert anew.metrics["ratio/min"] < 0.99


def test_micro_batches_and_batches_have_dropout_masks_of_their_own(make_trainer):
    trainer = make_trainer("dropout=true", "old_logps=same_masks")
    experience = collect(trainer)
    rows = torch.tensor([0, 1])
    first = experience.select(rows)
    # The same transcript, taken for another row or for a row of another batch.
    other = replace(first, batch=replace(first.batch, row_index=first.batch.row_index + 1))

    def score(rows):
        with torch.no_grad():
            return trainer.learner.forward(rows).logps

    assert torch.equal(score(first), score(first))
    assert (score(first) - score(other)).abs().max() > 1e-3
    before = score(first)
    trainer.progress.position += 1
    assert (score(first) - before).abs().max() > 1e-3


def test_old_logps_of_the_rollout_are_those_of_the_policy(make_trainer):
    settings = ("beta=0.1", "rollout.temperature=0.9")
    drawn = collect(make_trainer(*settings, "old_logps=rollout"))
    scored = collect(make_trainer(*settings, "old_logps=recompute"))
    assert drawn.transcripts() == scored.transcripts()
    torch.testing.assert_close(drawn.old_logps, scored.old_logps, rtol=0, atol=1e-5 / 0.9)
    assert (drawn.old_logps[drawn.completions.mask] < 0).all()


def test_old_logps_of_the_rollout_are_refused_with_dropout(manifest, golden):
    settings = [
        f"model.path={golden / 'FireRedASR-LLM-tiny'}",
        f"data.train={manifest}",
        "old_logps=rollout",
    ]
    with pytest.raises(UserError, match=r"old_logps=rollout .*dropout=true.*same_masks"):
        check_combinations(compose_config("train", [*settings, "dropout=true"]))
    check_combinations(compose_config("train", [*settings, "dropout=false"]))


FROZEN = (
    "beta=0.1",
    "optim.learning_rate.encoder=1e-3",
    "optim.learning_rate.projector=1e-3",
    "optim.learning_rate.decoder=1e-3",
)


def test_the_frozen_reference_is_the_starting_model_however_long_it_trains(make_trainer):
    trainer = make_trainer(*FROZEN)
    model = trainer.parts.model
    starting = {name: p.detach().clone() for name, p in trainable_parameters(model).items()}
    kl = []
    for _ in range(2):
        experience = collect(trainer)
        for rows in trainer.learner.optimizer_steps(experience):
            kl.append(trainer.learner.learn(rows)["kl"])
        trainer.progress.position += 1
    assert kl[0] == pytest.approx(0, abs=1e-9)
    assert kl[1] > 1e-4
    # Encoder, projector and LoRA have all moved, and all of them are the policy's again.
    trained = {name: p.detach().clone() for name, p in trainable_parameters(model).items()}
    for part in ("encoder.", "projector.", "llm."):
        assert any(not torch.equal(trained[n], starting[n]) for n in trained if n.startswith(part))
    trainer.learner.ref_logps(experience)
    assert all(torch.equal(p, trained[name]) for name, p in trainable_parameters(model).items())
    # The reference scores are those of the model as loaded.
    fresh = load_model(trainer.config.model, dropout=False)
    with torch.no_grad():
        completions = experience.completions
        scores = fresh(experience.batch, completions.tokens, completions.mask, temperature=1.0)
        now = model(experience.batch, completions.tokens, completions.mask, temperature=1.0)
    torch.testing.assert_close(experience.ref_logps, scores.logps, rtol=0, atol=1e-5)
    assert (experience.ref_logps - now.logps).abs().max() > 0.01


def test_the_policy_comes_back_when_the_reference_fails(make_trainer, monkeypatch):
    trainer = make_trainer(*FROZEN)
    experience = collect(trainer)
    for rows in trainer.learner.optimizer_steps(experience):
        trainer.learner.learn(rows)
    trained = {name: p.detach().clone() for name, p in trainable_parameters(trainer.parts.model).items()}

    def fail(_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(trainer.learner, "frozen_logps", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.learner.ref_logps(experience)
    parameters = trainable_parameters(trainer.parts.model)
    assert all(torch.equal(p, trained[name]) for name, p in parameters.items())


def test_without_beta_there_is_no_reference(make_trainer):
    trainer = make_trainer("beta=0")
    assert trainer.parts.starting_weights == {}
    assert collect(trainer).ref_logps is None


def test_parts_that_only_keep_other_ranks_company_change_nothing(make_trainer, monkeypatch):
    trainer = make_trainer("beta=0.04", "trainer.rows_per_device=4", "trainer.gradient_accumulation_steps=3")
    experience = collect(trainer)
    alone = backward(trainer, experience)
    for parameter in trainer.parts.backend.parameters.values():
        parameter.grad = None
    accelerator, gather = trainer.parts.accelerator, trainer.parts.accelerator.gather
    # The only whole number that is gathered here: how many parts a rank has. Another rank has two more.
    monkeypatch.setattr(
        accelerator, "gather", lambda x: gather(x) + 2 if x.dtype == torch.long else gather(x)
    )
    trainer.parts.model.work.clear()
    in_company = backward(trainer, experience)
    assert in_company.work["decoder_forwards"] == 5
    assert in_company.metrics == alone.metrics
    for name, gradient in alone.gradients.items():
        assert torch.equal(in_company.gradients[name], gradient), name
    again = trainer.learner.fix_policies(experience)
    assert torch.equal(again.old_logps, experience.old_logps)
    assert torch.equal(again.ref_logps, experience.ref_logps)
