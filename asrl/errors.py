"""This module is the only place that says which errors are the user's to fix, and how they end a program."""

import os
import select
import sys
from collections.abc import Callable


class UserError(ValueError):
    """Something the user can get wrong; entry points print it as one line and exit with status 2.

    The message is worded: place (``file:line`` or config key), rule, the value found, the way out.
    """


def exit_with_one_line(main: Callable[[], object]) -> None:
    """Run ``main``; a mistake of the user's ends with one line on standard error and status 2.

    Where whoever reads standard output has gone (``asrl --help | head -1``) it ends without a word.
    """
    try:
        try:
            main()
        finally:
            sys.stdout.flush()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except BrokenPipeError:
        if not _is_output_gone():
            raise  # another pipe
        # Python flushes once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _is_output_gone() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
