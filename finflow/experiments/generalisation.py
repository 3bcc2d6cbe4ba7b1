"""What each device against memorising is worth, by walk-forward: trainings judged on years that they never saw.

Everything that chooses lies within training and validation windows. Each configuration is trained for every fold and
seed, in a reduced size that is the same for all; they are ranked by the mean of what a training earns over equal weight
less a multiple of its standard error. What is chosen then meets markets that it was not chosen on.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.config import Config
from finflow.errors import EvidenceError
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.evaluation.factors import etf_prices
from finflow.evaluation.metrics import summarise
from finflow.evaluation.results import BASELINE
from finflow.evaluation.sharpe_tests import track_of
from finflow.experiments.evidence import Variant
from finflow.experiments.planted_signals import LEARNING
from finflow.experiments.protocols import plan_of
from finflow.experiments.trainings import train_all
from finflow.market.panel import BARS_PER_YEAR
from finflow.strategies.classical import COMPARED, named_strategy
from finflow.training.agent_strategy import AgentStrategy
from finflow.training.checkpoints import policy_of, read_checkpoint
from finflow.training.generalisation import PREFIX
from finflow.training.held_out import REPORTS
from finflow.training.logging import METRICS
from finflow.training.materials import choose_device, process_on
from finflow.training.opened import run_folder_of
from finflow.training.trainer import FinFlowTrainer

FloatArray = NDArray[np.float64]
Result = Mapping[str, Any]

FOLDS = 3
MULTIPLE = 1.0  # standard errors that are taken off a mean before it ranks
#: What makes a training about a tenth of the default one: the same for every configuration.
REDUCED: dict[str, object] = {
    "bcell.hidden_dim": 64,
    "train.offline_episodes": 160,
    "train.offline_training_epochs": 15,
    "train.online_episodes": 80,
    "train.validation_updates": 500,
    "train.checkpoint_updates": 2000,
    "train.critic_only_updates": 200,
    "offline.evaluation_updates": 0,
    "evaluation.protocol.folds": FOLDS,
}
UNIVERSES: dict[str, object] = {"worlds.assets": 10}
BOOTSTRAPS: dict[str, object] = {"worlds.bootstraps": 2}
COSTS: dict[str, object] = {"worlds.cost_low": 0.5, "worlds.cost_high": 3.0}
ANCHOR: dict[str, object] = {"bcell.anchor.weight": 1.0}
DECAY: dict[str, object] = {"bcell.weight_decay": 1.0, "bcell.dropout": 0.1}
AVERAGE: dict[str, object] = {"bcell.averaging.kind": "swa"}
NOISE: dict[str, object] = {"train.observation_noise": 0.1}
CONFIGURATIONS: dict[str, dict[str, object]] = {
    "default": {},
    "sub-universes": UNIVERSES,
    "bootstrap": BOOTSTRAPS,
    "random-costs": COSTS,
    "anchor": ANCHOR,
    "decay-and-dropout": DECAY,
    "averaging": AVERAGE,
    "noise": NOISE,
    "all": {**UNIVERSES, **BOOTSTRAPS, **COSTS, **ANCHOR, **DECAY, **AVERAGE, **NOISE},
}
"""What is compared, by what differs from the defaults. Every one that was ever tried belongs here: they are counted."""
CLASSICAL = "classical"
HALVES = 5
ETF_WINDOWS = {"market.train_end": "2019-06-30", "market.validation_end": "2020-12-31"}
SYNTHETIC = ("constant-drift", "lognormal", "mean-reverting", "regime", "exchangeable")
WORLD_ASSETS = "worlds.assets"


def walk_forward_variants(
    seeds: int,
    configurations: Mapping[str, Mapping[str, object]] = CONFIGURATIONS,
    size: Mapping[str, object] = REDUCED,
) -> list[Variant]:
    """A variant for each configuration and fold, and the classical strategies on the same windows.

    Parameters
    ----------
    seeds : int
        Of each configuration and fold.
    configurations : mapping
        Name -> keys that differ from the defaults.
    size : mapping
        What all have in common, ``evaluation.protocol.folds`` among it.
    """
    folds = range(1, int(str(size["evaluation.protocol.folds"])) + 1)
    variants = [
        Variant(
            f"generalisation-{name}-fold-{fold}",
            tuple(range(seeds)),
            {**size, **overrides},
            measure=partial(train_and_judge, name=name, fold=fold),
        )
        for name, overrides in configurations.items()
        for fold in folds
    ]
    rules = [
        Variant(f"generalisation-{CLASSICAL}-fold-{fold}", (0,), dict(size), measure=partial(judge_rules, fold=fold))
        for fold in folds
    ]
    return [*rules, *variants]


def train_and_judge(config: Config, name: str, fold: int) -> dict[str, Any]:
    """Train one fold, and judge its best checkpoint, beside equal weight, on the fold's own window."""
    began = time.process_time()
    plan = plan_of(config, "walk-forward", config.output.logs_dir / "generalisation")
    cut, seed = plan.folds[fold - 1], config.train.seed
    training = plan.training(cut, seed)
    (path,) = train_all([training], {training.market: plan.panel})
    checkpoint = read_checkpoint(path)
    seconds = round(time.process_time() - began, 1)
    device = choose_device(config.train.device)
    process = process_on(training.materials(plan.panel), plan.panel)
    policy = policy_of(checkpoint, device)
    strategies = [AgentStrategy(policy, device), named_strategy(BASELINE, config.evaluation)]
    agent, equal = run_backtests(process, cut.tests[0], strategies)
    rows = pd.read_json(run_folder_of(path) / METRICS, lines=True)
    measured = rows[rows["update"] <= checkpoint.counters["update"]] if PREFIX + "train_sharpe" in rows else rows
    return {
        "configuration_name": name,
        "fold": fold,
        "window": [str(agent.dates[0]), str(agent.dates[-1])],
        "seconds": {"processor": seconds},
        "training": _last_measured(measured),
        "judged": _figures(agent, config),
        "equal_weight": _figures(equal, config),
        "active": [round(float(one), 8) for one in agent.returns - equal.returns],
    }


