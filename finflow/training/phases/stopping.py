"""Requests to stop a training: at the end of its update, or at once where nothing would be lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_stop = threading.Event()
_stopping_at_once: list[int] = []  # threads in which a stop need not wait


def request_stop() -> None:
    """Ask the training to write ``checkpoint_latest`` at the next update's end and stop with KeyboardInterrupt."""
    if threading.get_ident() in _stopping_at_once:
        raise KeyboardInterrupt
    _stop.set()


def stop_requested() -> bool:
    """Return True once after a stop was requested."""
    asked = _stop.is_set()
    _stop.clear()
    return asked


@contextmanager
def stopping_at_once() -> Iterator[None]:
    """Raise KeyboardInterrupt at once for stops in this thread, during work that checkpoints allow to repeat."""
    thread = threading.get_ident()
    _stopping_at_once.append(thread)
    try:
        if stop_requested():
            raise KeyboardInterrupt
        yield
    finally:
        _stopping_at_once.remove(thread)
