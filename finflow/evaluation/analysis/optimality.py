"""Score against a known optimum: (U - U0) / (U* - U0); NaN where the optimum is not measurably better.

U is the expected log growth a bar, net of costs; U* that of the optimal policy, U0 the better of equal weight and
holding. All of them are measured on the same bars, and growth over a bar is replaced by its expectation under the price
process, given the weights held and the prices up to the fill. That has the same mean as the growth itself without most
of its noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from finflow.env.decision_process import DecisionProcess
from finflow.errors import MarketError
from finflow.evaluation.backtest import Backtest, FloatArray
from finflow.evaluation.page.page_numbers import Number, about
from finflow.strategies.classical import BuyAndHold, EqualWeight
from finflow.strategies.optimal_policy import Optimum, expected_growth

_BATCH = 60
"""Bars in a batch of the standard error: longer than signals last."""
_CERTAIN = 3.0
"""Standard errors by which the optimum must beat the baseline for there to be anything to score ..."""
_LEAST_GAP = 2e-6
"""... and the log growth a bar (5 basis points a year)."""


@dataclass(frozen=True)
class OptimalityScore:
    """One strategy's score."""

    score: Annotated[Number, about("1 is the optimum, 0 the baseline.")]
    standard_error: Annotated[Number, about("Of the score.")]
    utility: Annotated[Number, about("Expected log growth a bar of its weights under the price process.")]


@dataclass(frozen=True)
class OptimumWindow:
    """The best policy and the baseline over this window."""

    optimum: Annotated[Number, about("Log growth a bar of the best policy.")]
    baseline: Annotated[Number, about("Of the better of equal weight and holding.")]
    baseline_name: Annotated[str, about("Name of that one.")]


@dataclass(frozen=True, eq=False)
class KnownOptimum:
    """Nearness to the best policy, in a synthetic market."""

    parameters: Annotated[Mapping[str, Any], about("Of the price process, per bar; the names depend on the process.")]
    method: Annotated[str, about("Method that found the best policy.")]
    policy: Annotated[
        Mapping[str, Any], about("Its targets for an account in equal weights; names depend on the method.")
    ]
    utility: Annotated[Number, about("Its log growth a bar, in the long run.")]
    window: Annotated[OptimumWindow, about("Over this window.")]
    scores: Annotated[Mapping[str, OptimalityScore], about("By strategy.")]


def score_runs(process: DecisionProcess, window: range, runs: Sequence[Backtest], best: Optimum) -> KnownOptimum:
    """Score backtests that were run side by side, the optimal policy, equal weight and holding among them.

    The process is of a panel drawn from the process of ``best``, with costs at which it is the optimum.
    """
    if process.panel.provenance.get("source") != "synthetic":
        raise MarketError("the score against the optimum needs a market with a known one: market.source=synthetic")
    growth = growth_of_runs(process, window, runs, best)
    references = [growth[name] for name in (best.policy.name, EqualWeight.name, BuyAndHold.name)]
    scores = {name: optimality(own, *references) for name, own in growth.items()}
    return KnownOptimum(
        parameters=process.panel.provenance["parameters"],
        method=best.method,
        utility=best.utility,
        policy=best.examples(process.panel.assets),
        window=next(iter(scores.values()))[1],
        scores={name: score for name, (score, _) in scores.items()},
    )


def optimality(
    strategy: FloatArray, optimal: FloatArray, equal: FloatArray, hold: FloatArray
) -> tuple[OptimalityScore, OptimumWindow]:
    """The score and its parts, from expected log growth of every bar, costs paid, (steps,) each.

    The error is by the delta method on batches.
    """
    name, baseline = ("equal-weight", equal) if equal.mean() >= hold.mean() else ("buy-and-hold", hold)
    gap = optimal - baseline
    value = error = math.nan
    if gap.mean() > max(_CERTAIN * _standard_error(gap), _LEAST_GAP):
        base = float(baseline.mean())
        value = (float(strategy.mean()) - base) / (float(optimal.mean()) - base)
        error = _standard_error(strategy - baseline - value * gap) / float(gap.mean())
    score = OptimalityScore(value, error, float(strategy.mean()))
    return score, OptimumWindow(float(optimal.mean()), float(baseline.mean()), name)


def growth_of_runs(
    process: DecisionProcess, window: range, runs: Sequence[Backtest], best: Optimum
) -> dict[str, FloatArray]:
    """Expected log growth of every bar of every run, costs paid, each (steps,); parameters as in `score_runs`."""
    prices, bars = best.policy.process, process.decision_bars(window)
    beliefs = prices.filtered(np.log(process.panel.close))[bars.start : bars.stop]
    cash = float(np.log1p(runs[0].cash_returns[0]))
    return {run.name: np.log1p(-run.costs) + expected_growth(prices, run.weights, beliefs, cash) for run in runs}


def _standard_error(values: FloatArray) -> float:
    """Of the mean of a series, from means of consecutive batches."""
    count = len(values) // _BATCH
    if count < 2:
        return math.inf
    means = values[: count * _BATCH].reshape(count, _BATCH).mean(axis=1)
    return float(means.std(ddof=1) / math.sqrt(count))
