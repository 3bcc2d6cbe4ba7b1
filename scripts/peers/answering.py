"""Timing of a peer: each line with the seconds of processor time to measure for is answered by a line of JSON.

The first answer names the version, and the floating-point operations of an update's products. One thread.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

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
    with FlopCounterMode(display=False) as counter:
        update(WARM_UP)
    print(json.dumps({"version": version, "operations": counter.get_total_flops()}), flush=True)
    for line in sys.stdin:
        seconds, updates, began = float(line), 0, time.process_time()
        while time.process_time() - began < seconds:
            update(updates)
            updates += 1
        print(json.dumps({"rate": updates / (time.process_time() - began)}), flush=True)


def one_thread() -> None:
    """For the whole process."""
    torch.set_num_threads(1)
