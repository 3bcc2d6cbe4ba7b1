"""Evidence about the guard: faults injected into small trainings, with it and without, and trainings without a fault.

A fault happens once, at a call that is counted through rollbacks, so that going back does not make it happen again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from finflow.agent.batch import Batch
from finflow.agent.learners.bcell import BCell
from finflow.config import Config
from finflow.errors import FinflowError
from finflow.training.logs.run_log import EVENTS
from finflow.training.off_policy import group_update
from finflow.training.off_policy.group_update import Drawn, Material
from finflow.training.off_policy.learners import Learner
from finflow.training.phases import finetune as online
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.results import Variant, grouped
from scripts.evidence.tables import markdown_table

FAULT_AT = 250  # online updates before the fault
#: 504 updates online. Without blocks of years that are held out, the agent is what it learned, faults and all.
SMALL: Mapping[str, object] = {
    "env.episode_length": 126,
    "out_of_fold.blocks": 1,
    "train.offline_episodes": 24,
    "train.offline_training_epochs": 6,
    "train.online_episodes": 64,
    "train.offline_batch_size": 128,
    "train.online_batch_size": 64,
    "train.n_envs": 4,
    "train.updates_per_vector_step": 4,
    "train.warmup_episodes": 8,
    "train.critic_only_updates": 50,
    "train.checkpoint_updates": 300,
    "train.validation_updates": 125,
    "bcell.hidden_dim": 64,
    "bcell.memory_capacity": 5000,
}
MARKETS = ("embedded", "lognormal", "mean-reverting", "regime")


class Fault(NamedTuple):
    """A fault that is injected into a training.

    Attributes
    ----------
    lasts : int
        Updates that it happens at, one after the other.
    """

    name: str
    lasts: int
    strike: Callable[[BCell, Batch], Batch]


def _poison(value: float, bcell: BCell, batch: Batch) -> Batch:
    """The rewards of a quarter of the batch's states, of whatever action."""
    parts = [batch.rewards.clone(), batch.outcomes.rewards.clone()]
    for rewards in parts:
        rewards[::4] = value
    return batch._replace(rewards=parts[0], choices=batch.choices and batch.choices._replace(rewards=parts[1]))


def _learning_rates(bcell: BCell, batch: Batch) -> Batch:
    """A thousand times too high in this update; every other sets them by their schedules."""
    for optimiser in (bcell.policy_optimiser, bcell.critic_optimiser):
        for group in optimiser.param_groups:
            group["lr"] *= 1000.0
    return batch


@torch.no_grad()
def _explode(bcell: BCell, batch: Batch) -> Batch:
    """Multiply the values of critics and of their targets by a thousand."""
    for critic in (bcell.critic, bcell.target_critic):
        for name, parameter in critic.named_parameters():
            if name.startswith("mean."):
                parameter.mul_(1000.0)
                parameter.add_(10.0)
    return batch


@torch.no_grad()
def _one_asset(bcell: BCell, batch: Batch) -> Batch:
    """The whole portfolio goes at once into whatever asset an expert likes best."""
    policy = bcell.policy
    for parameter in policy.score.parameters():
        parameter.mul_(1e4)
    policy.trade.bias[0] = 20.0
    policy.gate.weight.zero_()
    policy.gate.bias.copy_(torch.tensor([40.0, 0.0, 0.0, 0.0, 0.0]))
    return batch


@torch.no_grad()
def _dead_gate(bcell: BCell, batch: Batch) -> Batch:
    """The gate knows one expert whatever the market does, and has no slope to leave it by."""
    bcell.policy.gate.weight.zero_()
    bcell.policy.gate.bias.copy_(torch.tensor([0.0, 0.0, 60.0, 0.0, 0.0]))
    return batch


FAULTS = (
    Fault("poisoned batches, NaN", 3, partial(_poison, math.nan)),
    Fault("poisoned batches, 1e30", 3, partial(_poison, 1e30)),
    Fault("learning rates x 1000", 5, _learning_rates),
    Fault("critic explodes", 1, _explode),
    Fault("policy collapses onto one asset", 1, _one_asset),
    Fault("gate dies", 1, _dead_gate),
)


@contextmanager
def injected(fault: Fault | None, at: int = FAULT_AT) -> Iterator[list[int]]:
    """Have a fault happen to the trainings in this block; yields the updates, over both phases, that it happened at."""
    usual_update = online._OnlinePhase._update
    usual_draw = group_update.draw
    calls, strikes = 0, False
    delivered: Learner | None = None
    struck: list[int] = []

    def update(phase: online._OnlinePhase) -> dict[str, Tensor]:
        nonlocal calls, strikes, delivered
        delivered = phase.learners.everyone[0]
        calls += 1
        strikes = fault is not None and at < calls <= at + fault.lasts
        if strikes:
            struck.append(phase.run.state.counters.update)
        return usual_update(phase)

    def draw(material: Material, learner: Learner, *rest: Any) -> Drawn:
        drawn = usual_draw(material, learner, *rest)
        if fault is None or not strikes or learner is not delivered:
            return drawn
        return drawn._replace(batch=fault.strike(learner.agent, drawn.batch))

    with patch.object(online._OnlinePhase, "_update", update), patch.object(group_update, "draw", draw):
        yield struck


