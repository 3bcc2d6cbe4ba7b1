"""d3rlpy's IQL or CQL, timed when asked to: `benchmark_learners.py` runs this with an interpreter that has d3rlpy.

On batches of random numbers that are ready; float32, d3rlpy's own networks and settings. CQL has two scalar critics,
and 10 uniform proposals, 10 of the policy now and 10 of the policy ahead.
"""

from __future__ import annotations

import sys

import d3rlpy
import torch
from answering import answer, one_thread
from d3rlpy.algos import CQLConfig, IQLConfig
from d3rlpy.torch_utility import TorchMiniBatch

N_BATCHES = 16


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
    one_thread()
    observation, action, size = (int(argument) for argument in sys.argv[2:])
    if sys.argv[1] == "cql":
        algorithm = CQLConfig(batch_size=size, n_critics=2, n_action_samples=10).create()
    else:
        algorithm = IQLConfig(batch_size=size).create()
    algorithm.create_impl((observation,), action)
    implementation = algorithm.impl
    assert implementation is not None
    batches = [draw_batch(observation, action, size) for _ in range(N_BATCHES)]
    answer(lambda step: implementation.update(batches[step % N_BATCHES], step), d3rlpy.__version__)


if __name__ == "__main__":
    main()
