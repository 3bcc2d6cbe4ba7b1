"""Timing of a peer: each line with the seconds of processor time to measure for is answered by a line of JSON.

The first answer names the version. One thread.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch

WARM_UP = 10


def answer(update: Callable[[int], object], version: str) -> None:
    """Answer rounds until the input ends.

    Parameters
    ----------
    update : callable
        One update, on a batch that is ready; its argument is the number of updates before it.
    """
    for step in range(WARM_UP):
        update(step)
    print(json.dumps({"version": version}), flush=True)
    for line in sys.stdin:
        seconds, updates, began = float(line), 0, time.process_time()
        while time.process_time() - began < seconds:
            update(updates)
            updates += 1
        print(json.dumps({"rate": updates / (time.process_time() - began)}), flush=True)


def one_thread() -> None:
    """For the whole process."""
    torch.set_num_threads(1)
