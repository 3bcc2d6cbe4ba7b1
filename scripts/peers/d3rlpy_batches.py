"""Random transitions for d3rlpy's algorithms."""

from __future__ import annotations

import torch
from d3rlpy.torch_utility import TorchMiniBatch


def draw_batch(observation: int, action: int, size: int) -> TorchMiniBatch:
    """Of the shapes of ours."""
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
