"""d3rlpy's IQL, timed when asked to: `benchmark_offline.py` runs this with an interpreter that has d3rlpy.

On batches that are ready; float32, d3rlpy's own networks and settings.
"""

from __future__ import annotations

import sys

import d3rlpy
from answering import answer, one_thread
from d3rlpy.algos import IQLConfig
from d3rlpy_batches import draw_batch

N_BATCHES = 16


def main() -> None:
    """Answer rounds until the input ends."""
    one_thread()
    observation, action, size = (int(argument) for argument in sys.argv[1:])
    algorithm = IQLConfig(batch_size=size).create()
    algorithm.create_impl((observation,), action)
    implementation = algorithm.impl
    assert implementation is not None
    batches = [draw_batch(observation, action, size) for _ in range(N_BATCHES)]
    answer(lambda step: implementation.update(batches[step % N_BATCHES], step), d3rlpy.__version__)


if __name__ == "__main__":
    main()
