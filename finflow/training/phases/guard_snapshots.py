"""Measurements of a learner for the guard, and snapshots of the training's state in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from finflow.agent.batch import States
from finflow.agent.networks.logistic_normal import LogisticNormal, kl_per_dimension
from finflow.agent.networks.policy import ExpertPolicy
from finflow.guard.rollback import Snapshot
from finflow.guard.signals import PolicyProbe, measure, parameter_norms
from finflow.guard.stability import ENTROPY_LIMIT, HEALTHY_SHARE
from finflow.guard.state_capture import without_prefix
from finflow.training.phases.training_state import TrainingState, reseed, rewind, take_snapshot

PROBE, STATE = "probe/", "state/"


class LearnerProbe:
    """Measurements of a learner: its policy on fixed states, and the norms of its parameters.

    Parameters
    ----------
    states : States
        On which the policy is measured.
    """

    def __init__(self, learner: Any, policy: ExpertPolicy, states: States) -> None:
        self.learner = learner
        self.policy = policy
        self.states = states
        self._reference: tuple[int, PolicyProbe | None] = (-1, None)

    @torch.no_grad()
    def decide(self) -> PolicyProbe:
        """The policy as it is, on the fixed states."""
        decision = self.policy(self.states)
        distribution = decision.distribution
        return PolicyProbe(
            distribution.location,
            distribution.log_scale.contiguous(),
            distribution.centre(),
            self.states.weights.contiguous(),
            decision.gate,
        )

    def figures(self, healthy: Snapshot | None) -> dict[str, float]:
        """Figures of the policy on the fixed states, its KL from the last healthy snapshot among them."""
        policy, reference = self.decide(), self.reference(healthy)
        if reference is None:
            return measure(policy)
        held = policy.centre[:, :-1] > 0.0
        listed = None if bool(held.all()) else held
        own, other = (LogisticNormal(one.location, one.log_scale, listed) for one in (policy, reference))
        return measure(policy, kl_per_dimension(own, other).mean())

    def reference(self, healthy: Snapshot | None) -> PolicyProbe | None:
        """The policy of the last healthy snapshot, on the same states."""
        if healthy is None:
            return None
        if self._reference[0] != healthy.update:
            device = self.states.market.device
            parts = {name: t.to(device) for name, t in without_prefix(healthy.tensors, PROBE).items()}
            self._reference = healthy.update, PolicyProbe(**parts)
        return self._reference[1]

    def entropies(self) -> dict[str, float]:
        """Both entropies that the monitor judges, in 0..1, and the band of normal values."""
        figures = measure(self.decide())
        judged = {name: figures[name] for name in ("concentration", "policy_entropy")}
        return judged | {"entropy_band_low": min(HEALTHY_SHARE * ENTROPY_LIMIT, 1.0), "entropy_band_high": 1.0}

    def norms(self) -> dict[str, float]:
        """Norms of the parameters of each network, and of the learner's other tensors."""
        parts = vars(self.learner)
        networks: dict[str, list[Tensor]] = {
            name: list(part.parameters()) for name, part in parts.items() if isinstance(part, nn.Module)
        }
        learned = {name: part for name, part in parts.items() if isinstance(part, Tensor) and part.requires_grad}
        tensors = {name: [part] for name, part in learned.items()}
        return parameter_norms(networks | tensors)


class LearningRateScale:
    """Scales the learning rates of optimisers during their steps, without changing their schedules.

    Parameters
    ----------
    share : callable
        Returns the factor, at most 1.
    """

    def __init__(self, share: Callable[[], float]) -> None:
        self.share = share
        self._rates: list[float] = []

    def attach(self, optimiser: torch.optim.Optimizer) -> None:
        """Scale the steps of an optimiser from here on."""
        optimiser.register_step_pre_hook(self._lower)
        optimiser.register_step_post_hook(self._restore)

    def _lower(self, optimiser: torch.optim.Optimizer, *_: Any) -> None:
        share = self.share()
        if share < 1.0:
            self._rates = [group["lr"] for group in optimiser.param_groups]
            for group in optimiser.param_groups:
                group["lr"] *= share

    def _restore(self, optimiser: torch.optim.Optimizer, *_: Any) -> None:
        for group, rate in zip(optimiser.param_groups, self._rates, strict=False):
            group["lr"] = rate
        self._rates = []


class StateSnapshots:
    """Snapshots of a training's state in memory, and the rollback to them.

    Parameters
    ----------
    seed : int
        Of the training.
    """

    def __init__(self, state: TrainingState, seed: int) -> None:
        self.state = state
        self.seed = seed

    def save(self, probe: LearnerProbe) -> None:
        """Keep a snapshot of the state and of the measurements of its learner."""
        state, memory = self.state, self.state.watch
        tensors, training = take_snapshot(state)
        policy = probe.decide()
        tensors = {f"{STATE}{name}": tensor for name, tensor in tensors.items()}
        tensors |= {f"{PROBE}{field.name}": getattr(policy, field.name) for field in fields(policy)}
        facts = {"training": training, "figures": measure(policy) | probe.norms()}
        memory.manager.save(state.counters.update, tensors, facts | {"monitor": memory.monitor.state()}, memory.score)

    def restore(self, snapshot: Snapshot, quarantine: bool) -> int:
        """Restore a snapshot, with other random numbers from there on.

        Parameters
        ----------
        quarantine : bool
            Whether the replay forgets the transitions since.

        Returns
        -------
        int
            Number of transitions forgotten.
        """
        state, monitor, training = self.state, self.state.watch.monitor, snapshot.state["training"]
        rewind(state, without_prefix(snapshot.tensors, STATE), training)
        forgotten = 0
        if state.learners is not None and quarantine:
            written = [one["written"] for one in training["learners"]["learners"]]
            forgotten = state.learners.forget_after(written)
        reseed(state, self.seed, state.watch.manager.rollback_count)
        monitor.load(snapshot.state["monitor"])
        monitor.update = state.counters.update
        monitor.settle()
        return forgotten
