"""Command lines of every odd kind."""

from pathlib import Path

from cases import Case


def words(*given: str):
    """These words, with ``{folder}`` filled in, beside those of a short run."""
    return lambda folder: [word.replace("{folder}", str(folder)) for word in given]


def run_that_holds(name: str, content: bytes | None):
    """``resume=`` of a folder with such a file; None: with nothing."""

    def make(folder: Path) -> list[str]:
        if content is not None:
            (folder / name).write_bytes(content)
        return [f"resume={folder}"]

    return make


NOT_A_SETTING = r"not a setting of the form key=value: .+"
SETTINGS = [
    Case(
        "mistyped key", words("trainer.max_step=5"), r"unknown setting 'trainer\.max_step'; did you mean .*"
    ),
    Case("mistyped section", words("trianer.max_steps=5"), r"unknown setting 'trianer.*'; did you mean .*"),
    Case("setting added to a section", words("+trainer.speed=5"), r"unknown setting 'trainer\.speed'.*"),
    Case("key without value", words("num_generations"), NOT_A_SETTING),
    Case("value without key", words("=5"), NOT_A_SETTING),
    Case("space around the equals sign", words("seed", "=", "5"), NOT_A_SETTING),
    Case("open bracket", words("data.train=[a"), NOT_A_SETTING),
    Case(
        "text for a number", words("trainer.max_steps=many"), r"trainer\.max_steps: Value 'many' of type .*"
    ),
    Case(
        "fraction for a whole number", words("seed=1.5"), r"seed: Value '1\.5' of type 'float' could not .*"
    ),
    Case(
        "word for a truth value", words("dropout=perhaps"), r"dropout: Value 'perhaps' is not a valid bool .*"
    ),
    Case("list for one value", words("data.train=[a,b]"), r"data\.train: .+"),
    Case(
        "value for a section",
        words("trainer=5"),
        r"trainer=5: a group takes the name of a file in its folder",
    ),
    Case("section that is no file", words("optim=demmo"), r".*optim/demmo\.yaml; did you mean 'demo'.*"),
    Case("experiment that is no file", words("experiment=demo"), r"experiment=demo: there is no .*"),
    Case("null for a number", words("trainer.max_steps=null"), r"trainer\.max_steps: .* is not Optional"),
    Case(
        "interpolation to nowhere",
        words("run_dir=${nope}"),
        ".*nope.*",
    ),
    Case("several values", words("seed=1,2"), r"a setting with several values .*--multirun.*"),
    Case(
        "none of the choices",
        words("loss_type=grpoo"),
        r"loss_type must be one of .*; did you mean 'grpo' .*",
    ),
    Case("seed below zero", words("seed=-1"), "seed must be at least 0 .*, got -1"),
    Case("no steps", words("trainer.max_steps=0"), r"trainer\.max_steps must be at least 1 .*, got 0"),
    Case("temperature of zero", words("rollout.temperature=0"), r"rollout\.temperature must be above 0 .*"),
    Case("NaN", words("rollout.top_p=nan"), r"rollout\.top_p must be above 0 and at most 1, got nan"),
    Case("infinity", words("optim.max_grad_norm=inf"), r"optim\.max_grad_norm must be above 0 .*, got inf"),
    Case("epsilon above 1", words("epsilon=1.5"), "epsilon must be above 0 and at most 1, got 1.5"),
    Case("one transcript in a group", words("num_generations=1"), "num_generations must be at least 2 .*"),
    Case("groups that do not fit", words("num_generations=5"), "num_generations=5 must divide .*"),
    Case(
        "log-probs of the update for several updates",
        words("old_logps=detach", "num_iterations=2"),
        "old_logps=detach needs one update per batch .*; use old_logps=recompute",
    ),
    Case(
        "log-probs of the rollout with dropout",
        words("old_logps=rollout", "dropout=true"),
        "old_logps=rollout .* dropout=true; use .*",
    ),
    Case(
        "reference that is not the start",
        words("beta=0.1", "model.lora.start=continue"),
        "reference=adapter_off .*; use reference=frozen",
    ),
    Case(
        "second bound below the first",
        words("delta=1.1"),
        r"delta must be above 1 \+ epsilon_high, got 1\.1.*",
    ),
    Case("CISPO without its bound", words("loss_type=cispo"), "loss_type=cispo .* epsilon_high; set it .*"),
    Case(
        "reward that is not there",
        words("+reward.luck.weight=1"),
        r"reward\.luck: .*package\.module:function",
    ),
    Case(
        "reward module that is not there", words("+reward.a.function=nowhere:f"), r"reward\.a: .*'nowhere.*"
    ),
    Case("reward function that is not there", words("+reward.a.function=math:f"), r"reward\.a: .*'math:f'.*"),
    Case("weight in words", words("reward.accuracy.weight=heavy"), r"reward\.accuracy: weight must be .*"),
    Case(
        "no reward at all",
        words("reward.accuracy.weight=0", "+reward.signal.weight=0"),
        "reward: at least one reward needs a weight other than 0.*",
    ),
    Case(
        "run folder below a file", words("run_dir={folder}/file/run"), "run_dir={folder}/file/run: cannot .*"
    ),
    Case("run folder without a name", words("run_dir="), "run_dir=: cannot create the directory .*"),
    Case(
        "copies below a file",
        words("trainer.copy_checkpoints_to={folder}/file"),
        r"trainer\.copy_checkpoints_to={folder}/file: cannot create .*",
    ),
    Case(
        "resume from nothing", run_that_holds("", None), "resume={folder}: .*config.yaml not found; name .*"
    ),
    Case(
        "resume with a damaged configuration",
        run_that_holds("config.yaml", b"seed: [1,\n"),
        r"{folder}/config\.yaml: not a configuration of this version .*",
    ),
    Case(
        "resume with a binary configuration",
        run_that_holds("config.yaml", b"\xff\xfe\x00"),
        r"{folder}/config\.yaml: not a configuration of this version .*",
    ),
    Case(
        "resume with the configuration of another program",
        run_that_holds("config.yaml", b"learning_rate: 1\n"),
        r"{folder}/config\.yaml: not a configuration of this version .*",
    ),
]
