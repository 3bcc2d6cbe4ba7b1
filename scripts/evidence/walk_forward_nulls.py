"""Error rate of a walk-forward's verdict over all judged years, and its power where an edge is planted.

The markets are those of `null_markets`, here of the bars before the test window: labels permuted at each date. The
windows are those that a walk-forward of the defaults judges, and the verdict is the one of its page. In place of
trainings, which find nothing there either, each fold has rules that know what its training would know: portfolios
drawn at random and held, anew for each fold, and the half of the assets that did best in the fold's learning bars.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finflow.arrays import FloatArray
from finflow.config import Config, load_config
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.evaluation.multi_run.repeated_trainings import joined
from finflow.evaluation.statistics.bootstrap import Resampling
from finflow.evaluation.statistics.significance_tests import Tries
from finflow.evaluation.statistics.verdict import judge
from finflow.experiments.jobs.walk_forward import Fold, folds_of, history_of, load_before_test
from finflow.market.panel import MarketPanel
from finflow.provenance import code_hash
from finflow.strategies.classical import EqualWeight, PatientEqualWeight, named_strategy
from finflow.strategies.strategy import Information, Strategy, with_cash
from scripts.evidence.null_markets import (
    EVERY,
    TILT,
    FirstHalf,
    NullStudy,
    Verdicts,
    judge_missing,
    judging_hash,
    permuted_panel,
    process_after,
    summarise_study,
)
from scripts.evidence.results import write_result
from scripts.evidence.tables import markdown_table, share_interval

RANDOM, WINNERS = "random portfolio", "past winners"
RULES = ("inverse-volatility",)
STUDY = NullStudy(sizes=(0.25, 0.5, 0.75, 1.0))


@dataclass(frozen=True, eq=False)
class HeldWeights:
    """A portfolio that is restored at every decision.

    Attributes
    ----------
    weights : float64 (assets,)
        They sum to one.
    """

    name: str
    weights: FloatArray

    def decide(self, information: Information) -> FloatArray:
        """The weights and no cash, (K,)."""
        return with_cash(self.weights)


def untrained(fold: Fold, panel: MarketPanel, seed: int, config: Config) -> list[Strategy]:
    """Rules for the window of one fold, none of which knows more than its training would."""
    (learned,) = fold.pieces
    past = panel.close[learned.stop - 1] / panel.close[learned.start]
    best = np.argsort(np.argsort(-past)) < panel.n_assets // 2
    drawn = np.random.default_rng([seed, fold.number]).dirichlet(np.ones(panel.n_assets))
    rules = [named_strategy(name, config.evaluation) for name in RULES]
    return [FirstHalf(), HeldWeights(RANDOM, drawn), HeldWeights(WINNERS, best / best.sum()), *rules]


def judge_joined_market(panel: MarketPanel, config: Config, seed: int, edge: float, samples: int) -> dict[str, Any]:
    """Verdicts over all judged windows of a market's walk-forward.

    Parameters
    ----------
    edge : float
        Where one is planted, only the rule that knows it is judged.

    Returns
    -------
    dict
        Strategy -> ``answer``; whether all three tests hold against daily equal weight alone (``daily``); the
        difference of Sharpe ratios' ``low`` end; and the ``least`` difference for a yes with a power of 80 %.
    """
    folds = folds_of("walk-forward", panel.n_bars, config.evaluation.protocol, history_of(panel))
    learned = folds[0].tests[0].start
    process = process_after(panel, learned, config)
    played: list[tuple[Backtest, ...]] = []
    for fold in folds:
        rules = untrained(fold, panel, seed, config)
        strategies: list[Strategy] = [EqualWeight(), PatientEqualWeight(), *(rules[:1] if edge else rules)]
        played.append(run_backtests(process, fold.tests[0], strategies))
    baseline, patient, *runs = (joined(parts) for parts in zip(*played, strict=True))
    resampling = Resampling(samples, config.evaluation.block_length, seed=0)
    rivals = (baseline.returns, patient.returns)
    found = {}
    for run in runs:
        verdict = judge(run.returns, rivals, run.cash_returns, Tries(), resampling, bars_per_year=run.bars_per_year)
        found[run.name] = {
            "answer": verdict.beats_equal_weight,
            "daily": all(reason.enough for reason in verdict.reasons[:3]),
            "low": (verdict.sharpe_difference_interval or [math.nan])[0],
            "least": math.nan if (least := verdict.least_sharpe_difference) is None else least.of_yes,
            "days": len(run.returns),
        }
    return found


def study_joined(study: NullStudy, notes: Path) -> list[dict[str, Any]]:
    """Judge every market of a study that is not in the notes yet: see `judge_missing`."""
    config = load_config(None, {"evaluation.rebalance_every": EVERY}, environ={})
    panel, _ = load_before_test(config)

    def judge(edge: float, seed: int) -> dict[str, Any]:
        market = permuted_panel(panel, range(panel.n_bars), seed, edge)
        return judge_joined_market(market, config, seed, edge, study.samples)

    return judge_missing(study, {"configuration": judging_hash(config)}, notes, judge)


#: Judged days, and the median of the least difference for a yes.
FIGURES: dict[str, Callable[[Verdicts], Any]] = {
    "days": lambda verdicts: verdicts[0]["days"],
    "least": lambda verdicts: float(np.median([one["least"] for one in verdicts])),
}


def joined_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown tables: the null with the share of yes, the planted edges with the power; 95 % intervals (Wilson)."""
    columns = ("not shown", "no", "daily")
    nulls, planted = [], []
    for row in rows:
        share = share_interval(row["yes"], row["markets"], method="wilson")
        shown = [row["markets"], row["yes"], share, *(row[key] for key in columns), f"{row['least']:.2f}"]
        if row["edge"] == 0.0:
            nulls.append([row["strategy"], *shown])
        else:
            planted.append([f"{row['edge']:g}", *shown])
    heads = ("not shown", "no", "all three", "least Sharpe difference, median")
    return (
        "### Markets without an edge\n\n"
        + markdown_table(("strategy", "markets", "yes", "share of yes", *heads), nulls)
        + f"\n### Markets with a planted edge: {TILT}\n\n"
        + markdown_table(("edge, annual Sharpe ratio", "markets", "yes", "power", *heads), planted)
    )


def walk_forward_page(kept: Path, notes: Path, study: NullStudy = STUDY) -> str:
    """Make what is missing, keep the counts, and give the tables of the page."""
    rows = summarise_study(study_joined(study, notes), FIGURES)
    write_result(kept, "walk-forward", {"code": code_hash(), "samples": study.samples, "rows": rows})
    made = f"{rows[0]['days']:,} judged days; {study.samples} resamples a verdict, mean block 21 days."
    return f"{joined_table(rows)}\nCode {code_hash()}; {made}\n"
