"""How a run is guarded: what the monitor is shown, and what is done when it gives an alarm.

A rollback takes back everything that learning depends on, and how far the phase has come, so that what was lost is done
again; updates are counted on, so that the logs go forward. The best score stays: its checkpoint is on disk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from finflow.agent.batch import Batch, States
from finflow.agent.gradient_steps import SkippingAdam
from finflow.agent.networks.policy import ExpertPolicy
from finflow.errors import TrainingError
from finflow.files import write_atomically
from finflow.guard.guard_state import Watch
from finflow.guard.rollback import LOWER, STOP, Snapshot
from finflow.guard.signals import ALARM, INFO, WARNING, Event, PolicyProbe, lengths, measure
from finflow.guard.stability import CRITIC
from finflow.guard.state_capture import capture, restore
from finflow.training.phases.training_state import TrainingState, WorldPosition, reseed

if TYPE_CHECKING:
    from finflow.training.phases.training_run import TrainingRun

GENTLE = frozenset({"critic_loss", "actor_loss", "critic_gradient", "policy_gradient", "reward", "sharpe"})
"""Signals that lower learning rates may mend."""

SUSPECTS = {"critic": "critic_loss", "actor": "actor_loss", "reward": "reward", "kl": "kl"}
OWN = ("watch", "world")  # fields of the state that a snapshot does not hold, or not as they are
PROBE = "probe/"
STATE = "state/"
REPORT = "guard-report.md"
ADVICE = {
    "non_finite": "look for prices or rewards that are no numbers, or absurd ones, in the data",
    "q": "lower bcell.critic_lr or bcell.gamma, or raise bcell.cql_alpha",
    "critic_loss": "lower bcell.critic_lr, or raise train.online_batch_size",
    "critic_gradient": "lower bcell.critic_lr or bcell.gradient_norm",
    "actor_loss": "lower bcell.actor_lr",
    "policy_gradient": "lower bcell.actor_lr or bcell.gradient_norm",
    "kl": "lower bcell.actor_lr, or raise guard.rollback.kl_threshold",
    "concentration": "raise bcell.target_entropy, or set env.max_weight",
    "gate": "lower bcell.actor_lr, or raise guard.stability.gate_limit",
    "turnover": "raise objectives.lambda_turn, or set env.max_turnover",
    "reward": "raise train.offline_share_end or bcell.cql_alpha",
    "sharpe": "raise train.offline_share_end or bcell.cql_alpha",
    "policy": "lower bcell.actor_lr",
    "frozen": "lower bcell.actor_lr, or objectives.lambda_turn",
}


class RunGuard:
    """Guards one run; does nothing where ``guard.enabled`` is false.

    Parameters
    ----------
    run : TrainingRun
        Its state's ``watch`` is what the guard knows.
    """

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        self.enabled = run.config.guard.enabled
        self.interval = run.config.guard.stability.check_interval
        self._scale = 1.0
        self._policy: ExpertPolicy | None = None
        self._states: States | None = None
        self._reference: tuple[int, PolicyProbe | None] = (-1, None)
        self._learner: Any = None
        self._rates: list[float] = []
        self._far = False

    @property
    def watch(self) -> Watch:
        """What the guard knows, a field of the training's state."""
        return self.run.state.watch

    @property
    def rollbacks(self) -> int:
        """Rollbacks so far, over both phases."""
        return self.watch.manager.rollback_count

    def begin(self, learner: Any, policy: ExpertPolicy, states: States, reward_scale: float) -> None:
        """Take over a phase, at its beginning or where it goes on.

        Parameters
        ----------
        learner : OfflineLearner or BCell
            Its networks and optimisers are watched.
        policy : ExpertPolicy
        states : States
            On which the policy is looked at.
        reward_scale : float
            Of the rewards that environments give.
        """
        self._learner, self._policy, self._states, self._scale = learner, policy, states, reward_scale
        self._far = False
        for optimiser in [part for part in vars(learner).values() if isinstance(part, torch.optim.Optimizer)]:
            if isinstance(optimiser, SkippingAdam):
                optimiser.skip_nonfinite = self.enabled
            if self.enabled:
                optimiser.register_step_pre_hook(self._lower)
                optimiser.register_step_post_hook(self._raise)
        counters, watch = self.run.state.counters, self.watch
        if self.enabled and watch.monitor.phase != counters.phase:
            watch.monitor.begin_phase(counters.phase, counters.update)
            watch.manager.begin_phase(counters.update)
            watch.block = {}
            self._save()

    def travel(self, far: bool, begins: bool) -> None:
        """Whether the policy is meant to move far now: then how it differs from the last healthy one is no alarm.

        Parameters
        ----------
        far : bool
        begins : bool
            Whether this update is the first of those.
        """
        self._far = far
        if far and begins:
            self.settle()

    def settle(self) -> None:
        """No alarms for a while: something is changed on purpose."""
        if self.enabled:
            self.watch.monitor.update = self.run.state.counters.update
            self.watch.monitor.settle()
            self.watch.manager.settle()

    def accepts(self, batch: Batch) -> bool:
        """Whether a batch may be learned from: rewards, actions and portfolios finite, no reward beyond reason.

        Features are the same tensors at every update: where they were not finite, neither would the gradient be.
        """
        if not self.enabled:
            return True
        limit = self.run.config.guard.stability.reward_limit
        parts = torch.stack([batch.rewards.abs().max(), batch.actions.sum(), batch.both.portfolio.sum()]).tolist()
        return parts[0] <= limit and math.isfinite(sum(parts))

    def learnable(self, rewards: NDArray[np.float64]) -> NDArray[np.bool_] | None:
        """Which of the environments' rewards may be remembered; None for all."""
        if not self.enabled:
            return None
        scaled = rewards / self._scale
        monitor = self.watch.monitor
        kept = monitor.learnable(scaled)
        outliers = monitor.check_rewards(scaled)
        self.watch.note("reward", float(scaled[kept].mean()) if kept.any() else 0.0)
        self._tell(monitor.outliers_seen(outliers, ~kept))
        return None if kept.all() else kept

    def after_update(self, metrics: Mapping[str, Tensor]) -> bool:
        """Look at an update's figures, and now and then at the policy and the parameters.

        Parameters
        ----------
        metrics : mapping of Tensor, ()
            Empty for an update that was skipped.

        Returns
        -------
        bool
            Whether the state was taken back.
        """
        if not self.enabled:
            return False
        counters, watch = self.run.state.counters, self.watch
        monitor, manager = watch.monitor, watch.manager
        if metrics:
            found = dict(zip(metrics, torch.stack(list(metrics.values())).tolist(), strict=True))
            if "policy_loss" in found:
                found["actor_loss"] = found.pop("policy_loss")
            events = monitor.observe(counters.update, found)
            for name, key in (("critic", "q_loss"), ("actor", "actor_loss")):
                if key in found:
                    watch.note(name, found[key])
        else:
            monitor.update = counters.update
            events = monitor.check_skip("a batch")
        if counters.phase_update % self.interval == 0:
            events += self._look()
        self._tell(events)
        alarms = [*(Event(**row) for row in watch.pending), *(event for event in events if event.level == ALARM)]
        watch.pending = []
        if manager.advance(counters.update, bool(alarms)):
            self._tell([self._event(INFO, "learning rate", f"back at {manager.share:g} of its schedule")])
        if alarms:
            return self._respond(alarms)
        if manager.due(counters.phase_update):
            self._save()
        return False

    def after_validation(self, sharpe: float, score: float) -> None:
        """Note what the policy is worth on the validation window."""
        if not self.enabled:
            return
        self.watch.score = score if np.isfinite(score) else None
        events = self.watch.monitor.check_sharpe(sharpe)
        self._tell(events)
        self.watch.pending = [event.row() for event in events if event.level == ALARM]

    def _look(self) -> list[Event]:
        """The parameters, the policy on fixed states, and what was measured since the last look."""
        watch = self.watch
        monitor, manager = watch.monitor, watch.manager
        healthy = manager.last_healthy
        before = healthy.state["figures"] if healthy is not None else {}
        events = monitor.check_parameters(self._lengths(), before)
        if any(event.level == ALARM for event in events):
            return events
        figures = measure(self._probe(), self._reference_probe(healthy))
        events += monitor.check_policy(figures, {} if self._far else before)
        block = watch.collect()
        should, reason = manager.should_rollback(
            loss=block.get("critic"),
            actor_loss=block.get("actor"),
            reward=block.get("reward"),
            kl=None if self._far else figures["kl"],
        )
        if should and not monitor.quiet:
            signals = [SUSPECTS[name] for name, count in manager.suspects.items() if count > 1]
            events.append(self._event(ALARM, min(signals, key=lambda name: name in GENTLE), reason))
        return events

    def _respond(self, alarms: Sequence[Event]) -> bool:
        """Climb the ladder by one rung."""
        watch, counters = self.watch, self.run.state.counters
        signals = {event.signal for event in alarms}
        answer = watch.manager.respond(counters.update, gently=signals <= GENTLE)
        if answer == STOP:
            self._stop(alarms)
        watch.block = {}
        if answer == LOWER:
            watch.monitor.settle()
            self._tell([self._event(WARNING, "learning rate", f"lowered to {watch.manager.share:g} of its schedule")])
            return False
        snapshot = watch.manager.take(counters.update)
        forgotten = self._restore(snapshot, quarantine=not signals <= CRITIC)
        words = f"{len(signals)} alarm(s), {', '.join(sorted(signals))}: back to update {snapshot.update}"
        words += f", learning rates at {watch.manager.share:g} of their schedules"
        words += f", {forgotten} transitions forgotten" if forgotten else ""
        self._tell([self._event(WARNING, "rollback", words)])
        return True

    def _restore(self, snapshot: Snapshot, quarantine: bool) -> int:
        """Put a snapshot back and draw other random numbers from there; returns the transitions forgotten."""
        state, watch = self.run.state, self.watch
        counters = state.counters
        kept = {name: getattr(counters, name) for name in ("update", "best_score", "best_update")}
        before = counters.phase_update
        shown = _without_memory(state)
        own = {name.removeprefix(STATE): t for name, t in snapshot.tensors.items() if name.startswith(STATE)}
        restore(shown, own, snapshot.state["training"])
        for field in fields(state):
            if field.name not in OWN:
                setattr(state, field.name, getattr(shown, field.name))
        for name, value in kept.items():
            setattr(counters, name, value)
        forgotten = 0
        if state.world is not None and quarantine:
            forgotten = state.world.replay.forget_after(snapshot.state["training"]["world"]["written"])
        reseed(state, self.run.config.train.seed, watch.manager.rollback_count)
        watch.monitor.load(snapshot.state["monitor"])
        watch.monitor.update = counters.update
        watch.monitor.settle()
        self.run.progress.advance(counters.phase_update - before)
        return forgotten

    def _stop(self, alarms: Sequence[Event]) -> None:
        """Put the last healthy state back and on disk, and stop with a report."""
        run, watch = self.run, self.watch
        healthy = watch.manager.last_healthy
        if healthy is not None:
            self._restore(healthy, quarantine=True)
        signals = sorted({event.signal for event in alarms})
        tried = watch.manager.phase_rollbacks
        advice = list(
            dict.fromkeys(ADVICE.get(signal, "lower bcell.actor_lr and bcell.critic_lr") for signal in signals)
        )
        said = f"training stopped at update {run.state.counters.update} of the {run.state.counters.phase} phase: "
        said += f"{'; '.join(event.message for event in alarms)}, after {tried} rollback(s)"
        self._tell([self._event(ALARM, "stop", said)])
        run.checkpoint()
        lines = ["# Why the guard stopped this training", "", f"{said}.", "", "What to try:", ""]
        lines += [f"- {line}" for line in advice]
        lines += ["", "Best and latest checkpoint are of healthy states. `events.jsonl` has all that the guard saw."]
        statistics = watch.manager.get_statistics()
        lines += ["", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in statistics.items())]
        write_atomically(run.folder / REPORT, "\n".join(lines) + "\n")
        raise TrainingError(f"{said}; {', or '.join(advice)}; {run.folder / REPORT} says more")

    def _save(self) -> None:
        """Keep a snapshot in memory."""
        watch = self.watch
        tensors, training = capture(_without_memory(self.run.state))
        probe = self._probe()
        held = {f"{STATE}{name}": tensor for name, tensor in tensors.items()}
        held |= {f"{PROBE}{name}": getattr(probe, name) for name in ("location", "log_scale", "centre", "held", "gate")}
        figures = measure(probe, None) | self._lengths()
        state = {"training": training, "figures": figures, "monitor": watch.monitor.state()}
        watch.manager.save(self.run.state.counters.update, held, state, watch.score)

    @torch.no_grad()
    def _probe(self) -> PolicyProbe:
        """The policy as it is, on the fixed states."""
        if self._policy is None or self._states is None:
            raise ValueError("the guard looks at no policy: begin() comes first")
        decision = self._policy(self._states)
        distribution = decision.distribution
        return PolicyProbe(
            distribution.location,
            distribution.log_scale.contiguous(),
            distribution.centre(),
            self._states.weights.contiguous(),
            decision.gate,
        )

    def _reference_probe(self, healthy: Snapshot | None) -> PolicyProbe | None:
        """The policy of the last healthy snapshot, on the same states."""
        if healthy is None:
            return None
        if self._reference[0] != healthy.update:
            device = self.run.device
            parts = {
                name.removeprefix(PROBE): t.to(device) for name, t in healthy.tensors.items() if name.startswith(PROBE)
            }
            self._reference = healthy.update, PolicyProbe(**parts)
        return self._reference[1]

    def _lengths(self) -> dict[str, float]:
        """Of the parameters of each network, and of the learner's other tensors."""
        groups = {
            name: list(part.parameters()) for name, part in vars(self._learner).items() if isinstance(part, nn.Module)
        }
        return lengths(
            groups | {name: [part] for name, part in vars(self._learner).items() if isinstance(part, Tensor)}
        )

    def _lower(self, optimiser: torch.optim.Optimizer, *_: Any) -> None:
        """Before a step: the learning rate's share that the guard allows."""
        share = self.watch.manager.share
        if share < 1.0:
            self._rates = [group["lr"] for group in optimiser.param_groups]
            for group in optimiser.param_groups:
                group["lr"] *= share

    def _raise(self, optimiser: torch.optim.Optimizer, *_: Any) -> None:
        """After it: the schedule's own learning rate again."""
        for group, rate in zip(optimiser.param_groups, self._rates, strict=False):
            group["lr"] = rate
        self._rates = []

    def _event(self, level: str, signal: str, message: str) -> Event:
        counters = self.run.state.counters
        return Event(counters.update, counters.phase, level, signal, message)

    def _tell(self, events: Sequence[Event]) -> None:
        """Write events down, and show them."""
        for event in events:
            self.run.log.event(event.row())
            self.run.progress.message(f"guard, {event.level}: {event.message} (update {event.update:,})")


def _without_memory(state: TrainingState) -> TrainingState:
    """The same state as a snapshot sees it: without the guard itself and without what the replay holds."""
    world = None if state.world is None else cast(Any, WorldPosition(state.world))
    return replace(state, watch=cast(Any, None), world=world)
