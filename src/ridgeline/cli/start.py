"""The first lines of the command line. They import next to nothing: Ctrl-C may come at any moment.

Until a verb begins, nothing is at stake, and the process leaves without a word. Half a second of imports would end in a
traceback otherwise, or, where one of them passes over the interrupt, go on.
"""

import _signal  # type: ignore[import-not-found]  # of which `signal` is made, with further imports
import os


def _leave(number: int, frame: object) -> None:
    os._exit(130)  # ExitCode.INTERRUPTED


def _begins() -> None:
    if _signal.getsignal(_signal.SIGINT) is _leave:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def main() -> None:
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # who ignores it, as nohup does, means it
        _signal.signal(_signal.SIGINT, _leave)
    from ridgeline.cli.main import main as run

    run(_begins)
