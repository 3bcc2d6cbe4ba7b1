"""Contribution of each regulariser by walk-forward: trainings judged on years that they never saw.

Everything that chooses lies within training and validation windows. Each configuration is trained for every fold and
seed, in a reduced size that is the same for all; they are ranked by the mean of what a training earns over equal weight
less a multiple of its standard error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from finflow.agent.learners.bcell import BCell
from finflow.arrays import FloatArray, IntArray
from finflow.config import Config
from finflow.errors import EvidenceError
from finflow.evaluation.analysis.training_sections import PREFIX
from finflow.evaluation.backtest import BASELINE, Backtest, run_backtests
from finflow.evaluation.statistics.metrics import summarise
from finflow.experiments.jobs.independent_trainings import train_all
from finflow.experiments.jobs.protocols import make_protocol_job
from finflow.market.bar_frequency import BARS_PER_YEAR
from finflow.strategies.classical import COMPARED, named_strategy
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.checkpoints.run_folder import run_folder_of
from finflow.training.data.training_data import choose_device, process_on
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.logs.run_log import METRICS
from scripts.evidence.results import Result, Variant, grouped
from scripts.evidence.tables import shown_mean, table_of

FOLDS = 3
MULTIPLE = 1.0  # standard errors that are taken off a mean before it ranks
#: What makes a training about a tenth of the default one: the same for every configuration. Without blocks of years
#: that are held out, the agent is what it learned.
REDUCED: dict[str, object] = {
    "bcell.hidden_dim": 64,
    "out_of_fold.blocks": 1,
    "features.filters": "none",
    "features.regimes": False,
    "train.offline_episodes": 160,
    "train.offline_training_epochs": 15,
    "offline.patience": 0,
    "train.online_episodes": 80,
    "train.validation_updates": 30,
    "train.checkpoint_updates": 2000,
    "offline.evaluation_updates": 0,
    "evaluation.protocol.folds": FOLDS,
}
#: What a training without any device has, whatever the defaults are.
BARE: dict[str, object] = {"bcell.anchor.weight": 0.0}
ANCHOR: dict[str, object] = {"bcell.anchor.weight": 1.0}
DROPOUT: dict[str, object] = {"bcell.dropout": 0.1}
AVERAGE: dict[str, object] = {"bcell.averaging.kind": "swa"}
NOISE: dict[str, object] = {"train.observation_noise": 0.1}
CONFIGURATIONS: dict[str, dict[str, object]] = {
    name: {**BARE, **devices}
    for name, devices in {
        "no-device": {},
        "dropout": DROPOUT,
        "averaging": AVERAGE,
        "noise": NOISE,
        "anchor-to-equal-weight": ANCHOR,
    }.items()
}
"""What is compared, by the keys that decide it. Every one that was ever tried is counted: here, or in `WITHDRAWN`."""
#: Configurations that were tried, of options that no longer exist: in sub-universes, in resampled histories, at random
#: costs, all of that with an anchor, everything together, decay of weights with dropout,
#: a least trade rate, a gate held open beside each anchor of the aim, and anchors to the pretrained policy and to equal
#: weight whatever the cash.
WITHDRAWN = 11
CLASSICAL = "classical"


def walk_forward_variants(
    seeds: int,
    configurations: Mapping[str, Mapping[str, object]] = CONFIGURATIONS,
    size: Mapping[str, object] = REDUCED,
    page: str = "generalisation",
) -> list[Variant]:
    """A variant for each configuration and fold, and the classical strategies on the same windows.

    Parameters
    ----------
    page : str
        Begins the names of the variants: pages of different sizes keep their own results.
    """
    folds = range(1, int(str(size["evaluation.protocol.folds"])) + 1)
    variants = [
        Variant(
            f"{page}-{name}-fold-{fold}",
            range(seeds),
            {**size, **overrides},
            measure=partial(train_and_judge, name=name, fold=fold),
        )
        for name, overrides in configurations.items()
        for fold in folds
    ]
    rules = [
        Variant(f"{page}-{CLASSICAL}-fold-{fold}", (0,), dict(size), measure=partial(judge_rules, fold=fold))
        for fold in folds
    ]
    return [*rules, *variants]


def train_and_judge(config: Config, name: str, fold: int) -> dict[str, Any]:
    """Train one fold; backtest its best checkpoint, what it learned alone, and equal weight on the fold's window."""
    plan = make_protocol_job(config, "walk-forward", config.output.logs_dir / "generalisation")
    cut, seed = plan.folds[fold - 1], config.train.seed
    training = plan.fold_training(cut, seed)
    (path,) = train_all([training], {training.market: plan.panel})
    checkpoint = read_checkpoint(path)
    device = choose_device(config.train.device)
    process = process_on(training.training_data(plan.panel), plan.panel)
    policies = (checkpoint.agent.policy(device), BCell.load(path, str(device)).policy)
    strategies = [*(AgentStrategy(policy, device) for policy in policies), named_strategy(BASELINE, config.evaluation)]
    agent, own, equal = run_backtests(process, cut.tests[0], strategies)
    rows = pd.read_json(run_folder_of(path) / METRICS, lines=True)
    measured = rows[rows["update"] <= checkpoint.counters["update"]] if PREFIX + "train_sharpe" in rows else rows
    return {
        "configuration_name": name,
        "fold": fold,
        "window": [str(agent.dates[0]), str(agent.dates[-1])],
        "updates": int(rows["update"].max()),
        "training": _last_measured(measured),
        "judged": _figures(agent, config),
        "own": _figures(own, config),
        "equal_weight": _figures(equal, config),
        "days": len(agent.returns),
    }


