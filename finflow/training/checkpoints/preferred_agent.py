"""Agents that learned from preferences: the networks of a checkpoint, trained on pairs, in a separate file.

The file is a checkpoint without the state of a training: it can be evaluated, traded and used as a reference like any
other, and cannot be trained further. It records its training: the method, its settings, the pairs and the agent before.
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
from finflow.config.preferences_section import PolicyLearningConfig
from finflow.errors import CheckpointError
from finflow.files import read_input
from finflow.guard.checkpoint_folder import MODELS, PRETRAINED as HANDED_OVER, CheckpointFolder
from finflow.preferences.pair_tensors import pair_tensors
from finflow.preferences.pairs import NAME, PairFile, SegmentMarket
from finflow.preferences.policy_training import LearnedPolicy, Method, learn_policy
from finflow.training.checkpoints.checkpoint_reader import PREFERENCES, Checkpoint, policy_of
from finflow.training.checkpoints.run_folder import runtime
from finflow.training.data.training_data import TrainingData

KEPT_FACTS = ("config", "config_hash", "market", "shape", "features", "bcell", "log")


def learn_preferences(
    checkpoint: Checkpoint,
    data: TrainingData,
    files: Sequence[Path],
    pairs: PairFile,
    method: Method,
    config: PolicyLearningConfig,
    seed: int,
) -> tuple[dict[str, Tensor], dict[str, Any], LearnedPolicy]:
    """Train the policy of an agent on pairs of the training window of its market; the agent as it is is the reference.

    Returns the tensors and the facts of its file, and what was learned.

    An agent of several networks learns in all of them, in the blend that was decided on.

    Raises FinflowError if a pair cannot be used, there are too few, or nothing is learned from them.
    """
    tensors = pair_tensors(SegmentMarket(data.process, data.split.train, data.config.evaluation), pairs)
    device = torch.device("cpu")  # where the pairs are
    policy = policy_of(checkpoint, device)
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
