"""d3rlpy's IQL, timed when asked to: `benchmark_offline.py` runs this with an interpreter that has d3rlpy.

Reads one line a round, the seconds of processor time to measure for, and answers each with a line of JSON: updates a
second, on batches that are ready. The first answer says what one update costs. One thread, float32, d3rlpy's own
networks and settings.
"""

from __future__ import annotations

import json
import sys
import time

import d3rlpy
import torch
from d3rlpy.algos import IQLConfig
from d3rlpy.torch_utility import TorchMiniBatch
from torch.utils.flop_counter import FlopCounterMode

N_BATCHES = 16
WARM_UP = 10


def draw_batch(observation: int, action: int, size: int) -> TorchMiniBatch:
    """Random transitions of the shapes of ours."""
    return TorchMiniBatch(
        observations=torch.randn(size, observation),
        actions=torch.rand(size, action) * 2.0 - 1.0,
        rewards=torch.randn(size, 1),
        next_observations=torch.randn(size, observation),
        next_actions=torch.zeros(size, action),
        returns_to_go=torch.zeros(size, 1),
        terminals=torch.zeros(size, 1),
        intervals=torch.ones(size, 1),
        device="cpu:0",
    )


def main() -> None:
    """Answer rounds until the input ends."""
    torch.set_num_threads(1)
    observation, action, size = (int(argument) for argument in sys.argv[1:])
    algorithm = IQLConfig(batch_size=size).create()
    algorithm.create_impl((observation,), action)
    implementation = algorithm.impl
    assert implementation is not None
    batches = [draw_batch(observation, action, size) for _ in range(N_BATCHES)]
    with FlopCounterMode(display=False) as counter:
        implementation.update(batches[0], 0)
    for step in range(WARM_UP):
        implementation.update(batches[step % N_BATCHES], step)
    print(json.dumps({"version": d3rlpy.__version__, "flops": counter.get_total_flops()}), flush=True)
    for line in sys.stdin:
        seconds, updates, began = float(line), 0, time.process_time()
        while time.process_time() - began < seconds:
            implementation.update(batches[updates % N_BATCHES], updates)
            updates += 1
        print(json.dumps({"rate": updates / (time.process_time() - began)}), flush=True)


if __name__ == "__main__":
    main()
