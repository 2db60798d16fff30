import subprocess
import sys

import pytest

from asrl.errors import UserError, exit_with_one_line


def test_a_users_mistake_is_one_line_and_status_2(capsys):
    def fail():
        raise UserError("file.jsonl:3: key is missing")

    with pytest.raises(SystemExit) as end:
        exit_with_one_line(fail)
    assert end.value.code == 2
    assert capsys.readouterr().err == "error: file.jsonl:3: key is missing\n"


def test_another_error_is_not_touched():
    with pytest.raises(KeyError):
        exit_with_one_line({}.popitem)


def test_a_broken_pipe_to_somewhere_else_is_not_touched():
    def fail():
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        exit_with_one_line(fail)


def test_output_that_nobody_reads_ends_a_program_without_a_word():
    code = (
        "from asrl.errors import exit_with_one_line\n"
        "exit_with_one_line(lambda: [print('x' * 1000) for _ in range(1000)])"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 1
    process.stderr.close()