def judge_rules(config: Config, fold: int) -> dict[str, Any]:
    """The classical strategies on a fold's window."""
    began = time.process_time()
    plan = plan_of(config, "walk-forward", config.output.logs_dir / "generalisation")
    cut = plan.folds[fold - 1]
    process = process_on(plan.training(cut, config.train.seed).materials(plan.panel), plan.panel)
    names = dict.fromkeys((BASELINE, *COMPARED))
    played = run_backtests(process, cut.tests[0], [named_strategy(name, config.evaluation) for name in names])
    return {
        "configuration_name": CLASSICAL,
        "fold": fold,
        "seconds": {"processor": round(time.process_time() - began, 1)},
        "strategies": {run.name: _figures(run, config) for run in played},
    }


def _figures(run: Backtest, config: Config) -> dict[str, float]:
    found = summarise(run, config.objectives.cvar_alpha)
    value = math.nan if run.rewards is None else float(run.rewards.mean())
    return {name: float(number) for name, number in {**found, "value": value}.items()}


def _last_measured(rows: pd.DataFrame) -> dict[str, float]:
    """The figures of generalisation at the checkpoint that is judged."""
    columns = [name for name in rows.columns if str(name).startswith(PREFIX)]
    found: dict[str, float] = {}
    for name in columns:
        known = rows[name].dropna()
        if len(known):
            found[str(name).removeprefix(PREFIX)] = float(known.iloc[-1])
    return found


class Ranked(NamedTuple):
    """A configuration among others.

    Attributes
    ----------
    name : str
    trainings : int
    mean : float
        Of the Sharpe ratio over that of equal weight on the same window, net, over folds and seeds.
    error : float
        Standard error of the mean: of folds as wholes, or of single trainings, whichever is larger.
    score : float
        Mean less a multiple of it.
    """

    name: str
    trainings: int
    mean: float
    error: float
    score: float


def ranked(results: Sequence[Result], multiple: float = MULTIPLE) -> list[Ranked]:
    """Configurations by their scores, the best first.

    Seeds of a fold share its window, and are no evidence apart of each other about other windows. So the error is that
    of the folds' means, where it is larger than the one of all trainings taken as independent.

    Raises
    ------
    EvidenceError
        If a configuration has fewer trainings than another: unequal ones cannot be ranked.
    """
    own = _trainings(results)
    counts = {name: sorted((one["fold"], one["seed"]) for one in found) for name, found in own.items()}
    if len({json.dumps(count) for count in counts.values()}) > 1:
        raise EvidenceError("configurations can be ranked only where all have the same folds and seeds")
    table = []
    for name, found in own.items():
        values = np.array([_over(one) for one in found])
        folds = np.array([one["fold"] for one in found])
        mean, error = float(values.mean()), standard_error(values, folds)
        table.append(Ranked(name, len(values), mean, error, mean - multiple * error))
    return sorted(table, key=lambda one: one.score if math.isfinite(one.score) else -math.inf, reverse=True)


def standard_error(values: FloatArray, groups: NDArray[np.int64]) -> float:
    """Standard error of a mean whose values come in groups; not a number for a single value."""
    if len(values) < 2:
        return math.nan
    single = float(values.std(ddof=1)) / math.sqrt(len(values))
    means = np.array([values[groups == group].mean() for group in np.unique(groups)])
    together = float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    return max(single, together)


