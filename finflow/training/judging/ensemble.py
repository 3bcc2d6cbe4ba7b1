"""Several agents that act as one: by the mean of their portfolios."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from finflow.errors import CheckpointError
from finflow.strategies.strategy import Information, Strategy
from finflow.training.checkpoints.checkpoint_reader import (
    Checkpoint,
    check_free,
    check_same_features,
    policy_of,
    read_checkpoint,
    stored_config,
)
from finflow.training.checkpoints.manifest import write_manifest
from finflow.training.data.training_data import TrainingData, choose_device, prepare
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.judging.held_out import Outcome, judge_held_out
from finflow.training.judging.reading_count import policy_identity

__all__ = ["EnsembleStrategy", "evaluate_ensemble", "judge_ensemble"]

SHARED_SECTIONS = ("market", "features", "env", "objectives")
"""What agents that act as one must have in common: it decides what they observe."""


class EnsembleStrategy:
    """Decides by the mean of what its members decide.

    Each member sees what the ensemble holds. A mean of portfolios is a portfolio.

    Parameters
    ----------
    members : sequence of Strategy
    name : str, optional
    """

    def __init__(self, members: Sequence[Strategy], name: str | None = None) -> None:
        if not members:
            raise ValueError("an ensemble needs a member")
        self.members = tuple(members)
        self.name = name or f"ensemble of {len(self.members)}"

    def decide(self, information: Information) -> NDArray[np.float64]:
        """The members' mean portfolio, (K,)."""
        mean = np.mean([member.decide(information) for member in self.members], axis=0)
        return np.asarray(mean, dtype=np.float64)


def evaluate_ensemble(
    paths: Sequence[Path],
    overrides: Mapping[str, object],
    output: Path,
    part: Path | None = None,
    with_backtest: bool = False,
    *,
    own_folder: bool = False,
) -> Outcome:
    """Evaluate agents that act as one on the test window, each alone beside them.

    Parameters
    ----------
    paths : sequence of Path
        Checkpoint files, or run folders (of which the best by validation, or the latest without one).
    overrides : mapping
        Keys on top of the first checkpoint's configuration; those of training may not differ.
    output : Path
        Where ``reports`` goes, or with ``own_folder`` a folder named after the agents.
    part : Path, optional
        Where in that.
    with_backtest : bool
        Run the sweeps and the stress periods, whatever ``evaluation.sweeps`` says.

    Raises
    ------
    FinflowError
        If an agent cannot be used, or was not trained to see what the others see.
    """
    check_free(overrides)
    checkpoints = [read_checkpoint(path) for path in paths]
    config = stored_config(checkpoints[0], overrides)
    torch.set_num_threads(config.train.threads)
    training_data = prepare(config)
    device = choose_device(config.train.device)
    identities = _identities(checkpoints, device)
    folder = (output / _mark(identities) if own_folder else output) / (part or "")
    outcome = judge_ensemble(training_data, checkpoints, device, folder, with_backtest)
    updates = [checkpoint.counters["update"] for checkpoint in checkpoints]
    write_manifest(folder, training_data, device, checkpoint_updates=updates)
    return outcome


def judge_ensemble(
    training_data: TrainingData,
    checkpoints: Sequence[Checkpoint],
    device: torch.device,
    folder: Path,
    with_backtest: bool = False,
) -> Outcome:
    """Judge agents as one on the test window, each alone beside them, and write the report.

    The test window is read once, by all of them: one line in the ledger of readings.
    """
    _check_alike(checkpoints)
    for checkpoint in checkpoints:
        check_same_features(checkpoint, training_data.features)
    identities = _identities(checkpoints, device)
    policies = [policy_of(checkpoint, device) for checkpoint in checkpoints]
    names = _names(checkpoints)

    def member(number: int) -> Callable[[], AgentStrategy]:
        return lambda: AgentStrategy(policies[number], device, names[number])

    makers = [member(number) for number in range(len(policies))]
    together = EnsembleStrategy([make() for make in makers]).name
    found = [f"{name}: update {one.counters['update']}" for name, one in zip(names, checkpoints, strict=True)]
    return judge_held_out(
        training_data,
        {together: lambda: EnsembleStrategy([make() for make in makers])},
        identities[0] if len(identities) == 1 else _mark(identities, whole=True),
        folder,
        {"agents": found, "decision": "the mean of the agents' portfolios"},
        with_backtest or training_data.config.evaluation.sweeps,
        members=[make() for make in makers],
    )


def _check_alike(checkpoints: Sequence[Checkpoint]) -> None:
    """Agents that act as one see the same market in the same way.

    Raises
    ------
    CheckpointError
        Naming the two that do not.
    """
    first, *others = checkpoints
    base = stored_config(first)
    for other in others:
        config = stored_config(other)
        for section in SHARED_SECTIONS:
            if getattr(config, section) != getattr(base, section):
                raise CheckpointError(
                    f"{other.path} was trained with another {section} section than {first.path}: agents that act as "
                    "one must see the same; leave one of them out"
                )
        if other.facts["market"] != first.facts["market"]:
            raise CheckpointError(f"{other.path} was trained on other prices than {first.path}; leave one of them out")


def _names(checkpoints: Sequence[Checkpoint]) -> list[str]:
    """What each agent is called: by its seed where that tells them apart, and by number otherwise."""
    seeds = [f"seed {stored_config(checkpoint).train.seed}" for checkpoint in checkpoints]
    alike = len(set(seeds)) < len(seeds)
    return [f"agent {number}" for number in range(1, len(seeds) + 1)] if alike else seeds


def _identities(checkpoints: Sequence[Checkpoint], device: torch.device) -> list[str]:
    """What the ledger of readings knows each agent by.

    Raises
    ------
    CheckpointError
        If one is there twice: it would count twice in the mean.
    """
    known: dict[str, Path] = {}
    for checkpoint in checkpoints:
        identity = policy_identity(policy_of(checkpoint, device))
        if identity in known:
            raise CheckpointError(f"{checkpoint.path} is the same agent as {known[identity]}; leave one of them out")
        known[identity] = checkpoint.path
    return list(known)


def _mark(identities: Sequence[str], whole: bool = False) -> str:
    """A hash of the agents, whatever their order."""
    digest = hashlib.sha256("\n".join(["ensemble", *sorted(identities)]).encode()).hexdigest()
    return digest if whole else digest[:8]
