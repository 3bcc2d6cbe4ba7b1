"""Agents that learned from preferences: the networks of a checkpoint, trained on pairs, in a separate file.

The file is a checkpoint without the state of a training: it can be evaluated, traded and used as a reference like any
other, and cannot be trained further. It records its training: the method, its settings, the pairs and the agent before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from finflow.agent.gradient_steps import freeze
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.networks.policy_ensemble import FrozenPolicy, PolicyEnsemble
from finflow.config.preferences_section import PolicyLearningConfig
from finflow.errors import CheckpointError
from finflow.files import read_input
from finflow.guard.checkpoint_folder import MODELS, PRETRAINED as HANDED_OVER, CheckpointFolder
from finflow.guard.state_capture import SEPARATOR
from finflow.preferences.pair_tensors import pair_tensors
from finflow.preferences.pairs import NAME, PairFile
from finflow.preferences.policy_training import LearnedPolicy, Method, learn_policy
from finflow.preferences.segment_paths import SegmentMarket
from finflow.tensor_file import write_tensors
from finflow.training.checkpoints.checkpoint_reader import PREFERENCES, Checkpoint, LoadedAgent, policy_of, policy_part
from finflow.training.checkpoints.run_folder import runtime

KEPT_FACTS = ("config", "config_hash", "market", "shape", "features", "bcell", "log")


class PreferredAgent(NamedTuple):
    """An agent that learned from pairs, to be written."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    learned: LearnedPolicy

    def save(self, path: Path) -> None:
        """Write it as one file, atomically; equal agents make equal bytes.

        Raises OutputError if the file cannot be written.
        """
        write_tensors(path, self.tensors, self.facts)


def learn_preferences(
    agent: LoadedAgent, files: Sequence[Path], pairs: PairFile, method: Method, config: PolicyLearningConfig, seed: int
) -> PreferredAgent:
    """Train the policy of an agent on pairs of the training window of its market; the agent as it is is the reference.

    An agent of several networks learns in all of them, in the blend that was decided on.

    Raises FinflowError if a pair cannot be used, there are too few, or nothing is learned from them.
    """
    data = agent.training_data
    tensors = pair_tensors(SegmentMarket(data.process, data.split.train, data.config.evaluation), pairs)
    device = torch.device("cpu")  # where the pairs are
    policy = policy_of(agent.checkpoint, device)
    if policy.blend is not None and float(policy.blend.confidence) == 0.0:
        before = CheckpointFolder(agent.checkpoint.run_folder / MODELS).path(HANDED_OVER)
        raise CheckpointError(
            f"the agent in {agent.checkpoint.path} holds the portfolio {policy.blend.reference} (the confidence of its "
            "blend is 0): nothing of it can be trained; take its policy before the blend was decided on, as in "
            f"--resume {before}"
        )
    reference = FrozenPolicy.of(policy, data.log_volatility)
    learned = learn_policy(policy, reference, tensors, method, config, seed)
    freeze([policy])
    provenance = {
        **learned.report(),
        "settings": config.model_dump(mode="json"),
        "seed": seed,
        "pairs_sha256": [hashlib.sha256(read_input(file, NAME, CheckpointError)).hexdigest() for file in files],
        "reference_sha256": hashlib.sha256(agent.checkpoint.path.read_bytes()).hexdigest(),
    }
    facts = {name: agent.checkpoint.facts[name] for name in KEPT_FACTS if name in agent.checkpoint.facts}
    facts |= {"training": {"counters": agent.checkpoint.counters}, "runtime": runtime(device)}
    return PreferredAgent(policy_tensors(agent.checkpoint, policy), {**facts, PREFERENCES: provenance}, learned)


def policy_tensors(checkpoint: Checkpoint, policy: ExpertPolicy) -> dict[str, Tensor]:
    """Tensors of a policy that was read from a checkpoint, under their names there."""
    policy_place = policy_part(checkpoint)
    members, blend, prior = (SEPARATOR.join(("bcell", name, "")) for name in ("members", "blend", "prior"))
    if not isinstance(policy, PolicyEnsemble):
        parts = {policy_place: policy}
    else:
        places = [policy_place, *(f"{members}{number}." for number in range(len(policy.members)))]
        parts = dict(zip(places, policy.policies(), strict=False))
    kept = (policy_place, members, blend.removesuffix(SEPARATOR), prior)
    saved = {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith(kept)}
    return saved | {place + name: value for place, part in parts.items() for name, value in part.state_dict().items()}
