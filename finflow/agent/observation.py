"""The environment's observations as the states that networks read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from finflow.agent.batch import States


def states_of(observation: Mapping[str, Any], device: torch.device) -> States:
    """An observation of the environment, single or batched, as states."""
    batched = np.ndim(observation["market"]) == 2
    arrays = (np.asarray(observation[name], dtype=np.float32) for name in ("assets", "market", "portfolio"))
    assets, market, portfolio = (torch.as_tensor(array if batched else array[None], device=device) for array in arrays)
    return States(assets, market, portfolio, complete=bool((np.asarray(observation["assets"])[..., -1] > 0.5).all()))
