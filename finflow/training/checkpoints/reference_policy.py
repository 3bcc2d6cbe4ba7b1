"""Learning against a frozen reference policy: fine-tuning of the online phase, and agents that learn from preferences.

The KL to the reference is exact (both policies are normal in the same log ratios, a blended agent's as well), counted
per free dimension of the action, and summed over the decisions of an episode: its mean over decisions times the
decisions of an episode.

An agent that learned from preferences is a checkpoint's, trained on pairs, in a file of its own that cannot be trained
further: docs/reference/preferences.md, Learning without a reward model.

References
----------
Ziegler and others (2019), Fine-Tuning Language Models from Human Preferences, section 2.2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from finflow.agent.learners.bcell import PREFIX
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.networks.policy_ensemble import FrozenPolicy, PolicyEnsemble
from finflow.agent.on_policy.on_policy_losses import ProportionalKL
from finflow.config import Config
from finflow.config.evaluation_sections import PolicyLearningConfig
from finflow.config.learning_sections import OnlineConfig
from finflow.errors import CheckpointError
from finflow.files import read_input
from finflow.guard.checkpoint_folder import MODELS, PRETRAINED as HANDED_OVER, CheckpointFolder
from finflow.preferences.model_training import LearningReport
from finflow.preferences.pairs import NAME, PairFile, SegmentMarket
from finflow.preferences.policy_training import Method, learn_policy
from finflow.preferences.preference_reward import pair_tensors
from finflow.tensor_file import read_tensors, without_prefix
from finflow.training.checkpoints.checkpoint_reader import PREFERENCES, Checkpoint, check_same_features, read_best
from finflow.training.checkpoints.run_folder import runtime
from finflow.training.data.training_data import TrainingData

REFERENCE = f"{PREFIX}reference/"  # tensors of it in a checkpoint
FAR = 2.0  # times the target: beyond it a check counts toward the early stop
LOOKS = 3  # of them in a row end the phase
KEPT_FACTS = ("config", "config_hash", "market", "shape", "features", "bcell", "log")


class ReferenceControl:
    """Coefficient of the penalty for leaving the reference, and the checks that count toward an early stop."""

    def __init__(self, keys: OnlineConfig, episode_length: int) -> None:
        self._keys, self._length = keys, episode_length
        self.controller = ProportionalKL(keys.reference_beta, keys.reference_target)
        self.looks = 0
        self.stopped = False

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
    checkpoint = Checkpoint(name, *read_tensors(name)) if name.is_file() else read_best(name)
    path, saved = checkpoint.path, checkpoint.agent
    check_same_features(checkpoint, training_data.features)
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


def learn_preferences(
    checkpoint: Checkpoint,
    data: TrainingData,
    files: Sequence[Path],
    pairs: PairFile,
    method: Method,
    config: PolicyLearningConfig,
    seed: int,
) -> tuple[dict[str, Tensor], dict[str, Any], LearningReport]:
    """Train the policy of an agent on pairs of the training window of its market; the agent as it is is the reference.

    Returns the tensors and the facts of its file, and what was learned.

    An agent of several networks learns in all of them, in the blend that was decided on.

    Raises FinflowError if a pair cannot be used, there are too few, or nothing is learned from them.
    """
    tensors = pair_tensors(SegmentMarket(data.process, data.split.train, data.config), pairs)
    device = torch.device("cpu")  # where the pairs are
    policy = checkpoint.agent.policy(device)
    if policy.blend is not None and float(policy.blend.confidence) == 0.0:
        before = CheckpointFolder(checkpoint.run_folder / MODELS).path(HANDED_OVER)
        raise CheckpointError(
            f"the agent in {checkpoint.path} holds the portfolio {policy.blend.reference} (the confidence of its "
            "blend is 0): nothing of it can be trained; take its policy before the blend was decided on, as in "
            f"--resume {before}"
        )
    reference = FrozenPolicy.of(policy, data.log_volatility)
    learned = learn_policy(policy, reference, tensors, method, config, seed)
    policy.requires_grad_(False)
    provenance = {
        **learned.report(),
        "settings": config.model_dump(mode="json"),
        "seed": seed,
        "pairs_sha256": [hashlib.sha256(read_input(file, NAME, CheckpointError)).hexdigest() for file in files],
        "reference_sha256": hashlib.sha256(checkpoint.path.read_bytes()).hexdigest(),
    }
    facts = {name: checkpoint.facts[name] for name in KEPT_FACTS if name in checkpoint.facts}
    facts |= {"training": {"counters": checkpoint.counters}, "runtime": runtime(device)}
    return policy_tensors(policy), {**facts, PREFERENCES: provenance}, learned


def policy_tensors(policy: ExpertPolicy) -> dict[str, Tensor]:
    """Tensors of a policy as a checkpoint of an agent has them: those that its decisions depend on."""
    first, *members = policy.policies() if isinstance(policy, PolicyEnsemble) else [policy]
    parts = {"policy/": first, **{f"members/{number}.": one for number, one in enumerate(members)}}
    tensors = {PREFIX + place + name: t for place, part in parts.items() for name, t in part.state_dict().items()}
    if policy.blend is not None:
        tensors[f"{PREFIX}blend"] = policy.blend.to_tensor(torch.device("cpu"))
    return tensors
