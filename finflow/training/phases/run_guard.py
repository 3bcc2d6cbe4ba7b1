"""Guard of a run: its signals after every update, and its responses to alarms.

A rollback restores everything that learning depends on, with the progress of the phase, so that lost updates are done
again. Updates are counted on, so that the logs go forward. The best score stays: its checkpoint is on disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from finflow.agent.batch import Batch, States
from finflow.agent.gradient_steps import SkippingAdam
from finflow.agent.networks.distributions import LogisticNormal, kl_per_dimension
from finflow.agent.networks.policy import ExpertPolicy
from finflow.arrays import BoolArray, FloatArray
from finflow.config import Config
from finflow.guard.checkpoint_folder import capture, restore
from finflow.guard.rollback import LOWER, STOP, Snapshot
from finflow.guard.signals import ALARM, INFO, WARNING, Event, PolicyProbe, crossed, parameter_norms, policy_figures
from finflow.guard.stability import CRITIC, ENTROPY_LIMIT, HEALTHY_SHARE
from finflow.tensor_file import without_prefix
from finflow.training.data.replay import MarketTensors, Transitions
from finflow.training.phases.training_state import TrainingState, reseed, rewind, rewindable

PROBE, STATE = "probe/", "state/"
PROBE_STATES = 64  # recorded states that the guard checks the policy on


class LearnerProbe:
    """Measurements of a learner: its policy on fixed states, and the norms of its parameters."""

    def __init__(self, learner: Any, policy: ExpertPolicy, states: States) -> None:
        self.learner = learner
        self.policy = policy
        self.states = states

    @torch.no_grad()
    def decide(self) -> PolicyProbe:
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
        policy, device = self.decide(), self.states.market.device
        if healthy is None:
            return policy_figures(policy)
        saved = without_prefix(healthy.tensors, PROBE)
        reference = PolicyProbe(**{name: tensor.to(device) for name, tensor in saved.items()})
        held = policy.centre[:, :-1] > 0.0
        listed = None if bool(held.all()) else held
        own, other = (LogisticNormal(one.location, one.log_scale, listed) for one in (policy, reference))
        return policy_figures(policy, kl_per_dimension(own, other).mean())

    def entropies(self) -> dict[str, float]:
        """Both entropies that the monitor judges, in 0..1, and the band of normal values."""
        figures = policy_figures(self.decide())
        judged = {name: figures[name] for name in ("concentration", "policy_entropy")}
        return judged | {"entropy_band_low": min(HEALTHY_SHARE * ENTROPY_LIMIT, 1.0), "entropy_band_high": 1.0}

    def norms(self) -> dict[str, float]:
        """Norms of the parameters of each network, and of the learner's other tensors."""
        parts = {name: part for name, part in vars(self.learner).items() if isinstance(part, nn.Module | Tensor)}
        groups = {
            name: list(part.parameters()) if isinstance(part, nn.Module) else [part]
            for name, part in parts.items()
            if isinstance(part, nn.Module) or part.requires_grad
        }
        return parameter_norms(groups)


def probe_states(store: Transitions, market: MarketTensors) -> States:
    """Recorded states, evenly spaced in the data, on which the guard measures the policy."""
    places = torch.linspace(0, len(store) - 1, min(PROBE_STATES, len(store))).round().long().to(store.device)
    rows = store.rows(places)
    return market.states(rows["bar"], rows["portfolio"])


def save_snapshot(state: TrainingState, probe: LearnerProbe) -> None:
    """Keep a snapshot of the state and of the measurements of its learner in memory."""
    memory = state.watch
    tensors, training = capture(rewindable(state))
    policy = probe.decide()._asdict()
    tensors = {f"{STATE}{name}": tensor for name, tensor in tensors.items()}
    tensors |= {f"{PROBE}{name}": tensor for name, tensor in policy.items()}
    facts = {"training": training, "figures": policy_figures(PolicyProbe(**policy)) | probe.norms()}
    memory.manager.save(state.counters.update, tensors, facts | {"monitor": capture(memory.monitor)[1]}, memory.score)