def train_with(fault: Fault | None, config: Config) -> dict[str, Any]:
    """Train once with a fault; what came of it, and what the guard saw and did."""
    trainer = FinFlowTrainer(config)
    value: float | None = None
    error = ""
    with injected(fault) as struck:
        try:
            trainer.train_iql()
            value = trainer.finetune().get("value")
        except (FinflowError, ValueError) as problem:  # decisions that are no numbers
            error = f"{type(problem).__name__}: {problem}"[:200]
    events = [json.loads(line) for line in (trainer.run_folder / EVENTS).read_text().splitlines()]
    seen = [event for event in events if struck and event["update"] > struck[0] and event["signal"] != "sharpe"]
    return {
        "value": value if value is not None and math.isfinite(value) else None,
        "error": error,
        "detected": seen[0]["update"] - struck[0] if seen else None,
        "signal": seen[0]["signal"] if seen else None,
        "alarms": sum(event["level"] == "alarm" for event in events),
        "lowered": sum(event["signal"] == "learning rate" and event["level"] == "warning" for event in events),
        "rollbacks": sum(event["signal"] == "rollback" for event in events),
    }


def synthetic_keys(kind: str, bars: int = 6000) -> dict[str, object]:
    """Keys of a synthetic market."""
    windows = {"market.train_end": "2014-12-31", "market.validation_end": "2018-12-31"}
    return {"market.source": "synthetic", "market.synthetic.kind": kind, "market.synthetic.bars": bars, **windows}


def guard_variants(n_seeds: int) -> list[Variant]:
    """Trainings with every fault, guarded and not, and trainings without one on several markets.

    A rollback restores the same snapshot whatever the fault was: one fault has every seed, and the others one.
    """
    seeds = range(n_seeds)
    variants = []
    for market in MARKETS:
        source = {} if market == "embedded" else synthetic_keys(market)
        name = f"guard-healthy-{market}"
        variants.append(Variant(name, seeds, {**SMALL, **source}, measure=partial(train_with, None)))
    for fault in FAULTS:
        for guarded in (True, False):
            name = f"guard-{'on' if guarded else 'off'}-{_slug(fault.name)}"
            keys = {**SMALL, "guard.enabled": guarded}
            own = seeds if fault.strike is _learning_rates else range(1)
            variants.append(Variant(name, own, keys, measure=partial(train_with, fault)))
    return variants


def guard_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Two Markdown tables: faults with the guard and without, and healthy trainings."""
    by_name = grouped(results, "variant")
    undisturbed = {result["seed"]: result["value"] for result in by_name["guard-healthy-embedded"]}
    values = np.array(list(undisturbed.values()), dtype=np.float64)
    deviation = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    stated = (
        f"Undisturbed: {1e4 * values.mean():.3f}, standard deviation over {len(values)} seeds {1e4 * deviation:.3f}."
    )
    faults: list[list[object]] = []
    healthy: list[list[object]] = []
    for fault in FAULTS:
        for guarded in ("on", "off"):
            own = by_name.get(f"guard-{guarded}-{_slug(fault.name)}", [])
            if own:
                faults.append([fault.name, guarded, *_outcome(own, undisturbed, deviation)])
    for market in MARKETS:
        own = by_name.get(f"guard-healthy-{market}", [])
        healthy.append([market, len(own), *(sum(result[name] for result in own) for name in ("alarms", "rollbacks"))])
    heads = ("fault", "guard", "detected", "by", "lowered", "rollbacks", "value", "near")
    without = markdown_table(("market", "seeds", "alarms", "rollbacks"), healthy)
    return f"{stated}\n\n{markdown_table(heads, faults)}\nTrainings without a fault:\n\n{without}"


def _outcome(results: Sequence[Mapping[str, Any]], undisturbed: Mapping[int, float], deviation: float) -> list[str]:
    """Cells of one fault."""
    detected = [result["detected"] for result in results]
    latest = "no" if None in detected else str(max(detected))
    signals = ", ".join(sorted({result["signal"] for result in results if result["signal"]}))
    ended = [result["value"] for result in results if result["value"] is not None]
    near = sum(
        result["value"] is not None and abs(result["value"] - undisturbed[result["seed"]]) <= deviation
        for result in results
    )
    value = f"{1e4 * float(np.mean(ended)):.3f}" if ended else "none"
    value += "" if len(ended) == len(results) else f" ({len(results) - len(ended)} ended in an error)"
    counts = [f"{np.mean([result[name] for result in results]):.1f}" for name in ("lowered", "rollbacks")]
    return [latest, signals, *counts, value, f"{near} of {len(results)}"]


def _slug(name: str) -> str:
    """A name as part of a file's."""
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower()).replace("--", "-").strip("-")
