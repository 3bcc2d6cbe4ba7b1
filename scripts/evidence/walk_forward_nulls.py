"""Error rate of a walk-forward's verdict over all judged years, and its power where an edge is planted.

The markets are those of `null_markets`, here of the bars before the test window: labels permuted at each date. The
windows are those that a walk-forward of the defaults judges, and the verdict is the one of its page. In place of
trainings, which find nothing there either, each fold has rules that know what its training would know: portfolios
drawn at random and held, anew for each fold, and the half of the assets that did best in the fold's learning bars.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.config import Config, load_config
from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import equal_weight_moments
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.evaluation.multi_run.joined_verdict import judge_joined
from finflow.evaluation.multi_run.repeated_trainings import joined
from finflow.evaluation.statistics.readings_ledger import Tries
from finflow.evaluation.statistics.significance_tests import Resampling
from finflow.experiments.jobs.folds import Fold, folds_of, history_of, load_before_test
from finflow.files import write_atomically
from finflow.line_file import append_line
from finflow.market.features.feature_set import compute_features
from finflow.market.panel import MarketPanel
from finflow.provenance import code_hash
from finflow.strategies.classical import EqualWeight, PatientEqualWeight, named_strategy
from finflow.strategies.strategy import Information, Strategy, with_cash
from scripts.evidence.null_markets import EVERY, TILT, FirstHalf, permuted_panel, wilson
from scripts.evidence.tables import markdown_table

FloatArray = NDArray[np.float64]

RANDOM, WINNERS = "random portfolio", "past winners"
RULES = ("inverse-volatility",)


@dataclass(frozen=True)
class JoinedStudy:
    """Settings of the calibration of the joined verdict; as those of `NullStudy`."""

    markets: int = 200
    planted: int = 25
    sizes: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    samples: int = 500


@dataclass(frozen=True, eq=False)
class HeldWeights:
    """A portfolio that is restored at every decision.

    Attributes
    ----------
    name : str
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
    panel : MarketPanel
        Without a part that is held out.
    config : Config
    seed : int
        Of the random portfolios.
    edge : float
        Where one is planted, only the rule that knows it is judged.
    samples : int
        Resamples of the bootstrap.

    Returns
    -------
    dict
        Strategy -> ``answer``; whether all three tests hold against daily equal weight alone (``daily``); the
        difference of Sharpe ratios' ``low`` end; and the ``least`` difference for a yes with a power of 80 %.
    """
    folds = folds_of("walk-forward", panel.n_bars, config.evaluation.protocol, history_of(panel))
    learned = folds[0].tests[0].start
    features = compute_features(panel, learned)
    moments = equal_weight_moments(panel, config.env.fill, range(features.first_bar, learned))
    process = DecisionProcess(panel, features, config.env, config.objectives, moments)
    played: list[tuple[Backtest, ...]] = []
    for fold in folds:
        rules = untrained(fold, panel, seed, config)
        strategies: list[Strategy] = [EqualWeight(), PatientEqualWeight(), *(rules[:1] if edge else rules)]
        played.append(run_backtests(process, fold.tests[0], strategies))
    baseline, patient, *runs = (joined(parts) for parts in zip(*played, strict=True))
    resampling = Resampling(samples, config.evaluation.block_length, seed=0)
    found = {}
    for run in runs:
        verdict, least = judge_joined(run, baseline, patient, Tries(), resampling)
        found[run.name] = {
            "answer": verdict.answer,
            "daily": all(reason.enough for reason in verdict.reasons[:3]),
            "low": verdict.difference.low,
            "least": math.nan if least is None else least.of_yes,
            "days": len(run.returns),
        }
    return found


def study_joined(study: JoinedStudy, notes: Path) -> list[dict[str, Any]]:
    """Judge every market of a study that is not in the notes yet: one line a market; of other code: passed over."""
    config = load_config(None, {"evaluation.rebalance_every": EVERY}, environ={})
    panel, _ = load_before_test(config)
    stamp = {"code": code_hash(), "samples": study.samples}
    lines = [json.loads(line) for line in notes.read_text("utf-8").splitlines()] if notes.is_file() else []
    known = {(one["edge"], one["seed"]): one for one in lines if one["stamp"] == stamp}
    markets = [(0.0, seed) for seed in range(study.markets)]
    markets += [(size, seed) for size in study.sizes for seed in range(study.planted)]
    for edge, seed in markets:
        if (edge, seed) not in known:
            market = permuted_panel(panel, range(panel.n_bars), seed, edge)
            verdicts = judge_joined_market(market, config, seed, edge, study.samples)
            known[edge, seed] = {"edge": edge, "seed": seed, "stamp": stamp, "verdicts": verdicts}
            append_line(notes, json.dumps(known[edge, seed]))
    return [known[market] for market in markets]


def summarise_joined(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Counts of answers by edge and strategy, and the median of the least difference."""
    rows = []
    for edge in dict.fromkeys(one["edge"] for one in results):
        own = [one["verdicts"] for one in results if one["edge"] == edge]
        for name in own[0]:
            verdicts = [each[name] for each in own]
            answers = Counter(each["answer"] for each in verdicts)
            rows.append(
                {
                    "edge": edge,
                    "strategy": name,
                    "markets": len(verdicts),
                    "days": verdicts[0]["days"],
                    **{answer: answers[answer] for answer in ("yes", "not shown", "no")},
                    "daily": sum(each["daily"] for each in verdicts),
                    "least": float(np.median([each["least"] for each in verdicts])),
                }
            )
    return rows


def joined_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown tables: the null with the share of yes, the planted edges with the power; 95 % intervals (Wilson)."""
    columns = ("not shown", "no", "daily")
    nulls, planted = [], []
    for row in rows:
        low, high = wilson(row["yes"], row["markets"])
        share = f"{row['yes'] / row['markets']:.1%} ({low:.1%} to {high:.1%})"
        shown = [row["markets"], row["yes"], share, *(row[key] for key in columns), f"{row['least']:.2f}"]
        if row["edge"] == 0.0:
            nulls.append([row["strategy"], *shown])
        else:
            planted.append([f"{row['edge']:g}", *shown])
    heads = ("not shown", "no", "all three", "least Sharpe difference, median")
    return (
        "## Markets without an edge\n\n"
        + markdown_table(("strategy", "markets", "yes", "share of yes", *heads), nulls)
        + f"\n## Markets with a planted edge: {TILT}\n\n"
        + markdown_table(("edge, annual Sharpe ratio", "markets", "yes", "power", *heads), planted)
    )


def walk_forward_page(kept: Path, notes: Path, study: JoinedStudy | None = None) -> str:
    """Make what is missing, keep the counts, and give the tables of the page."""
    study = study or JoinedStudy()
    rows = summarise_joined(study_joined(study, notes))
    content = {"code": code_hash(), "samples": study.samples, "rows": rows}
    write_atomically(kept, json.dumps(content, indent=2, sort_keys=True) + "\n")
    made = f"{rows[0]['days']:,} judged days; {study.samples} resamples a verdict, mean block 21 days."
    return f"{joined_table(rows)}\nCode {code_hash()}; {made}\n"
