"""Manifests of any size: what is held in memory, what workers get, what is remembered between runs."""

import multiprocessing
import os
import pickle
import tracemalloc

import numpy as np
import pytest
from audio_files import write_audio, write_lines

from asrl.data import manifest as module
from asrl.data.lines import open_lines
from asrl.data.manifest import find_duplicates, read_manifest
from asrl.errors import UserError

NUM_LINES = 20_000


def line(number, key=None, audio="a.wav"):
    return f'{{"key": "{key or f"utterance-{number:07d}"}", "audio": "{audio}", "text": "第{number}句"}}'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with an audio file; manifests of any size count as large, and each test has its own cache."""
    write_audio(tmp_path / "a.wav")
    monkeypatch.setattr(module, "REMEMBERED_BYTES", 0)
    monkeypatch.setenv("ASRL_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A manifest that was found fine before."""
    folder = tmp_path_factory.mktemp("large")
    write_audio(folder / "a.wav")
    path = write_lines(folder / "m.jsonl", *(line(number) for number in range(NUM_LINES)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "REMEMBERED_BYTES", 0)
        read_manifest(path)
        yield path


@pytest.fixture
def checked(monkeypatch):
    """Counts how often lines are checked."""
    calls = []
    check = module._check_lines
    monkeypatch.setattr(module, "_check_lines", lambda *arguments: (calls.append(1), check(*arguments))[1])
    return calls


def test_any_utterance_of_many_is_found(large):
    manifest = read_manifest(large)
    assert len(manifest) == NUM_LINES
    for index in (0, 1, 13_141, NUM_LINES - 1):
        assert manifest[index].transcript == f"第{index}句"
        assert manifest[index].place == f"{large}:{index + 1}"
    assert manifest[-1] == manifest[NUM_LINES - 1]
    assert [utterance.key for utterance in manifest[7:19000:10000]] == [
        "utterance-0000007",
        "utterance-0010007",
    ]
    with pytest.raises(IndexError):
        manifest[NUM_LINES]


def test_opening_again_takes_no_memory(large):
    tracemalloc.start()
    manifest = read_manifest(large)
    manifest[NUM_LINES // 2]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The utterances as Python objects would take more than 10 MB, the table of lines 0.3 MB.
    assert peak < 200_000
    assert len(pickle.dumps(manifest)) < 2000


def read_one(manifest, index, answers):
    answers.put((manifest[index].key, isinstance(manifest.lines._lines, np.memmap)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_share_the_map(large, method):
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    worker = context.Process(target=read_one, args=(read_manifest(large), 13_141, answers))
    worker.start()
    assert answers.get() == ("utterance-0013141", True)
    worker.join()


def test_blank_lines_and_marks_do_not_shift_places(folder):
    path = folder / "m.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\n".join(["", line(0), "  \r", line(1)]).encode())
    manifest = read_manifest(path)
    assert [(u.transcript, u.place) for u in manifest] == [("第0句", f"{path}:2"), ("第1句", f"{path}:4")]


def test_a_large_manifest_is_checked_once_until_it_changes(folder, checked):
    path = write_lines(folder / "m.jsonl", line(0))
    assert [read_manifest(path)[0].transcript for _ in range(2)] == ["第0句"] * 2
    assert len(checked) == 1
    write_lines(path, line(0), line(11))
    assert len(read_manifest(path)) == 2
    assert len(checked) == 2


def test_each_set_of_checks_is_remembered_by_itself(folder, checked):
    path = write_lines(folder / "m.jsonl", line(0, audio="gone.wav"))
    for _ in range(2):
        read_manifest(path, check_audio=False)
        with pytest.raises(UserError, match="does not exist"):
            read_manifest(path)
    assert len(checked) == 3  # a failure is not remembered


def test_a_small_manifest_is_checked_every_time(folder, checked, monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED_BYTES", 10_000)
    path = write_lines(folder / "m.jsonl", line(0))
    for _ in range(2):
        read_manifest(path)
    assert len(checked) == 2
    assert not (folder / "cache").exists()


def test_a_table_cut_short_is_made_anew(folder, checked):
    path = write_lines(folder / "m.jsonl", line(0), line(1))
    read_manifest(path)
    (table,) = (folder / "cache").glob("*.npy")
    table.write_bytes(table.read_bytes()[:-8])
    assert [utterance.transcript for utterance in read_manifest(path)] == ["第0句", "第1句"]
    assert len(checked) == 2


def test_an_unwritable_cache_only_costs_time(folder, monkeypatch):
    (folder / "file").touch()
    monkeypatch.setenv("ASRL_CACHE", str(folder / "file"))
    path = write_lines(folder / "m.jsonl", line(0))
    with pytest.warns(UserWarning, match="cannot write here"):
        assert read_manifest(path)[0].transcript == "第0句"


def test_repeated_keys_far_apart_are_found(folder):
    lines = [line(number) for number in range(100)]
    lines[80] = line(80, key="utterance-0000003")
    path = write_lines(folder / "m.jsonl", *lines)
    with pytest.raises(UserError) as caught:
        read_manifest(path)
    assert str(caught.value) == f"{path}:81: key 'utterance-0000003' was already used on line 4"


def test_the_first_wrong_line_is_the_one_that_is_named(folder):
    repeated = [line(0), line(1, key="utterance-0000000"), "broken"]
    path = write_lines(folder / "m.jsonl", *repeated)
    with pytest.raises(UserError, match=r":2: key 'utterance-0000000' was already used on line 1"):
        read_manifest(path)
    write_lines(path, line(0), "broken", line(2, key="utterance-0000000"))
    with pytest.raises(UserError, match=r":2: not valid JSON"):
        read_manifest(path)


def test_equal_hashes_of_different_keys_are_no_mistake(folder, monkeypatch):
    monkeypatch.setattr(module, "hash", lambda key: 5, raising=False)
    path = write_lines(folder / "m.jsonl", line(0), line(1))
    assert len(read_manifest(path)) == 2


def test_duplicates_are_pairs_sorted_by_the_later_line():
    # 7 at 0, 3, 4 and 9 at 1, 2.
    assert list(find_duplicates(np.array([7, 9, 9, 7, 7, 1]))) == [(1, 2), (0, 3), (3, 4)]


def test_a_change_in_place_is_noticed_and_a_new_file_is_not(folder):
    path = write_lines(folder / "m.jsonl", line(0), line(1))
    manifest = read_manifest(path)
    write_lines(folder / "new.jsonl", line(5))
    os.replace(folder / "new.jsonl", path)
    assert manifest[1].transcript == "第1句"  # the old file lives on as long as it is open
    manifest = read_manifest(path)
    write_lines(path, line(6), line(7))
    with pytest.raises(
        UserError, match=r"m\.jsonl: changed while it was in use; write changes to a new file"
    ):
        manifest[0]


def test_opening_without_checks_leaves_mistakes_to_the_reader(folder):
    path = write_lines(folder / "m.jsonl", line(0), "broken", line(0))
    lines = open_lines(path)
    assert len(lines) == 3
    assert lines.read(2).key == lines.read(0).key
    with pytest.raises(UserError, match=r":2: not valid JSON"):
        lines.read(1)
    with pytest.raises(UserError, match="has no utterances"):
        open_lines(write_lines(folder / "empty.jsonl", ""))
