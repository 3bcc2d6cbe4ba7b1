"""Evidence about the five experts: whether they and their gate gain anything over one head that reads all features.

Both learn in the market in which the families lead in turn (`expert_market`), judged on the test window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import Generator, Tensor

from finflow.agent.batch import Batch
from finflow.agent.learners import offline_learner
from finflow.agent.networks import policy as policy_module
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.decision import Decision
from finflow.agent.networks.layers import AssetLayers, EnsembleLinear, EnsembleReadout, linear
from finflow.agent.networks.policy import ExpertPolicy, expert_losses
from finflow.arrays import FloatArray, IntArray
from finflow.config import Config
from finflow.evaluation.backtest import BASELINE, run_backtests
from finflow.evaluation.statistics.metrics import summarise
from finflow.guard.checkpoint_folder import MODELS, PRETRAINED
from finflow.market.bar_frequency import BARS_PER_YEAR
from finflow.strategies.behaviour import FAMILIES
from finflow.strategies.classical import named_strategy
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.data.training_data import prepare_from
from finflow.training.judging.agent_strategy import AgentStrategy
from scripts.evidence.expert_market import BARS, FOLLOWER, ORACLE, family_panel, rules_of, states_of
from scripts.evidence.results import Result, Variant, by_seed, train_and_validate
from scripts.evidence.rollouts import ALONE, FIRST_SAMPLE, LOG_RETURN, SHORTER_OFFLINE
from scripts.evidence.tables import mean_interval, shown_mean, table_of

PREFIX = "experts-"
FIVE, ONE = "five", "one"
START, OWN = "start", "own"
PHASES = {OWN: "", START: ", after the offline phase"}


class OneHead(ExpertPolicy):
    """The policy with one expert that reads all features, as wide as the five together (within `one_head`)."""

    def __init__(self, shape: NetworkShape, generator: Generator, dropout_rate: float = 0.0, *_: float) -> None:
        everything = tuple(sorted(set(chain.from_iterable(shape.lenses))))
        super().__init__(shape._replace(lenses=(everything,)), generator, dropout_rate)
        width = len(FAMILIES) * self.score.weight.shape[-1]
        wide = AssetLayers(1, shape.n_asset_features, shape.n_market_features, width, generator)
        for name, layer in wide.named_children():
            setattr(self, name, layer)
        self.score = EnsembleReadout(1, width, generator)
        self.cash_score = EnsembleLinear(1, width + shape.n_market_features, 1, generator)
        self.gate_hidden = linear(width + shape.n_market_features, self.gate.in_features, generator)


def _losses_of_all(
    decision: Decision, batch: Batch, weights: Tensor, cloning: float
) -> tuple[Tensor, Tensor | float, dict[str, Tensor]]:
    """Loss of one expert on the decisions of all families; it is held to no portfolios that they name."""
    family = (batch.families >= len(FAMILIES)).to(batch.families.dtype)
    return expert_losses(decision, batch._replace(families=family), weights, 0.0)


@contextmanager
def one_head() -> Iterator[None]:
    """Policies made and used within have one expert; their checkpoints keep the five lenses, which it joins."""
    in_policy = patch.multiple(policy_module, EXPERTS=("all",), expert_losses=_losses_of_all)
    with in_policy, patch.object(offline_learner, "ExpertPolicy", OneHead):
        yield


LEARNERS: dict[str, Callable[[], AbstractContextManager[None]]] = {FIVE: nullcontext, ONE: one_head}


def expert_variants(samples: int) -> list[Variant]:
    """Both learners on the same samples, none of which the constants were chosen by."""
    keys, seeds = {**SHORTER_OFFLINE, **LOG_RETURN, **ALONE}, range(FIRST_SAMPLE, FIRST_SAMPLE + samples)
    return [Variant(f"{PREFIX}{name}", seeds, keys, measure=partial(train, name)) for name in LEARNERS]


def train(learner: str, config: Config, bars: int = BARS) -> dict[str, Any]:
    """Train on the sample of the seed: growth a year over equal weight, and turnover, of the test window."""
    panel, states = family_panel(config.train.seed, bars), states_of(config.train.seed, bars)
    data = prepare_from(panel, config)
    process, window = data.held_out_process(), data.split.test
    with LEARNERS[learner]():
        trainer, _, seconds, _ = train_and_validate(config, training_data=data)
        first = read_checkpoint(trainer.run_folder / MODELS / f"{PRETRAINED}.safetensors").agent.policy(trainer.device)
        learned = {START: first, OWN: trainer.agent.policy}
        agents = [AgentStrategy(policy, trainer.device, name) for name, policy in learned.items()]
        rules = [*rules_of(panel, states), named_strategy(BASELINE, config.evaluation)]
        runs = {run.name: run for run in run_backtests(process, window, [*agents, *rules])}
    growth = {name: BARS_PER_YEAR * float(np.log1p(run.returns).mean()) for name, run in runs.items()}
    reasons, decided = runs[OWN].explanation, process.decision_bars(window)
    gate = {} if learner == ONE or reasons is None else gate_lead(reasons["gate"], states[decided.start : decided.stop])
    return {
        "learner": learner,
        "growth": {name: value - growth[BASELINE] for name, value in growth.items()},
        "turnover": {name: float(summarise(run, 0.05)["annual_turnover"]) for name, run in runs.items()},
        "gate": gate,
        "parameters": sum(one.numel() for one in trainer.agent.policy.parameters()),
        "seconds": seconds,
    }


def gate_lead(gate: FloatArray, states: IntArray) -> dict[str, float]:
    """Mean gate weight of each expert where its family leads less that elsewhere; without families that never lead."""
    leads = {family: states == number for number, family in enumerate(FAMILIES)}
    return {
        family: float(gate[here, number].mean() - gate[~here, number].mean())
        for number, (family, here) in enumerate(leads.items())
        if 0 < here.sum() < len(here)
    }


def expert_table(results: Sequence[Result]) -> str:
    """Markdown tables: growth over equal weight of both learners and of rules, and how far the gate follows the state.

    The best single family is that of each sample's test window, which no rule knows.
    """
    five, one = (by_seed(results, learner=name) for name in LEARNERS)
    own, markets = {"five experts": five, "one head": one}, [*(one | five).values()]
    rows = [
        _row(f"{name}{said}", [*ones.values()], phase) for name, ones in own.items() for phase, said in PHASES.items()
    ]
    pairs = [(five[seed], one[seed]) for seed in sorted(five.keys() & one.keys())]
    gaps = [{"growth": {OWN: first["growth"][OWN] - other["growth"][OWN]}, "turnover": {}} for first, other in pairs]
    rows.append(_row("five experts less one head", gaps, OWN))
    rows += [_row(name, markets, name) for name in (ORACLE, FOLLOWER)]
    rows.append(_row("best single family", markets, *FAMILIES))
    gate = {family: [one["gate"][family] for one in markets if family in one["gate"]] for family in FAMILIES}
    leads = {"gate weight where its family leads less elsewhere": "", **{f: mean_interval(x) for f, x in gate.items()}}
    return table_of(rows) + "\n" + table_of([leads])


def _row(name: str, own: Sequence[Result], *strategies: str) -> dict[str, object]:
    """A row of the best of some strategies in each sample, in percent a year."""
    best = [max(strategies, key=lambda strategy: one["growth"][strategy]) for one in own]
    growth = [100.0 * one["growth"][strategy] for one, strategy in zip(own, best, strict=True)]
    turnover = [one["turnover"].get(strategy, np.nan) for one, strategy in zip(own, best, strict=True)]
    return {
        "": name,
        "growth over equal weight, % a year": mean_interval(growth, 1),
        "each sample": ", ".join(f"{value:.1f}" for value in growth) or "none",
        "turnover a year": shown_mean(turnover, 1),
    }
