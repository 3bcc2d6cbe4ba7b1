"""d3rlpy's CQL, timed when asked to: `benchmark_online.py` runs this with an interpreter that has d3rlpy.

On batches that are ready; float32, d3rlpy's own networks and settings: two scalar critics, and 10 uniform proposals,
10 of the policy now and 10 of the policy ahead.
"""

from __future__ import annotations

import sys

import d3rlpy
from answering import answer, one_thread
from d3rlpy.algos import CQLConfig
from d3rlpy_batches import draw_batch

N_BATCHES = 16


def main() -> None:
    """Answer rounds until the input ends."""
    one_thread()
    observation, action, size = (int(argument) for argument in sys.argv[1:])
    algorithm = CQLConfig(batch_size=size, n_critics=2, n_action_samples=10).create()
    algorithm.create_impl((observation,), action)
    implementation = algorithm.impl
    assert implementation is not None
    batches = [draw_batch(observation, action, size) for _ in range(N_BATCHES)]
    answer(lambda step: implementation.update(batches[step % N_BATCHES], step), d3rlpy.__version__)


if __name__ == "__main__":
    main()
