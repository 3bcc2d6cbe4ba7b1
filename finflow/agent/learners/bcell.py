"""The B-Cell agent: its networks, optimisers and update in the online phase, and its file."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Generator, Tensor
from torch.nn import ModuleList

from finflow.agent.batch import Batch
from finflow.agent.gradient_steps import (
    SkippingAdam,
    compute_gradients,
    cosine,
    freeze,
    gradient_step,
    make_optimiser,
    polyak_update,
    set_learning_rate,
    step,
    tune,
)
from finflow.agent.learners.acting import ActingAgent, PolicyAverage
from finflow.agent.learners.offline_learner import Networks, OfflineLearner, portfolio_networks
from finflow.agent.learners.soft_actor_critic import TRUNCATION_UPDATES, Metrics, SacLosses, UpdatePoint, sac_losses
from finflow.agent.losses.regularisers import CoverageProposals
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.decision import Blend, no_blend
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.networks.policy_ensemble import deployed_policy
from finflow.agent.precision import autocast_update
from finflow.config import BCellConfig
from finflow.cores import run_both
from finflow.errors import CheckpointError
from finflow.tensor_file import read_tensors, write_tensors

PREFIX = "bcell/"  # of an agent's tensors in a checkpoint of a training
LEARNER = "learner/"  # of those of the offline phase's learner
FORMER_SETTINGS = frozenset({"online_method"})  # of agents that were saved when these belonged to them


class BCell(ActingAgent):
    """Policy of five experts with its critics, trained by soft actor-critic.

    Parameters
    ----------
    shape : NetworkShape
    config : BCellConfig
    generator : Generator
        Draws initial weights, on the CPU.
    device : torch.device
    networks : Networks, optional
        In place of those for portfolios.
    is_blended : bool
        Whether the deployed policy is a blend with a reference, as learning from rollouts decides on one.
    """

    def __init__(
        self,
        shape: NetworkShape,
        config: BCellConfig,
        generator: Generator,
        device: torch.device,
        networks: Networks | None = None,
        is_blended: bool = False,
    ) -> None:
        self.shape = shape
        self.config = config
        self.device, self.advantage_scale = device, 1.0
        parts = networks or portfolio_networks(shape, config, generator)
        self.policy = parts.policy.to(device)
        self.critic = parts.critic.to(device)
        self.target_critic = copy.deepcopy(self.critic)
        self.behaviour_value = parts.value.to(device)
        self.prior = copy.deepcopy(self.policy)
        self.average = PolicyAverage.of(config.averaging, self.policy)
        freeze([self.target_critic, self.behaviour_value, self.prior])
        self.log_alpha = torch.tensor(math.log(config.alpha_init), device=device, requires_grad=True)
        self.policy_optimiser = make_optimiser(self.policy, config.actor_lr, config.actor_weight_decay)
        self.critic_optimiser = make_optimiser(self.critic, config.critic_lr, config.critic_weight_decay)
        self.alpha_optimiser = SkippingAdam([self.log_alpha], lr=config.alpha_lr, fused=True)
        self.log_cql_alpha: Tensor | None = None
        self.cql_optimiser: SkippingAdam | None = None
        if config.cql_mode == "lagrange":
            self.log_cql_alpha = torch.tensor(math.log(config.cql_alpha), device=device, requires_grad=True)
            self.cql_optimiser = SkippingAdam([self.log_cql_alpha], lr=config.critic_lr, fused=True)
        self.blend: Tensor | None = None
        self.members: ModuleList | None = None  # policies of the blocks of the training years, once decided on
        if is_blended:
            self.blend = no_blend(device)
            count = config.rollouts.blocks if config.rollouts.blocks > 1 else 0
            self.members = ModuleList(copy.deepcopy(self.policy) for _ in range(count))
            freeze([self.members])
        self.action_noise = Generator(device=device).manual_seed(0)

    @property
    def deployed(self) -> ExpertPolicy:
        """Policy that is validated and deployed: the average, where there is one, with the policies of the blocks, in
        the blend that was decided on."""
        policy = self.policy if self.average is None else self.average.policy
        return deployed_policy(policy, self.members or (), Blend.from_tensor(self.blend), self.prior)

    def seed_from(self, learner: OfflineLearner) -> None:
        """Copy policy, critics and targets from the offline phase, bit for bit; the optimisers start afresh."""
        self.policy.load_state_dict(learner.policy.state_dict())
        self.critic.load_state_dict(learner.critic.state_dict())
        self.target_critic.load_state_dict(learner.target_critic.state_dict())
        self.behaviour_value.load_state_dict(learner.value.state_dict())
        self.advantage_scale = learner.advantage_scale
        self.begin()

    def begin(self) -> None:
        """Take the policy as it stands for the pretrained one: the anchor's, and the first of the average."""
        self.prior.load_state_dict(self.policy.state_dict())
        self.update_average(0.0)

    def update_average(self, progress: float) -> None:
        """Add the policy to its average, at a share of the online updates."""
        if self.average is not None:
            self.average.update(self.policy, progress)

    def set_learning_rates(self, progress: float, ramp: float | None = None) -> None:
        """Set learning rates for a share of the online updates; ``ramp``, where given, multiplies the policy's."""
        decays = self.config.online_schedule == "cosine"
        if ramp is None and not decays:
            return
        actor, critic = (cosine(rate, progress * decays) for rate in (self.config.actor_lr, self.config.critic_lr))
        set_learning_rate(self.policy_optimiser, actor if ramp is None else actor * ramp)
        set_learning_rate(self.critic_optimiser, critic)

    @autocast_update
    def update_sac(
        self,
        batch: Batch,
        coverage: CoverageProposals | None = None,
        noise: Generator | None = None,
        update: int = TRUNCATION_UPDATES,
        actor: bool = True,
        alpha: float | None = None,
        target: float | None = None,
    ) -> dict[str, Tensor]:
        """Take one step of critics, policy and temperature down their losses: see `soft_actor_critic`.

        Parameters
        ----------
        batch : Batch
        coverage : CoverageProposals, optional
            For CQL, which without them, or where its weight is zero, has no penalty.
        noise : Generator, optional
            Draws the actions; by default the agent's own, which also draws those of `act`.
        update : int
            Updates done before this one; by default as many as truncation needs to reach its full size.
        actor : bool
            Whether the policy learns too: right after the hand-over only the critics do.
        alpha : float, optional
            A scheduled entropy coefficient, in place of the tuned one.
        target : float, optional
            A scheduled target entropy, in place of ``bcell.target_entropy``.

        Returns
        -------
        dict of Tensor, ()
        """
        config = self.config
        point = UpdatePoint(update, alpha, target)
        losses = sac_losses(self, batch, coverage, noise or self.action_noise, point)
        metrics = losses.metrics
        if losses.cql_weight is not None and self.cql_optimiser is not None:
            tune(self.cql_optimiser, losses.cql_weight)
        critic_gradients = partial(compute_gradients, losses.critic, self.critic_optimiser)
        if actor:
            policy_metrics, _ = run_both(partial(self._update_policy, losses), critic_gradients, self.device)
            metrics |= policy_metrics
        else:
            critic_gradients()
        metrics["critic_gradient"] = step(self.critic_optimiser, config.gradient_norm)
        if actor:
            metrics |= losses.decision.figures()
            if alpha is None and config.alpha_mode == "auto":
                tune(self.alpha_optimiser, losses.temperature)
        polyak_update(self.target_critic, self.critic, config.tau)
        return metrics

    def _update_policy(self, losses: SacLosses) -> Metrics:
        """Take one step of the policy."""
        loss, metrics = losses.policy()
        return metrics | {"policy_gradient": gradient_step(loss, self.policy_optimiser, self.config.gradient_norm)}

    def save(self, path: str | Path) -> None:
        """Write the agent as one verified safetensors file."""
        write_tensors(Path(path), dict(self._tensors()), _facts_of(self))

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> BCell:
        """Read an agent from its own file or from any checkpoint of a training.

        From one of the offline phase the networks are taken as the online phase would take them.

        Raises
        ------
        CheckpointError
            If the file is missing, damaged, or holds no B-Cell agent.
        """
        tensors, facts = read_tensors(Path(path))
        stored = from_learner({name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}, facts)
        if "log_alpha" not in stored or "bcell" not in facts:
            raise CheckpointError(f"{path} holds no B-Cell agent; give a checkpoint of a training")
        try:
            shape = _shape_of(facts, largest=max(tensor.numel() for tensor in stored.values()))
            config = stored_settings(facts["bcell"])
            agent = cls(shape, config, Generator(), torch.device(device), is_blended="blend" in stored)
            agent.feature_names = _feature_names_of(facts)
        except (LookupError, TypeError, ValueError, RuntimeError, ValidationError) as error:
            cause = " ".join(str(error).split())[:120]
            raise CheckpointError(f"{path} does not fit this finflow: it describes no agent ({cause})") from error
        with torch.no_grad():
            stored = with_members(stored, "", len(agent.members or ()))
            for name, tensor in agent._tensors():
                if name not in stored or stored[name].shape != tensor.shape:
                    raise CheckpointError(f"{path} does not fit this finflow: {name} is missing or has another shape")
                tensor.copy_(stored[name])
        if agent.members is None:
            agent.prior.load_state_dict(agent.policy.state_dict())
        return agent

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Learned tensors, by the names of training checkpoints."""
        parts = ["policy", "critic", "target_critic", "behaviour_value"]
        if self.members is not None:
            parts += ["members", "prior"]
        for part in parts:
            for name, tensor in getattr(self, part).state_dict().items():
                yield f"{part}/{name}", tensor
        if self.average is not None:
            for name, tensor in self.average.policy.state_dict().items():
                yield f"average/{name}", tensor
        yield "log_alpha", self.log_alpha
        if self.blend is not None:
            yield "blend", self.blend
        if self.log_cql_alpha is not None:
            yield "log_cql_alpha", self.log_cql_alpha


def from_learner(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors of a checkpoint of the offline phase by an agent's names; others as they are.

    The coefficients that are tuned online, and the average, are those that the online phase begins with.
    """
    learner = {name.removeprefix(LEARNER): tensor for name, tensor in tensors.items() if name.startswith(LEARNER)}
    if "log_alpha" in tensors or not learner or "bcell" not in facts:
        return dict(tensors)
    agent = {
        name.replace("value/", "behaviour_value/", 1) if name.startswith("value/") else name: tensor
        for name, tensor in learner.items()
    }
    agent |= {f"average/{name.removeprefix('policy/')}": t for name, t in learner.items() if name.startswith("policy/")}
    for name, key in (("log_alpha", "alpha_init"), ("log_cql_alpha", "cql_alpha")):
        agent[name] = torch.tensor(math.log(max(float(facts["bcell"].get(key, 1.0)), 1e-30)))
    return agent