def restore_snapshot(state: TrainingState, seed: int, snapshot: Snapshot, quarantine: bool) -> int:
    """Restore a snapshot, with other random numbers from there on; with ``quarantine`` replays forget what came since.

    Returns the number of transitions forgotten.
    """
    monitor, training = state.watch.monitor, snapshot.state["training"]
    rewind(state, without_prefix(snapshot.tensors, STATE), training)
    forgotten = 0
    if state.learners is not None and quarantine:
        written = [one["written"] for one in training["learners"]["learners"]]
        forgotten = state.learners.forget_after(written)
    reseed(state, seed, state.watch.manager.rollback_count)
    restore(monitor, {}, snapshot.state["monitor"])
    monitor.update = state.counters.update
    monitor.settle()
    return forgotten


REDUCIBLE = frozenset({"critic_loss", "actor_loss", "critic_gradient", "policy_gradient", "reward", "sharpe"})
"""Signals for which lower learning rates may be enough."""

REWARD_LIMIT = 1000.0  # magnitude of a scaled reward above which it is not learned from
TRIGGERS = {"critic": "critic_loss", "actor": "actor_loss", "reward": "reward", "kl": "kl"}


class RunGuard:
    """Guards one run; does nothing where ``guard.enabled`` is false."""

    def __init__(
        self,
        config: Config,
        state: TrainingState,
        announce: Callable[[Event], None],
        abort: Callable[[str, Sequence[Event]], NoReturn],
    ) -> None:
        self.config = config
        self.state = state
        self.memory = state.watch
        self.enabled = config.guard.enabled
        self._announce, self._abort = announce, abort
        self._reward_scale, self._policy_moves_far = 1.0, False

    def begin(self, probe: LearnerProbe, reward_scale: float, moves_far: bool = False) -> None:
        """Watch a learner from here on.

        ``moves_far``: its policy is meant to, so that it is not compared with the last healthy one.
        """
        self.probe, self._reward_scale, self._policy_moves_far = probe, reward_scale, moves_far
        self.guard_also(probe.learner)
        counters, memory = self.state.counters, self.memory
        if self.enabled and memory.monitor.phase != counters.phase:
            memory.monitor.begin_phase(counters.phase, counters.update)
            memory.manager.begin_phase(counters.update)
            memory.block = {}
            save_snapshot(self.state, self.probe)

    def guard_also(self, learner: Any, rates: Callable[[], float] | None = None) -> None:
        """Have a learner's optimisers skip steps that are not finite, and lower their learning rates after alarms.

        ``rates``: the share that they are lowered to, if it is not the guard's own.
        """
        for optimiser in (part for part in vars(learner).values() if isinstance(part, SkippingAdam)):
            optimiser.skip_nonfinite = self.enabled
            if self.enabled:
                optimiser.share = rates or (lambda: self.memory.manager.share)

    def settle(self) -> None:
        """Hold alarms back for a while after an intended change."""
        if self.enabled:
            self.memory.monitor.update = self.state.counters.update
            self.memory.monitor.settle()
            self.memory.manager.settle()

    def accepts(self, batch: Batch) -> bool:
        """Return True for a batch with finite rewards, actions and portfolios, and rewards within their limit.

        Features are the same tensors at every update: where they were not finite, neither would the gradient be.
        """
        if not self.enabled:
            return True
        rewards = batch.outcomes.rewards.abs().max()
        parts = torch.stack([rewards, batch.actions.sum(), batch.both.portfolio.sum()]).tolist()
        return parts[0] <= REWARD_LIMIT and math.isfinite(sum(parts))

    def learnable(self, rewards: FloatArray) -> BoolArray:
        """Return True for the environments' rewards that the replay may keep, and check all of them."""
        kept = self.within_limit(rewards)
        if self.enabled:
            scaled = rewards / self._reward_scale
            self.memory.note("reward", float(scaled[kept].mean()) if kept.any() else 0.0)
            self._report(self.memory.monitor.check_rewards(scaled, refused=int((~kept).sum())))
        return kept

    def within_limit(self, rewards: FloatArray) -> BoolArray:
        """Return True for rewards that are finite and within their limit; for all where nothing is guarded."""
        if not self.enabled:
            return np.ones(rewards.shape, dtype=np.bool_)
        scaled = rewards / self._reward_scale
        return np.isfinite(scaled) & (np.abs(scaled) <= REWARD_LIMIT)

    def after_update(self, metrics: Mapping[str, Tensor], steps: int = 1) -> bool:
        """Check an update's figures, and at every check interval the policy and the parameters.

        ``metrics``: empty for an update that was skipped. ``steps``: gradient steps that were counted at once.
        """
        if not self.enabled:
            return False
        counters, memory = self.state.counters, self.memory
        figures = dict(zip(metrics, torch.stack(list(metrics.values())).tolist(), strict=True)) if metrics else {}
        events = memory.check_update(counters.update, figures)
        if crossed(counters.phase_update, steps, self.config.guard.stability.check_interval):
            events += self._check()
        self._report(events)
        alarms = [*(Event(**row) for row in memory.pending), *(event for event in events if event.level == ALARM)]
        memory.pending = []
        if memory.manager.advance(counters.update, bool(alarms)):
            self.say(INFO, "learning rate", f"back at {memory.manager.share:g} of its schedule")
        if alarms:
            return self._respond(alarms)
        if crossed(counters.phase_update, steps, memory.manager.config.save_interval):
            save_snapshot(self.state, self.probe)
        return False

    def after_validation(self, sharpe: float, score: float) -> None:
        """Check the Sharpe ratio of a validation; its score ranks the next snapshots."""
        if not self.enabled:
            return
        self.memory.score = score if np.isfinite(score) else None
        events = self.memory.monitor.check_sharpe(sharpe)
        self._report(events)
        self.memory.pending = [event.row() for event in events if event.level == ALARM]

    def _check(self) -> list[Event]:
        monitor, manager = self.memory.monitor, self.memory.manager
        healthy = manager.last_healthy
        before = healthy.state["figures"] if healthy is not None else {}
        events = monitor.check_parameters(self.probe.norms(), before)
        if any(event.level == ALARM for event in events):
            return events
        figures = self.probe.figures(healthy)
        events += monitor.check_policy(figures, {} if self._policy_moves_far else before)
        block = self.memory.collect()
        should, reason = manager.should_rollback(
            loss=block.get("critic"),
            actor_loss=block.get("actor"),
            reward=block.get("reward"),
            kl=None if self._policy_moves_far else figures["kl"],
        )
        if should and not monitor.quiet:
            signal = min((TRIGGERS[name] for name in manager.triggers.confirmed), key=lambda name: name in REDUCIBLE)
            events.append(Event(self.state.counters.update, self.state.counters.phase, ALARM, signal, reason))
        return events

    def _respond(self, alarms: Sequence[Event]) -> bool:
        memory, counters = self.memory, self.state.counters
        manager, signals = memory.manager, {event.signal for event in alarms}
        answer = manager.respond(gently=signals <= REDUCIBLE)
        if answer == STOP:
            self._stop(alarms)
        memory.block = {}
        if answer == LOWER:
            memory.monitor.settle()
            self.say(WARNING, "learning rate", f"lowered to {manager.share:g} of its schedule")
            return False
        snapshot = manager.take(counters.update)
        forgotten = restore_snapshot(self.state, self.config.train.seed, snapshot, quarantine=not signals <= CRITIC)
        text = (
            f"{len(signals)} alarm(s), {', '.join(sorted(signals))}: back to update {snapshot.update}, learning rates "
            f"at {manager.share:g} of their schedules"
        )
        self.say(WARNING, "rollback", text + (f", {forgotten} transitions forgotten" if forgotten else ""))
        return True

    def _stop(self, alarms: Sequence[Event]) -> NoReturn:
        manager, counters = self.memory.manager, self.state.counters
        if manager.last_healthy is not None:
            restore_snapshot(self.state, self.config.train.seed, manager.last_healthy, quarantine=True)
        reason = (
            f"training stopped at update {counters.update} of the {counters.phase} phase: "
            f"{'; '.join(event.message for event in alarms)}, after {manager.phase_rollbacks} rollback(s)"
        )
        self.say(ALARM, "stop", reason)
        self._abort(reason, alarms)

    def say(self, level: str, signal: str, message: str) -> Event:
        event = Event(self.state.counters.update, self.state.counters.phase, level, signal, message)
        self._announce(event)
        return event

    def _report(self, events: Sequence[Event]) -> None:
        for event in events:
            self._announce(event)
