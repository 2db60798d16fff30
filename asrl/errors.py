"""This module is the only place that says which errors are the user's to fix, and how they end a program."""

import sys
from collections.abc import Callable


class UserError(ValueError):
    """Something the user can get wrong; entry points print it as one line and exit with status 2.

    The message is worded: place (``file:line`` or config key), rule, the value found, the way out.
    """


def exit_with_one_line(main: Callable[[], object]) -> None:
    """Run ``main``; a mistake of the user's ends with one line on standard error and status 2."""
    try:
        main()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
