"""Error rate of the verdict in markets without an edge, and its power where one is planted.

The null: the labels of the assets are permuted independently at each date, so that all assets are exchangeable and no
rule can beat equal weight but by luck, while what the market does as a whole, and how far its assets differ on any
day, stay as they were. (Shuffling dates would be no null: a tilt to calm assets survives it.) The planted edge: in such
a market the first half of the assets earns more every day, the others less, by an amount stated as the annual Sharpe
ratio of the first half's return over equal weight.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from finflow.agent.networks.policy import ExpertPolicy
from finflow.arrays import FloatArray
from finflow.config import Config, config_hash, load_config
from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import equal_weight_moments
from finflow.errors import MarketError
from finflow.evaluation.backtest import run_backtests
from finflow.evaluation.statistics.bootstrap import CONFIDENCE, Resampling, draw_days
from finflow.evaluation.statistics.significance_tests import SIZE, Tries
from finflow.evaluation.statistics.verdict import judge
from finflow.guard.checkpoint_folder import BEST, MODELS, CheckpointFolder
from finflow.line_file import append_line
from finflow.market.bar_frequency import BARS_PER_YEAR
from finflow.market.features.feature_set import compute_features
from finflow.market.panel import MarketPanel
from finflow.provenance import code_hash, short_hash
from finflow.strategies.classical import EqualWeight, PatientEqualWeight, named_strategy
from finflow.strategies.strategy import Information, Strategy, with_cash
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.data.training_data import prepare, process_on
from finflow.training.judging.agent_strategy import AgentStrategy
from scripts.evidence.results import Result, grouped, kept_result, places_in, train_both
from scripts.evidence.tables import markdown_table, share_interval

Verdicts = Sequence[Mapping[str, Any]]

WARM_UP = 600  # bars before the judged window, for features and fits
RULES = ("buy-and-hold", "inverse-volatility", "minimum-variance", "momentum")
EVERY = 63  # decisions between refits: a solver's time times 200 markets
TILT = "first half"


class FirstHalf:
    """The first half of the assets in equal weights: the rule that knows where an edge was planted."""

    name = TILT

    def decide(self, information: Information) -> FloatArray:
        """Equal weights in the first half, (K,)."""
        count = len(information.listed)
        half = count // 2
        return with_cash(np.where(np.arange(count) < half, 1.0 / half, 0.0))


@dataclass(frozen=True)
class NullStudy:
    """Settings of the calibration of the verdict."""

    markets: int = 200  # without an edge, one a seed
    planted: int = 25  # for each size of edge
    sizes: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0)  # annual Sharpe ratios of the first half over equal weight
    samples: int = 500  # of the bootstrap in each verdict


def permuted_panel(panel: MarketPanel, bars: range, seed: int, edge: float = 0.0) -> MarketPanel:
    """Prices whose returns at each date are those of the panel in another order, drawn for each date.

    Parameters
    ----------
    bars : range
        Of the panel; every asset must be listed at all of them.
    edge : float
        Annual Sharpe ratio of the first half's return over equal weight, planted over all bars; 0 plants nothing.

    Raises
    ------
    MarketError
        If an asset is missing at one of the bars: then labels do not exchange.
    """
    close = panel.close[bars.start : bars.stop]
    missing = ~np.isfinite(close).all(axis=0)
    if missing.any():
        name = panel.assets[int(np.flatnonzero(missing)[0])]
        raise MarketError(f"{name} is not listed over all of the window; labels exchange only where all assets are")
    returns = close[1:] / close[:-1] - 1.0
    returns = np.random.default_rng(seed).permuted(returns, axis=1)
    if edge:
        half = returns.shape[1] // 2
        active = returns[:, :half].mean(axis=1) - returns.mean(axis=1)
        active_mean = edge * float(active.std(ddof=1)) / math.sqrt(BARS_PER_YEAR)
        share = half / returns.shape[1]
        returns[:, :half] += active_mean
        returns[:, half:] -= active_mean * share / (1.0 - share)
    prices = 100.0 * np.vstack([np.ones(returns.shape[1]), np.cumprod(1.0 + returns, axis=0)])
    return MarketPanel(dates=panel.dates[bars.start : bars.stop], assets=panel.assets, close=prices)


def process_after(panel: MarketPanel, start: int, config: Config) -> DecisionProcess:
    """Decision process of a market, whose features and moments are fitted on the bars before ``start``."""
    features = compute_features(panel, start)
    moments = equal_weight_moments(panel, config.env.fill, range(features.first_bar, start))
    return DecisionProcess(panel, features, config.env, config.objectives, moments)


def judging_hash(config: Config) -> str:
    """Hash of the prices, the features, the costs and the evaluation, which a study without a training depends on."""
    deciding = config.model_dump(mode="json", include={"market", "features", "env", "evaluation"})
    return short_hash(json.dumps(deciding, sort_keys=True))


def weights_hash(policy: ExpertPolicy) -> str:
    """Hash of the parameters of an agent that is judged."""
    arrays = (tensor.numpy().tobytes() for tensor in policy.state_dict().values())
    return hashlib.sha256(b"".join(arrays)).hexdigest()[:16]


def judge_market(
    process: DecisionProcess, strategies: Sequence[Strategy], config: Config, samples: int
) -> dict[str, dict[str, Any]]:
    """Verdicts of strategies on a market, after its first `WARM_UP` bars, on the ledger of every report.

    Parameters
    ----------
    process : DecisionProcess
        Of the market; an agent among the strategies reads its features.

    Returns
    -------
    dict
        Strategy -> ``answer``; whether it would have been a yes against daily equal weight alone (``daily``); and the
        figures of the three tests against that: ``dsr``, ``p``, ``low``.
    """
    rivals: list[Strategy] = [EqualWeight(), PatientEqualWeight()]
    decisions = range(WARM_UP, process.panel.n_bars)
    baseline, patient, *runs = run_backtests(process, decisions, [*rivals, *strategies])
    resampling = Resampling(samples, config.evaluation.block_length, seed=0)
    draws, against = draw_days(len(baseline.returns), resampling), (baseline.returns, patient.returns)
    found = {}
    for run in runs:
        verdict = judge(run.returns, against, run.cash_returns, Tries(), resampling, draws)
        p = math.nan if verdict.spa is None else verdict.spa.p_consistent
        found[run.name] = {
            "answer": verdict.beats_equal_weight,
            "daily": all(reason.enough for reason in verdict.reasons[:3]),
            "dsr": verdict.dsr,
            "p": p,
            "low": (verdict.sharpe_difference_interval or [math.nan])[0],
        }
    return found


def study_markets(study: NullStudy, policy: ExpertPolicy | None, notes: Path) -> list[dict[str, Any]]:
    """Judge every market of a study that is not in the notes yet.

    Parameters
    ----------
    policy : ExpertPolicy, optional
        A frozen agent, judged on the null markets as the rules are, with features as in its training.
    """
    config = load_config(None, {"evaluation.rebalance_every": EVERY}, environ={})
    training_data = prepare(config)
    test = training_data.split.test
    bars = range(test.start - WARM_UP, test.stop)

    def judge(edge: float, seed: int) -> dict[str, Any]:
        panel = permuted_panel(training_data.panel, bars, seed, edge)
        names = RULES if edge == 0.0 else ("momentum",)
        strategies: list[Strategy] = [FirstHalf(), *(named_strategy(name, config.evaluation) for name in names)]
        if policy is not None and edge == 0.0:
            strategies.append(AgentStrategy(policy, torch.device("cpu"), "demo agent, frozen"))
        return judge_market(process_on(training_data, panel), strategies, config, study.samples)

    facts = {"agent": None if policy is None else weights_hash(policy), "configuration": judging_hash(config)}
    return judge_missing(study, facts, notes, judge)


def judge_missing(
    study: NullStudy, facts: Mapping[str, Any], notes: Path, judge: Callable[[float, int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Judge every market of a study that is not in the notes yet.

    Parameters
    ----------
    facts : mapping
        What results depend on besides the code and the number of samples.
    notes : Path
        One line a market, so that a study that was stopped goes on; of other code or another study: passed over.
    judge : callable
        Gives the verdicts of the market with an edge and a seed.

    Returns
    -------
    list of dict
        ``edge``, ``seed``, and ``verdicts``: strategy -> ``answer``, ``daily`` and others.
    """
    stamp = {"code": code_hash(), "samples": study.samples, **facts}
    lines = [json.loads(line) for line in notes.read_text("utf-8").splitlines()] if notes.is_file() else []
    known = {(one["edge"], one["seed"]): one for one in lines if one["stamp"] == stamp}
    markets = [(0.0, seed) for seed in range(study.markets)]
    markets += [(size, seed) for size in study.sizes for seed in range(study.planted)]
    for edge, seed in markets:
        if (edge, seed) not in known:
            known[edge, seed] = {"edge": edge, "seed": seed, "stamp": stamp, "verdicts": judge(edge, seed)}
            append_line(notes, json.dumps(known[edge, seed]))
    return [known[market] for market in markets]


