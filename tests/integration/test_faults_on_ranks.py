"""What goes wrong on one of two ranks ends, or is left out, on both alike; nobody waits for anybody."""

import json

from runs import finish, read_metrics, start

STEPS = (
    "trainer.rows_per_device=6",
    "trainer.max_steps=3",
    "trainer.save_every=1",
    "trainer.keep_checkpoints=9",
)


def dumps(run_dir):
    return [json.loads(path.read_text()) for path in sorted(run_dir.glob("nonfinite-step-*.json"))]


def test_a_gradient_that_is_infinite_on_one_rank_ends_the_run_on_both_with_a_dump(arguments, tmp_path):
    words = arguments(tmp_path / "run", *STEPS, "+reward.signal.function=toy_rewards:poisoned_gradient")
    result = finish(start(words, num_processes=2))
    assert result.status != 0
    lines = [line[line.find("error: step") :] for line in result.errors.splitlines() if "error: step" in line]
    assert len(lines) == 2
    assert all(line.startswith("error: step 2: the loss (") for line in lines)
    assert [dump["step"] for dump in dumps(tmp_path / "run")] == [2, 2]
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [1]
    first, second = ([row["key"] for row in dump["rows"]] for dump in dumps(tmp_path / "run"))
    # Twelve rows in groups of four, six on each rank: the group in the middle is on both.
    assert len(first) == len(second) == 6
    assert first[4:] == second[:2]


def test_a_loss_that_is_nan_on_one_rank_is_left_out_and_counted_on_both(arguments, tmp_path):
    skip = ("trainer.on_nonfinite=skip", "+reward.signal.function=toy_rewards:poisoned_loss")
    result = finish(start(arguments(tmp_path / "run", *STEPS, *skip), num_processes=2))
    assert result.status == 0, result.errors[-3000:]
    rows = read_metrics(tmp_path / "run")
    assert [row["num_nonfinite"] for row in rows] == [0, 1, 1]
    assert len(dumps(tmp_path / "run")) == 2
    before, skipped, after = (
        (tmp_path / "run" / "checkpoints" / f"step-{step:08d}" / "trainable.safetensors").read_bytes()
        for step in (1, 2, 3)
    )
    assert before == skipped != after


def test_ranks_whose_transcripts_differ_in_length_sum_up_together(train, tmp_path):
    # One utterance a rank, of different lengths; the demo's model knows them well enough to stop in time.
    words = ("model.path=demo/FireRedASR-LLM-demo", "data.train=demo/train.jsonl", "num_generations=8")
    sizes = ("trainer.rows_per_device=8", "trainer.max_steps=1", "rollout.max_new_tokens=32")
    train(tmp_path / "run", *words, *sizes, num_processes=2)
    assert len(read_metrics(tmp_path / "run")) == 1
