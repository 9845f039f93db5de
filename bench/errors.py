"""Why a benchmark ends early. The text is for the person at the terminal: one line, with what to do."""


class BenchError(Exception):
    """It began, and something failed. Exit code 1."""

    code = 1


class CannotStart(BenchError):
    """A wrong argument, or something that is not installed. Exit code 2."""

    code = 2