def tried(results: Sequence[Result]) -> int:
    """Configurations that were chosen among: what ``evaluation.configurations_tried`` has to be for the chosen one."""
    return len(_trainings(results))


def deflated(results: Sequence[Result], name: str) -> float:
    """Deflated Sharpe ratio of a configuration's return over equal weight in all windows, for all that were tried.

    Seeds are averaged day by day, and are no tries; the windows follow one another.
    """
    joined = {each: _joined(found) for each, found in _trainings(results).items()}
    sharpes = np.array([track_of(returns, each).sharpe for each, returns in joined.items()])
    track = track_of(joined[name], name)
    observed = float(sharpes.var(ddof=1)) if len(sharpes) > 1 else 0.0
    return track.dsr(len(joined), max(observed, 1.0 / (len(joined[name]) - 1)))


def _joined(found: Sequence[Result]) -> FloatArray:
    """Mean active return over seeds, a day, window after window."""
    parts = []
    for fold in sorted({one["fold"] for one in found}):
        parts.append(np.mean([one["active"] for one in found if one["fold"] == fold], axis=0))
    joined: FloatArray = np.concatenate(parts)
    return joined


def _trainings(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Results of each configuration; those of the classical strategies left out."""
    own: dict[str, list[Result]] = {}
    for one in results:
        if one["configuration_name"] != CLASSICAL:
            own.setdefault(one["configuration_name"], []).append(one)
    return own


def _over(one: Result) -> float:
    return float(one["judged"]["sharpe"]) - float(one["equal_weight"]["sharpe"])


def chosen_overrides(
    results: Sequence[Result], configurations: Mapping[str, Mapping[str, object]] = CONFIGURATIONS
) -> dict[str, object]:
    """Keys of the configuration that ranks first, with the count of everything that it was chosen among."""
    best = ranked(results)[0].name
    return {**configurations[best], "evaluation.configurations_tried": tried(results)}


def ranking_table(results: Sequence[Result]) -> str:
    """Markdown: a row a configuration, the best first; then the classical strategies on the same windows."""
    heads = (
        "Sharpe, training",
        "Sharpe, judged",
        "over equal weight",
        "standard error",
        "score",
        "drawdown",
        "turnover a year",
        "KL",
        "DSR",
    )
    lines = [f"| | trainings | {' | '.join(heads)} |", f"|---|---|{'---|' * len(heads)}"]
    own = _trainings(results)
    for one in ranked(results):
        found = own[one.name]
        cells = [
            _mean([each["training"].get("train_sharpe", math.nan) for each in found]),
            _mean([each["judged"]["sharpe"] for each in found]),
            f"{one.mean:+.2f}",
            f"{one.error:.2f}",
            f"{one.score:+.2f}",
            _mean([100.0 * each["judged"]["max_drawdown"] for each in found], 1) + " %",
            _mean([each["judged"]["annual_turnover"] for each in found], 1),
            _mean([each["training"].get("kl", math.nan) for each in found]),
            f"{deflated(results, one.name):.2f}",
        ]
        lines.append(f"| {one.name} | {one.trainings} | {' | '.join(cells)} |")
    rules = [one for one in results if one["configuration_name"] == CLASSICAL]
    for name in rules[0]["strategies"] if rules else ():
        found = [one["strategies"][name] for one in rules]
        over = [one["strategies"][name]["sharpe"] - one["strategies"][BASELINE]["sharpe"] for one in rules]
        cells = [
            "",
            _mean([each["sharpe"] for each in found]),
            f"{np.mean(over):+.2f}",
            "",
            "",
            _mean([100.0 * each["max_drawdown"] for each in found], 1) + " %",
            _mean([each["annual_turnover"] for each in found], 1),
            "",
            "",
        ]
        lines.append(f"| {name} | | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _mean(values: Sequence[float], decimals: int = 2) -> str:
    known = [value for value in values if math.isfinite(value)]
    return f"{np.mean(known):.{decimals}f}" if known else "-"


def market_variants(
    overrides: Mapping[str, object], seeds: int, folder: Path, size: Mapping[str, object]
) -> list[Variant]:
    """Markets that the configuration was not chosen on; each training ends with its one reading of a test window.

    Parameters
    ----------
    overrides : mapping
        The chosen configuration.
    seeds : int
    folder : Path
        Where the prices of the factor ETFs are written.
    size : mapping
        What the trainings have in common; without it they are of the default size.
    """
    markets: dict[str, tuple[int, dict[str, object]]] = {}
    for number in range(HALVES):
        names = half_of_the_universe(number)
        markets[f"half-{number}"] = len(names), {"market.tickers": ",".join(names)}
    prices = etf_prices()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "factor-etfs.csv"
    prices.rename_axis("Date").to_csv(path)
    markets["factor-etfs"] = prices.shape[1], {"market.source": "csv", "market.path": str(path), **ETF_WINDOWS}
    for kind in SYNTHETIC:
        made = {key: value for key, value in LEARNING.items() if key.startswith(("objectives.", "market."))}
        made |= {"market.source": "synthetic", "market.synthetic.kind": kind}
        markets[kind] = 2, made
    return [
        Variant(
            f"generalisation-market-{name}",
            tuple(range(seeds)),
            {**size, **fitting(overrides, n_assets), **market, "evaluation.sweeps": False},
            measure=partial(train_and_read, name=name),
        )
        for name, (n_assets, market) in markets.items()
    ]


def half_of_the_universe(number: int) -> tuple[str, ...]:
    """Ten of the twenty stocks, drawn by number, in the order of the source."""
    from finflow.market.sources import load_panel

    assets = load_panel(Config().market).assets
    rng = np.random.default_rng(np.random.SeedSequence([9, number]))
    return tuple(assets[place] for place in np.sort(rng.permutation(len(assets))[: len(assets) // 2]))


def fitting(overrides: Mapping[str, object], n_assets: int) -> dict[str, object]:
    """A configuration for a market of so many assets: an episode has half of them, two at least, if it has not all."""
    fitted = dict(overrides)
    if fitted.get(WORLD_ASSETS) is not None:
        fitted[WORLD_ASSETS] = max(2, n_assets // 2)
    return fitted


def train_and_read(config: Config, name: str) -> dict[str, Any]:
    """Train, and judge on the test window, which is counted in the ledger of readings."""
    began = time.process_time()
    outcome = FinFlowTrainer(config).train()
    content = json.loads((outcome.run_folder / REPORTS / "metrics.json").read_text("utf-8"))
    agent = next(iter(outcome.summary))
    best = max(
        (figures["sharpe"], rule) for rule, figures in outcome.summary.items() if rule in COMPARED and rule != agent
    )
    return {
        "configuration_name": name,
        "seconds": {"processor": round(time.process_time() - began, 1)},
        "agent": outcome.summary[agent],
        "equal_weight": outcome.summary[BASELINE],
        "best_rule": {"name": best[1], "sharpe": best[0]},
        "against_equal_weight": content["against_equal_weight"],
        "verdict": content["verdict"],
    }


def market_table(results: Sequence[Result]) -> str:
    """Markdown: a row a market, means over seeds; the interval is the widest of the seeds' own."""
    heads = (
        "Sharpe",
        "equal weight",
        "difference",
        "95 % interval",
        "drawdown",
        "equal weight",
        "turnover a year",
        "optimality",
    )
    lines = [f"| market | seeds | {' | '.join(heads)} |", f"|---|---|{'---|' * len(heads)}"]
    for name in dict.fromkeys(one["configuration_name"] for one in results):
        found = [one for one in results if one["configuration_name"] == name]
        intervals = [one["against_equal_weight"]["interval"] for one in found]
        known = [interval for interval in intervals if interval is not None]
        span = f"{min(low for low, _ in known):+.2f} to {max(high for _, high in known):+.2f}" if known else "-"
        cells = [
            _mean([one["agent"]["sharpe"] for one in found]),
            _mean([one["equal_weight"]["sharpe"] for one in found]),
            _mean([one["agent"]["sharpe"] - one["equal_weight"]["sharpe"] for one in found]),
            span,
            _mean([100.0 * one["agent"]["max_drawdown"] for one in found], 1) + " %",
            _mean([100.0 * one["equal_weight"]["max_drawdown"] for one in found], 1) + " %",
            _mean([one["agent"]["annual_turnover"] for one in found], 1),
            _mean([one["agent"].get("optimality", math.nan) for one in found]),
        ]
        lines.append(f"| {name} | {len(found)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def account(results: Sequence[Result]) -> str:
    """How many things were tried, and what the windows were, in words."""
    own = _trainings(results)
    first = next(iter(own.values()))
    windows = sorted({" to ".join(one["window"]) for one in first})
    years = sum(len(one["active"]) for one in first if one["seed"] == first[0]["seed"]) / BARS_PER_YEAR
    best = ranked(results)[0].name
    return (
        f"Configurations tried: {tried(results)}; trainings: {sum(map(len, own.values()))}. Judged windows: "
        f"{', '.join(windows)} ({years:.1f} years in all). First by the rule: **{best}**.\n"
    )
