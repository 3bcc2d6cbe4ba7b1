"""Quality of the weights held: against a known optimum, and as a ranking of the assets.

**Optimum.** In a synthetic market a strategy scores (U - U0) / (U* - U0); NaN where the optimum is not measurably
better. U is the expected log growth a bar, net of costs; U* that of the optimal policy, U0 the better of equal weight
and holding. All of them are measured on the same bars, and growth over a bar is replaced by its expectation under the
price process, given the weights held and the prices up to the fill. That has the same mean as the growth itself without
most of its noise.

**Ranking.** Do the assets held most rise most?

At every fill the assets that can be followed to the horizon are ranked by the weight held and by the return that came
after, from the fill on. Four figures, each a mean over the fills:

- *NDCG@K* (Jarvelin and Kekalainen 2002; equal to scikit-learn's, ties averaged), with an asset's gain its place by
  realised return, from 0 for the worst to 1 for the best.
- *Hit@K*: how often the best asset was among the K largest weights.
- *MRR@K*: one over the place of the best asset among the weights, 0 beyond the K-th.
- *Rank IC*: Spearman's correlation of weights and returns; fills at which all weights are equal are left out.

Where weights are equal, places are shared out: a figure is its mean over all orders of the equals. So a portfolio of
equal weights has exactly what chance would have, which is shown with each figure. Errors of the rank IC are those of
Newey and West with twice as many lags as returns overlap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import scipy

from finflow.arrays import BoolArray, FloatArray
from finflow.env.decision_process import DecisionProcess
from finflow.env.rewards.ranking_reward import mean_worth, shared_places, worth_of_places
from finflow.errors import MarketError
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.page.page_numbers import Number, about
from finflow.evaluation.page.section import ROW, Cell, Section, make_table
from finflow.evaluation.statistics.significance_tests import newey_west
from finflow.market.bar_frequency import bar_name
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


HORIZONS = (1, 5, 21, 63)
TOP = 5  # K of the measures, in assets
FEWEST_FILLS = 20
FEWEST_ASSETS = 3


@dataclass(frozen=True)
class Ranking:
    """Quality of the weights as a ranking at one horizon, what chance would have, and how many fills were ranked."""

    ndcg: float
    hit: float
    mrr: float
    ndcg_chance: float
    hit_chance: float
    mrr_chance: float
    rank_ic: float
    rank_ic_error: float
    fills: int


def rank(weights: FloatArray, forward: FloatArray, top: int, overlap: int = 0) -> Ranking | None:
    """Compare weights, without cash, with the returns that came after, both (fills, assets).

    Parameters
    ----------
    forward : float64 (fills, assets)
        Returns from each fill to the horizon; NaN where an asset cannot be followed to it.
    top : int
        K; at most the number of assets.
    overlap : int
        Fills that a return overlaps with.

    Returns
    -------
    Ranking or None
        None for fewer than `FEWEST_FILLS` fills with `FEWEST_ASSETS` assets.
    """
    followed = np.isfinite(forward)
    rows = np.flatnonzero(followed.sum(axis=1) >= FEWEST_ASSETS)
    if len(rows) < FEWEST_FILLS:
        return None
    found: FloatArray = np.empty((len(rows), 7))
    sets, set_of = np.unique(followed[rows], axis=0, return_inverse=True)
    for n, assets in enumerate(sets):
        fills = rows[set_of == n]
        found[set_of == n] = _of_fills(weights[fills][:, assets], forward[fills][:, assets], top)
    correlations = found[:, 6]
    mean, error = _mean_and_error(correlations[np.isfinite(correlations)], overlap)
    ndcg, hit, mrr, ndcg_chance, hit_chance, mrr_chance = found[:, :6].mean(axis=0).tolist()
    return Ranking(ndcg, hit, mrr, ndcg_chance, hit_chance, mrr_chance, mean, error, len(rows))


def _of_fills(held: FloatArray, realised: FloatArray, top: int) -> FloatArray:
    """NDCG, hit and reciprocal rank of fills, each by chance too, and the rank correlation: (fills, 7)."""
    count = held.shape[1]
    k = min(top, count)
    places, ranks = scipy.stats.rankdata(realised, axis=1), scipy.stats.rankdata(held, axis=1)
    gains, by_place = (places - 1.0) / (count - 1.0), worth_of_places("ndcg", count, k)
    first, after = shared_places(held, np.ones(held.shape, dtype=np.bool_))
    worth, hits = (mean_worth(first, after, worth_of_places(name, count, k)) for name in ("ndcg", "hit"))
    inverse = worth_of_places("mrr", count, k)
    varied = (np.ptp(ranks, axis=1) > 0.0) & (np.ptp(places, axis=1) > 0.0)
    figures = []
    for n, best in enumerate(realised.argmax(axis=1)):
        ideal = np.sort(gains[n])[::-1] @ by_place
        figures.append(
            (
                gains[n] @ worth[n] / ideal,
                hits[n, best],
                inverse[first[n, best] : after[n, best]].mean(),
                gains[n].mean() * by_place.sum() / ideal,
                k / count,
                inverse.mean(),
                np.corrcoef(ranks[n], places[n])[0, 1] if varied[n] else math.nan,
            )
        )
    return np.array(figures)


def _mean_and_error(values: FloatArray, overlap: int) -> tuple[float, float]:
    """Mean of a series, and its standard error with twice as many lags as its values overlap.

    Bartlett's weights fall from the first lag on: with only as many lags as there is overlap, the error would come out
    a fifth too small.
    """
    if len(values) < FEWEST_FILLS:
        return math.nan, math.nan
    if np.ptp(values) <= 0.0:
        return float(values[0]), math.nan
    fit = newey_west(values, np.ones(len(values)), 2 * overlap)
    return float(fit.params[0]), float(fit.bse[0])


def forward_returns(growth: FloatArray, listed: BoolArray, bars: range, horizon: int) -> FloatArray:
    """Returns from each of ``bars`` to ``horizon`` bars later, (bars, assets).

    NaN beyond the bar after the last of them, and where an asset is not listed at both ends.
    """
    level = np.cumprod(growth[:, :-1], axis=0)
    found: FloatArray = np.full((len(bars), level.shape[1]), np.nan)
    starts = np.arange(bars.start, bars.stop - horizon + 1)
    returns = level[starts + horizon] / level[starts] - 1.0
    found[: len(starts)] = np.where(listed[starts] & listed[starts + horizon], returns, np.nan)
    return found


def rank_run(process: DecisionProcess, window: range, run: Backtest, horizon: int) -> Ranking | None:
    """Rank the weights of a backtest at one horizon (bars), with K = `TOP`; None for too few fills or assets."""
    forward = forward_returns(process.growth, process.listed, process.decision_bars(window), horizon)
    return rank(run.weights[:, :-1], forward, TOP, horizon - 1)


def ranking_section(process: DecisionProcess, window: range, run: Backtest) -> Section | None:
    """Rank the judged strategy's weights at every horizon; parameters as in `rank_run`."""
    rankings = {horizon: rank_run(process, window, run, horizon) for horizon in HORIZONS}
    found = {str(horizon): ranking for horizon, ranking in rankings.items() if ranking is not None}
    if not found:
        return None
    k = min(TOP, run.weights.shape[1] - 1)
    place = ("horizons", ROW)
    columns = []
    for name, unit, digits in (("NDCG", "", 3), ("Hit", "%", 1), ("MRR", "", 3)):
        columns.append((f"{name}@{k}", Cell((*place, name.lower()), unit, digits)))
        columns.append(("by chance", Cell((*place, f"{name.lower()}_chance"), unit, digits)))
    columns += [
        ("Rank IC", Cell((*place, "rank_ic"), "", 3, error=(*place, "rank_ic_error"), plus=True)),
        ("Fills", Cell((*place, "fills"), "", 0)),
    ]
    rows = [((key,), f"{key} {bar_name(run.bars_per_year)}{'s' if key != '1' else ''}") for key in found]
    words = (
        f"Whether the assets that {run.name} held most were those that rose most afterwards. Hit is how often the best "
        "asset was among the largest weights, and MRR one over its place; a rank IC of zero is no relation at all.",
    )
    caption = "± is a standard error (Newey and West)."
    table = make_table("The weights as a ranking of assets", "Horizon", rows, columns, caption)
    return Section("ranking", "Ranking view", {"k": k, "horizons": found}, (table,), words=words)