def with_members(tensors: Mapping[str, Tensor], prefix: str, count: int) -> dict[str, Tensor]:
    """Tensors of an agent whose file is older than its members, the policies of the blocks: its policy in their place.

    The mean of equal policies is the policy. The pretrained policy, no reference at the time, has its place too.

    Parameters
    ----------
    tensors : mapping of str to Tensor
    prefix : str
        Of the agent's tensors.
    count : int
        Of members.
    """
    if any(name.startswith(f"{prefix}members/") for name in tensors):
        return dict(tensors)
    part = "average/" if any(name.startswith(f"{prefix}average/") for name in tensors) else "policy/"
    policy = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix + part)}
    places = ["prior/", *(f"members/{number}." for number in range(count))]
    added = {
        prefix + place + name.removeprefix(prefix + part): tensor.clone()
        for place in places
        for name, tensor in policy.items()
    }
    return {**added, **tensors}


def stored_settings(facts: Mapping[str, Any]) -> BCellConfig:
    """Settings of an agent from a file, without those that are no longer an agent's; a TypeError for no mapping."""
    if not isinstance(facts, Mapping):
        raise TypeError("its settings are not a mapping")
    return BCellConfig(**{name: value for name, value in facts.items() if name not in FORMER_SETTINGS})


def _facts_of(agent: BCell) -> dict[str, Any]:
    """Facts of an agent's own file: its sizes, settings, and features where they are known."""
    facts = {"shape": agent.shape._asdict(), "bcell": agent.config.model_dump(mode="json")}
    return facts if agent.feature_names is None else {**facts, "features": agent.feature_names}


def _feature_names_of(facts: Mapping[str, Any]) -> dict[str, list[str]] | None:
    """Names of the features that a file's agent reads; None where it does not say them, a ValueError for none."""
    names = facts.get("features")
    if names is None:
        return None
    read = {kind: names[kind] for kind in ("assets", "market")}
    if not all(type(of_kind) is list and all(type(name) is str for name in of_kind) for of_kind in read.values()):
        raise ValueError("its features have no names")
    return read


def _shape_of(facts: dict[str, Any], largest: int) -> NetworkShape:
    """Sizes of an agent's networks; a size over ``largest``, or that is not a count, is a ValueError."""
    sizes = NetworkShape.from_facts(facts["shape"])
    if not all(type(size) is int and 0 < size <= largest for size in sizes[:3]):
        raise ValueError("its sizes are invalid")
    return sizes