def judge_rules(config: Config, fold: int) -> dict[str, Any]:
    """The classical strategies on a fold's window."""
    plan = make_protocol_job(config, "walk-forward", config.output.logs_dir / "generalisation")
    cut = plan.folds[fold - 1]
    process = process_on(plan.fold_training(cut, config.train.seed).training_data(plan.panel), plan.panel)
    names = dict.fromkeys((BASELINE, *COMPARED))
    played = run_backtests(process, cut.tests[0], [named_strategy(name, config.evaluation) for name in names])
    return {
        "configuration_name": CLASSICAL,
        "fold": fold,
        "strategies": {run.name: _figures(run, config) for run in played},
    }


def _figures(run: Backtest, config: Config) -> dict[str, float]:
    found = summarise(run, config.objectives.cvar_alpha)
    value = math.nan if run.rewards is None else float(run.rewards.mean())
    return {name: float(number) for name, number in {**found, "value": value}.items()}


def _last_measured(rows: pd.DataFrame) -> dict[str, float]:
    """The figures of generalisation at the checkpoint that is judged."""
    last = rows.filter(regex=f"^{PREFIX}").ffill().iloc[-1].dropna()
    return {str(name).removeprefix(PREFIX): float(value) for name, value in last.items()}


class Ranked(NamedTuple):
    """A configuration among others.

    Attributes
    ----------
    mean : float
        Of the Sharpe ratio over that of equal weight on the same window, net, over folds and seeds.
    error : float
        Standard error of the mean: of folds as wholes, or of single trainings, whichever is larger.
    """

    name: str
    trainings: int
    mean: float
    error: float
    score: float


def ranked(results: Sequence[Result], multiple: float = MULTIPLE) -> list[Ranked]:
    """Configurations by their scores, the best first.

    Seeds of a fold share its window, and are no independent evidence about other windows. So the error is that
    of the folds' means, where it is larger than the one of all trainings taken as independent.

    Raises
    ------
    EvidenceError
        If a configuration lacks a fold or a seed that another has.
    """
    own = _trainings(results)
    pairs = {(one["fold"], one["seed"]) for found in own.values() for one in found}
    table = []
    for name, found in own.items():
        if len(found) != len(pairs):
            raise EvidenceError(f"{name} cannot be ranked: it has not the same folds and seeds as the others")
        values = np.array([float(one["judged"]["sharpe"]) - float(one["equal_weight"]["sharpe"]) for one in found])
        mean, error = float(values.mean()), standard_error(values, np.array([one["fold"] for one in found]))
        table.append(Ranked(name, len(values), mean, error, mean - multiple * error))
    return sorted(table, key=lambda one: np.nan_to_num(one.score, nan=-math.inf), reverse=True)


def standard_error(values: FloatArray, groups: IntArray) -> float:
    """Standard error of a mean whose values come in groups; not a number for a single value."""
    if len(values) < 2:
        return math.nan
    single = float(values.std(ddof=1)) / math.sqrt(len(values))
    means = np.array([values[groups == group].mean() for group in np.unique(groups)])
    together = float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    return max(single, together)


def _trainings(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Results of each configuration; those of the classical strategies left out."""
    return grouped((one for one in results if one["configuration_name"] != CLASSICAL), "configuration_name")


def ranking_table(results: Sequence[Result]) -> str:
    """Markdown: a row a configuration, the best first; then the classical strategies on the same windows."""
    own = _trainings(results)
    rows: list[dict[str, object]] = []
    for one in ranked(results):
        training, judged = ([each[part] for each in own[one.name]] for part in ("training", "judged"))
        rows.append(
            {
                "": one.name,
                "trainings": one.trainings,
                "Sharpe, training": shown_mean([each.get("train_sharpe", math.nan) for each in training]),
                "Sharpe, judged": shown_mean([each["sharpe"] for each in judged]),
                "over equal weight": f"{one.mean:+.2f}",
                "standard error": f"{one.error:.2f}",
                "score": f"{one.score:+.2f}",
                "drawdown": shown_mean([100.0 * each["max_drawdown"] for each in judged], 1) + " %",
                "turnover a year": shown_mean([each["annual_turnover"] for each in judged], 1),
                "KL": shown_mean([each.get("kl", math.nan) for each in training]),
            }
        )
    rules = [one["strategies"] for one in results if one["configuration_name"] == CLASSICAL]
    for name in rules[0] if rules else ():
        judged = [strategies[name] for strategies in rules]
        over = [strategies[name]["sharpe"] - strategies[BASELINE]["sharpe"] for strategies in rules]
        rows.append(
            {
                **dict.fromkeys(rows[0], ""),
                "": name,
                "Sharpe, judged": shown_mean([each["sharpe"] for each in judged]),
                "over equal weight": f"{np.mean(over):+.2f}",
                "drawdown": shown_mean([100.0 * each["max_drawdown"] for each in judged], 1) + " %",
                "turnover a year": shown_mean([each["annual_turnover"] for each in judged], 1),
            }
        )
    return table_of(rows)


def account(results: Sequence[Result]) -> str:
    """Describe the number of tries and the judged windows."""
    own = _trainings(results)
    first = next(iter(own.values()))
    windows = sorted({" to ".join(one["window"]) for one in first})
    years = sum(one["days"] for one in first if one["seed"] == first[0]["seed"]) / BARS_PER_YEAR
    return (
        f"Configurations tried: {len(own) + WITHDRAWN}, {WITHDRAWN} of them of options that no longer exist and "
        f"without a row; trainings: {sum(map(len, own.values()))}. Judged windows: {', '.join(windows)} "
        f"({years:.1f} years in all). First by the rule: **{ranked(results)[0].name}**.\n"
    )
