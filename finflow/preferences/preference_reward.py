"""A reward model as the reward of a decision: the score of the ensemble, in log odds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finflow.env.rewards.reward_context import RewardContext
from finflow.errors import ConfigError
from finflow.preferences.model_files import load_model
from finflow.preferences.reward_model import ScoredDecisions

PREFERENCE = "preference"  # its name in the configuration


class PreferenceReward:
    """Reward of one decision by a reward model from a file: a segment's rewards sum to its score.

    A training learns from it as ``objectives.reward=preference`` with ``objectives.preference.model=FILE``. Several
    models in one sum are rewards of a user's own: ``Desk = PreferenceReward("model.safetensors")``, ``module:Desk``.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged, or holds no reward model of `--mode prefer --learn`.
    """

    horizon = 1
    differentiable = True

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._model = load_model(self.path)

    def __call__(self, context: RewardContext) -> Any:
        """Score of each decision, (batch,): the mean of the ensemble.

        Raises
        ------
        ConfigError
            If the market has other features than the model reads.
        """
        observation, model = context.observation, self._model
        assets, market = (_tensor(observation[name]) for name in ("assets", "market"))
        found, read = (assets.shape[2], market.shape[1]), (model.shape.n_asset_features, model.shape.n_market_features)
        if found != read:
            raise ConfigError(
                f"the reward model {self.path} reads {read[0]} features of assets and {read[1]} of the market, and "
                f"this market has {found[0]} and {found[1]}: learn it with the same features"
            )
        seen = (context.weights, context.filled, context.log_return, context.turnover, context.cost)
        scores = model.to(assets.device)(assets, market, ScoredDecisions(*(_tensor(one) for one in seen)))
        score = scores.mean(dim=0)
        return score.double().numpy() if isinstance(context.weights, np.ndarray) else score


def _tensor(values: Any) -> Tensor:
    """In single precision; of a tensor, with its gradients."""
    return torch.as_tensor(values).float()
