"""A reward model as the reward of a decision: the score of the ensemble, in log odds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finflow.agent.networks.critic import NetworkShape
from finflow.env.reward_context import RewardContext
from finflow.errors import CheckpointError, ConfigError
from finflow.preferences.model_report import LearnedModel
from finflow.preferences.reward_model import OutcomeUnits, RewardModel, ScoredDecisions
from finflow.tensor_file import read_tensors, write_tensors

KIND = "finflow reward model"


def save_model(path: Path, learned: LearnedModel, features: tuple[str, ...]) -> None:
    """Write a reward model as one file, atomically; equal models make equal bytes.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    model = learned.model
    state = {
        "kind": KIND,
        "shape": model.shape._asdict(),
        "units": model.units._asdict(),
        "members": model.members,
        "features": list(features),
        "report": learned.report(),
    }
    write_tensors(path, model.state_dict(), state)


def load_model(path: Path) -> RewardModel:
    """Read and verify a file written by `save_model`.

    Raises
    ------
    CheckpointError
        If it is missing, damaged, or holds something else.
    """
    tensors, state = read_tensors(path)
    if state.get("kind") != KIND:
        raise CheckpointError(f"{path} holds no reward model; make one with --mode prefer --learn")
    try:
        shape, units = NetworkShape.from_facts(state["shape"]), OutcomeUnits(**state["units"])
        model = RewardModel(shape, int(state["members"]), units, torch.Generator())
        model.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(f"{path} holds a reward model of another finflow ({type(error).__name__})") from None
    return model.eval().requires_grad_(False)


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
