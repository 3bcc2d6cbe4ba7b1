"""One line and an exit status for whatever a command raises, and Ctrl-C between two updates."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType

from finflow.errors import FinflowError
from finflow.files import describe_lack
from finflow.training.phases.stopping import request_stop

FAULT, MISTAKE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141


def run_safely(command: Callable[[Sequence[str]], None], arguments: Sequence[str] | None = None) -> int:
    """Call a command with its arguments, those of the process when left out, and return the exit status.

    0; 1 for a fault in finflow, with its traceback in a file (`--verbose`: on the screen); 2 for what the user can fix;
    130 for Ctrl-C; 141 when the reader of the output has closed it.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the process that started this one
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    given = sys.argv[1:] if arguments is None else list(arguments)
    verbose = "--verbose" in given
    try:
        with warnings.catch_warnings(), _recording_ctrl_c() as pressed:
            if not verbose and not sys.warnoptions:
                warnings.simplefilter("ignore")  # those of libraries; what finflow has to remark it prints
            try:
                command(given)
            finally:
                sys.stdout.flush()
    except SystemExit as stop:  # argparse, after --help
        return int(stop.code or 0)
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # so that the interpreter does not complain when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt as stop:
        return _print_error(str(stop) or "stopped", INTERRUPTED)
    except FinflowError as error:
        return _print_error(f"error: {error}", MISTAKE)
    except Exception as error:
        if pressed:  # during an import, which may raise another error
            return _print_error("stopped", INTERRUPTED)
        if verbose:
            traceback.print_exception(error)
        missing = describe_lack(error)
        if missing is not None:
            return _print_error(f"error: {missing}", MISTAKE)
        places = traceback.extract_tb(error.__traceback__)
        place = f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
        kept = "" if verbose else _keep_traceback(error)
        return _print_error(f"fault in finflow: {type(error).__name__}: {error}{place}{kept}", FAULT)
    return 0


@contextmanager
def stopping_between_updates() -> Iterator[None]:
    """Let the first Ctrl-C (or SIGTERM) ask for a stop at the next update, and the second stop at once.

    Only the main thread can do that; in others nothing is changed.
    """
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        request_stop()
        with suppress(OSError):  # not print, in the middle of which a signal may arrive
            os.write(2, b"\nstopping after the next update; once more to stop at once\n")

    with _handling(handle, signal.SIGINT, signal.SIGTERM):
        yield


@contextmanager
def _recording_ctrl_c() -> Iterator[list[int]]:
    """Note that Ctrl-C was pressed, and raise KeyboardInterrupt as usual; in the main thread only.

    A program that a shell starts in the background ignores interrupts unless it handles them: so that it can be stopped
    there too, it does.
    """
    pressed: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    usual = signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_IGN)
    with _handling(handle, signal.SIGINT) if usual else nullcontext():
        yield pressed


@contextmanager
def _handling(handle: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals in a function during the block, where this is the main thread, which alone can."""
    can = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handle) for number in numbers if can}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _keep_traceback(error: Exception) -> str:
    try:
        descriptor, path = tempfile.mkstemp(prefix="finflow-fault-", suffix=".txt")
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError:
        return "; --verbose shows the traceback"
    return f"; the traceback is in {path}"


def _print_error(message: str, status: int) -> int:
    with suppress(OSError):
        print(" ".join(message.split()), file=sys.stderr, flush=True)
    return status
