"""Fine-tuning against a frozen reference policy: the penalty's coefficient, the early stop, and the reference's file.

The KL to the reference is exact (both policies are normal in the same log ratios, a blended agent's as well), counted
per free dimension of the action, and summed over the decisions of an episode: its mean over decisions times the
decisions of an episode.

References
----------
Ziegler and others (2019), Fine-Tuning Language Models from Human Preferences, section 2.2.
"""

from __future__ import annotations

from pathlib import Path

import torch

from finflow.agent.learners.bcell import PREFIX, SavedAgent
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.networks.policy_ensemble import FrozenPolicy
from finflow.agent.on_policy.on_policy_losses import ProportionalKL
from finflow.config import Config
from finflow.config.online_section import OnlineConfig
from finflow.errors import CheckpointError
from finflow.guard.checkpoint_folder import without_prefix
from finflow.tensor_file import read_tensors
from finflow.training.checkpoints.checkpoint_reader import Checkpoint, check_feature_names, read_best
from finflow.training.data.training_data import TrainingData

REFERENCE = f"{PREFIX}reference/"  # tensors of it in a checkpoint
FAR = 2.0  # times the target: beyond it a check counts toward the early stop
LOOKS = 3  # of them in a row end the phase


class ReferenceControl:
    """Coefficient of the penalty for leaving the reference, and the checks that count toward an early stop."""

    def __init__(self, keys: OnlineConfig, episode_length: int) -> None:
        self._keys, self._length = keys, episode_length
        self.controller = ProportionalKL(keys.reference_beta, keys.reference_target)
        self.looks = 0
        self.stopped = False

    @property
    def beta(self) -> float:
        return self.controller.beta

    def of_episode(self, divergence: float) -> float:
        """Mean KL of a decision, in nats per free dimension, as that of an episode."""
        return divergence * self._length

    def update(self, divergence: float, decisions: int) -> str | None:
        """Adapt the coefficient to the mean KL of a decision, in nats per free dimension, over so many decisions."""
        of_episode, target = self.of_episode(divergence), self._keys.reference_target
        self.controller.update(of_episode, decisions)
        self.looks = self.looks + 1 if not of_episode <= FAR * target else 0
        if self.looks < LOOKS:
            return None
        self.stopped = True
        return (
            f"the KL to the reference is {of_episode:.4g} nats per free dimension and episode, over twice its target "
            f"of {target:g} at {self.looks} looks in a row: the online phase ends here"
        )


def read_reference(config: Config, training_data: TrainingData, device: torch.device) -> FrozenPolicy | None:
    """Read the policy of ``online.reference`` where it is a file: as it was deployed, in its blend.

    Raises CheckpointError if it cannot be read, has other sizes or features than this training's policy, or holds what
    is not a number.
    """
    name = config.online.reference
    if not isinstance(name, Path):
        return None
    path, tensors, facts = (name, *read_tensors(name)) if name.is_file() else read_best(name)[:3]
    saved = SavedAgent.of(path, tensors, facts)
    check_feature_names(path, saved.features, training_data.features)
    if saved.shape != training_data.shape:
        raise CheckpointError(
            f"the reference {path} has networks of other sizes than configured; give one of the same bcell.hidden_dim"
        )
    reference = FrozenPolicy.of(saved.policy(device), training_data.log_volatility)
    if not all(bool(tensor.isfinite().all()) for tensor in reference.state_dict().values()):
        raise CheckpointError(f"the reference {path} contains values that are not finite: its training had failed")
    return reference


def saved_reference(checkpoint: Checkpoint, like: ExpertPolicy) -> FrozenPolicy | None:
    """The policy from a file that a saved training is held to; None where that is the policy as it was handed over.

    Raises CheckpointError if its tensors are those of no policy of that shape.
    """
    tensors = without_prefix(checkpoint.tensors, REFERENCE)
    if not tensors:
        return None
    try:
        return FrozenPolicy.from_tensors(like, tensors)
    except (RuntimeError, ValueError, LookupError) as error:
        raise CheckpointError(f"its reference cannot be used: {error}") from None
