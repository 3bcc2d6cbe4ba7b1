"""Objectives of a search: values of a backtest, more being better in all, and their aggregate over trainings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from finflow.config import RANKING_OBJECTIVES
from finflow.errors import EvidenceError
from finflow.evaluation.analysis.ranking import Ranking
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.statistics.metrics import summarise
from finflow.evaluation.statistics.significance_tests import track_of


def measure_objectives(
    names: Sequence[str],
    backtest: Backtest,
    alpha: float,
    baseline: Backtest | None = None,
    tries: int = 1,
    ranking: Ranking | None = None,
) -> tuple[float, ...]:
    """Objectives of a backtest, in the order of their names; NaN where one is undefined.

    Parameters
    ----------
    alpha
        Share of the tail that ``cvar`` is the mean of.
    baseline
        Equal weight over the same days, for ``dsr``: the deflated Sharpe ratio of the return over it.
    ranking
        Of the backtest's weights, for ``ndcg``, ``hit``, ``mrr`` and ``rank_ic``; these are undefined without.
    """
    known = summarise(backtest, alpha)
    known |= {name: math.nan if ranking is None else float(getattr(ranking, name)) for name in RANKING_OBJECTIVES}
    return tuple(_dsr(backtest, baseline, tries) if name == "dsr" else known[name] for name in names)


def _dsr(backtest: Backtest, baseline: Backtest | None, tries: int) -> float:
    """Deflated Sharpe ratio for so many tries, whose Sharpe ratios vary as those of strategies without skill."""
    if baseline is None:
        raise ValueError("the deflated Sharpe ratio is one of the return over equal weight")
    try:
        track = track_of(backtest.returns - baseline.returns)
    except EvidenceError:
        return math.nan
    return track.dsr(tries, 1.0 / (track.days - 1))


def aggregate_values(values: Sequence[float], how: str, deviations: float) -> float:
    """Aggregate of the values of several trainings; NaN where one of them is.

    Parameters
    ----------
    how
        ``median``, ``mean``, or ``cautious``: the mean less ``deviations`` times the standard deviation (n - 1).
    """
    array = np.asarray(values, dtype=np.float64)
    if how == "median":
        return float(np.median(array))
    spread = float(array.std(ddof=1)) if how == "cautious" and len(array) > 1 else 0.0
    return float(array.mean()) - deviations * spread