def frozen_agent(demo: Path, folder: Path) -> ExpertPolicy:
    """The policy of a demo training on the embedded market, trained when it is not there yet; reads no test window."""
    config = load_config(demo, places_in(folder), environ={})

    def trained() -> dict[str, str]:
        return {"checkpoint": str(CheckpointFolder(train_both(config).run_folder / MODELS).path(BEST))}

    known = kept_result(folder / "frozen.json", "demo", {"configuration": config_hash(config)}, trained)
    return read_checkpoint(Path(known["checkpoint"])).agent.policy(torch.device("cpu"))


#: Number of verdicts that each of the three tests agrees with.
AGREEING: dict[str, Callable[[Verdicts], Any]] = {
    "dsr": lambda verdicts: sum(one["dsr"] >= CONFIDENCE for one in verdicts),
    "spa": lambda verdicts: sum(one["p"] < SIZE for one in verdicts),
    "interval": lambda verdicts: sum(one["low"] > 0.0 for one in verdicts),
}


def summarise_study(
    results: Sequence[Result], figures: Mapping[str, Callable[[Verdicts], Any]] = AGREEING
) -> list[dict[str, Any]]:
    """Counts of answers, and other figures of the verdicts, by edge and strategy."""
    rows = []
    for edge, markets in grouped(results, "edge").items():
        for name in markets[0]["verdicts"]:
            verdicts = [one["verdicts"][name] for one in markets]
            answers = Counter(one["answer"] for one in verdicts)
            row = {"edge": edge, "strategy": name, "markets": len(verdicts)}
            row |= {answer: answers[answer] for answer in ("yes", "not shown", "no")}
            row |= {"daily": sum(one["daily"] for one in verdicts)}
            rows.append(row | {figure: value_of(verdicts) for figure, value_of in figures.items()})
    return rows


def study_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown tables: the null, and the planted edges with the power and its 95 % interval (Wilson)."""
    columns = ("markets", "yes", "not shown", "no", "daily", "dsr", "spa", "interval")
    heads = ("markets", "yes", "not shown", "no", "all three", "DSR >= 0.95", "SPA p < 0.05", "interval over 0")
    nulls = [[row["strategy"], *(row[key] for key in columns)] for row in rows if row["edge"] == 0.0]
    planted = []
    for row in rows:
        if row["edge"] != 0.0:
            power = share_interval(row["yes"], row["markets"], 0, "wilson")
            planted.append([f"{row['edge']:g}", row["strategy"], row["markets"], row["yes"], power, row["no"]])
    edges = ("edge, annual Sharpe ratio", "strategy", "markets", "yes", "power", "no")
    return (
        f"## Markets without an edge\n\n{markdown_table(('strategy', *heads), nulls)}\n"
        f"## Markets with a planted edge\n\n{markdown_table(edges, planted)}"
    )
