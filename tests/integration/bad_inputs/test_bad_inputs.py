"""Whatever a user comes with is accepted, or refused with status 2 and one line that names the place."""

import re

import pytest
from cases import Case
from checkpoints import CHECKPOINTS
from manifests import MANIFESTS, TEXTS
from omegaconf import OmegaConf
from recordings import RECORDINGS
from settings import SETTINGS

from asrl.cli.build import load_dataset, load_model
from asrl.config import ModelConfig
from asrl.errors import exit_with_one_line


def for_each(*corpora: list[Case]):
    cases = [case for corpus in corpora for case in corpus]
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


@pytest.fixture
def folder(tmp_path):
    """An empty folder, but for a file named ``file``."""
    (tmp_path / "input").mkdir()
    return tmp_path / "input"


def check(case: Case, folder, status: int, errors: str) -> None:
    lines = [line for line in errors.replace("\r", "\n").split("\n") if line.strip()]
    if case.error is None:
        assert (status, lines) == (0, [])
        return
    assert status == 2, errors
    assert len(lines) == 1, errors
    pattern = "error: " + case.error.replace("{folder}", re.escape(str(folder)))
    assert re.fullmatch(pattern, lines[0]), lines[0]


def status_of(main) -> int:
    try:
        exit_with_one_line(main)
    except SystemExit as end:
        return end.code
    return 0


@for_each(MANIFESTS, TEXTS, RECORDINGS)
def test_data_are_read_or_refused_in_one_line(case, folder, golden, capfd):
    path = case.make(folder)

    def read_everything():
        dataset = load_dataset(str(path), str(golden / "FireRedASR-LLM-tiny"))
        for utterance in dataset.utterances:
            features = dataset.featurize(utterance)
            assert features.isfinite().all()
            utterance.transcript.encode("utf-8")

    status = status_of(read_everything)
    check(case, folder, status, capfd.readouterr().err)


@for_each(CHECKPOINTS)
def test_a_model_is_loaded_or_refused_in_one_line(case, folder, manifest, capfd):
    config = OmegaConf.structured(ModelConfig(path=str(case.make(folder))))

    def load_everything():
        load_dataset(str(manifest), config.path)
        load_model(config, dropout=False)

    status = status_of(load_everything)
    check(case, folder, status, capfd.readouterr().err)


@for_each(SETTINGS)
def test_a_command_line_is_refused_in_one_line(case, folder, tmp_path, command, arguments):
    (folder / "file").touch()
    result = command("train", *overridden(arguments(tmp_path / "run"), case.make(folder)))
    check(case, folder, result.status, result.errors)


def overridden(words: list[str], given: list[str]) -> list[str]:
    """The words of a run, but for those that are given."""
    if given[0].startswith("resume="):
        return given
    keys = {word.split("=")[0].lstrip("+") for word in given}
    return [word for word in words if word.split("=")[0].lstrip("+") not in keys] + given
