"""Audio data sets of Hugging Face: folders with metadata, saved data sets, Parquet files."""

import sys

import pytest
import soundfile
from audio_files import write_audio, write_lines

from asrl.data.huggingface import read_audio_folder, read_saved
from asrl.data.manifest import read_manifest
from asrl.errors import UserError


def refused(function, *arguments, **options):
    with pytest.raises(UserError) as caught:
        list(function(*arguments, **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_metadata_as_json_lines(tmp_path):
    path = write_lines(
        tmp_path / "metadata.jsonl",
        {"file_name": "wav/a.wav", "transcription": "你好", "speaker": "s"},
        "",
        {"file_name": "wav/b.wav", "text": "hi", "transcription": "ignored", "id": 7},
    )
    assert list(read_audio_folder(tmp_path)) == [
        {"key": "wav/a.wav", "audio": "wav/a.wav", "text": "你好", "speaker": "s", "place": f"{path}:1"},
        {
            "key": "7",
            "audio": "wav/b.wav",
            "text": "hi",
            "transcription": "ignored",
            "id": 7,
            "place": f"{path}:3",
        },
    ]


def test_metadata_as_a_table(tmp_path):
    # A quoted field may hold commas and newlines; the place is the line that the row ends on.
    path = write_lines(
        tmp_path / "metadata.csv", "file_name,sentence,id", 'a.wav,"hi, you",u1', 'b.wav,"two\nlines",'
    )
    assert list(read_audio_folder(tmp_path)) == [
        {"key": "u1", "audio": "a.wav", "text": "hi, you", "id": "u1", "place": f"{path}:2"},
        {"key": "b.wav", "audio": "b.wav", "text": "two\nlines", "id": "", "place": f"{path}:4"},
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["file,text", "a.wav,x"], "metadata.csv:2: column 'file_name' is missing; did you mean 'file'?"),
        (["file_name,text", ",x"], "metadata.csv:2: column 'file_name' is empty"),
        (
            ["file_name,text", "a.wav,x", "b.wav"],
            "metadata.csv:3: a line must have the columns of the first one",
        ),
        (["file_name,text", "a.wav,x,y"], "metadata.csv:2: a line must have the columns of the first one"),
        (["file_name,text", 'a.wav,"x"y'], "metadata.csv:2: not a line of CSV in UTF-8: "),
    ],
)
def test_a_wrong_row_is_named(tmp_path, lines, message):
    write_lines(tmp_path / "metadata.csv", *lines)
    assert refused(read_audio_folder, tmp_path).startswith(f"{tmp_path}/{message}")


def test_the_package_is_asked_for_only_where_it_is_needed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    write_lines(tmp_path / "metadata.jsonl", {"file_name": "a.wav", "text": "x"})
    assert len(list(read_audio_folder(tmp_path))) == 1
    message = refused(read_saved, tmp_path / "a.parquet", audio_folder=tmp_path / "audio")
    assert message == (
        "data.format=huggingface: Parquet files and saved data sets need the package datasets; "
        "pip install 'asrl[hf]'"
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A data set of two recordings, its folder and where its audio came from."""
    datasets = pytest.importorskip("datasets")
    folder = tmp_path_factory.mktemp("saved")
    files = [write_audio(folder / name, value=value) for name, value in (("a.wav", 0.1), ("b.flac", 0.2))]
    columns = {"audio": list(map(str, files)), "sentence": ["你好", "hi"], "speaker": ["s", "t"]}
    table = datasets.Dataset.from_dict(columns).cast_column("audio", datasets.Audio())
    table.save_to_disk(str(folder / "disk"))
    for file in files:
        file.unlink()  # the audio is in the data set now
    datasets.load_from_disk(str(folder / "disk")).to_parquet(str(folder / "parquet" / "train.parquet"))
    return folder


@pytest.mark.parametrize("name", ["disk", "parquet", "parquet/train.parquet"])
def test_a_saved_data_set_is_read_with_its_audio(saved, name):
    first, second = read_manifest(saved / name)
    assert [first.key, second.key] == ["a.wav", "b.flac"]
    assert [first.transcript, second.transcript] == ["你好", "hi"]
    assert first.columns == {"speaker": "s"}
    assert second.place == f"{saved / name}:1"
    assert soundfile.read(first.audio)[0][0] == pytest.approx(0.1, abs=1e-4)
    assert soundfile.read(second.audio)[0][0] == pytest.approx(0.2, abs=1e-4)


def test_a_data_set_without_audio_is_refused(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": ["x"]}).to_parquet(str(tmp_path / "a.parquet"))
    message = refused(read_saved, tmp_path / "a.parquet", audio_folder=tmp_path / "audio")
    assert "no column of the type Audio, got text" in message


def test_a_broken_file_is_refused(tmp_path):
    pytest.importorskip("datasets")
    (tmp_path / "a.parquet").write_bytes(b"not parquet")
    message = refused(read_saved, tmp_path / "a.parquet", audio_folder=tmp_path / "audio")
    assert message.startswith(f"{tmp_path / 'a.parquet'}: cannot open the data set (")
