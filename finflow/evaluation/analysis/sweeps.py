"""Backtests at other costs, lags and capitals: break-even cost, and capacity.

Every strategy is run again, fresh, on the same ledger, since what it decides may depend on what it holds. Costs of the
sweep replace commission and slippage by one proportional cost; the others (`env.costs`) stay as configured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import scipy

from finflow.config import CostsConfig
from finflow.cores import forked
from finflow.env.decision_process import DecisionProcess
from finflow.env.process_variants import with_costs, with_lag
from finflow.errors import ConfigError
from finflow.evaluation.backtest import BASELINE, Backtest, run_backtests
from finflow.evaluation.comparison_context import ComparisonContext
from finflow.evaluation.page.page_numbers import show
from finflow.evaluation.page.section import ROW, Cell, Section, Sentence, Table, make_table
from finflow.evaluation.statistics import metrics
from finflow.strategies.classical import EqualWeight
from finflow.strategies.strategy import Strategy

COSTS = (0.0, 5.0, 10.0, 25.0, 50.0)
LAGS = (0, 1, 2)
CAPITALS = (1e4, 1e5, 1e6, 1e7, 1e8, 1e9)
SHOWN = ("sharpe", "annual_return", "annual_turnover", "annual_cost")
HIGHEST_BPS = 1000.0
SMALLEST_CAPITAL, LARGEST_CAPITAL = 1e2, 1e16
BPS_TOLERANCE = 1e-6
CAPITAL_TOLERANCE = 1e-4  # relative
STEP = 2.0  # from one cost to the next in the search for a change of sign


def section(context: ComparisonContext) -> Section:
    """Run the sweeps, that over lags in a process of its own, and say what they found."""
    with forked(partial(_over_lags, context)) as slower:
        costs = {f"{bps:g}": context.backtest(_at_cost(context.process, bps)) for bps in COSTS}
        numbers: dict[str, object] = {"costs_bps": {key: _figures(runs) for key, runs in costs.items()}}
        even = _break_even(context, costs, numbers)
    lags, left_out = slower()
    numbers["lags"] = lags
    words: list[Sentence] = [
        "Each strategy run again under other conditions. The first column is as configured; costs are one proportional "
        "cost on every trade, in place of commission and slippage.",
        *even,
        *left_out,
        *_capital(context, numbers),
    ]
    numbers["configured"] = _figures({run.name: run for run in context.runs})
    tables = [
        _table(context, "Sharpe ratio by cost", "costs_bps", [(key, f"{key} bp") for key in costs]),
        _table(context, "Sharpe ratio by lag", "lags", [(key, f"lag {key}") for key in lags]),
    ]
    if numbers["capital"]:
        shown = (("Sharpe", "sharpe", "", 2), ("costs a year", "annual_cost", "%", 2))
        columns = [
            (f"{name}: {what}", Cell(("capital", ROW, name, metric), unit, digits))
            for name in _pair(context)
            for what, metric, unit, digits in (*shown, ("trades refused", "refused", "", 0))
        ]
        rows = [((f"{capital:.0f}",), show(capital, ",", 0)) for capital in CAPITALS]
        tables.append(make_table("By initial capital", "Capital", rows, columns))
    return Section("sweeps", "Costs, lag and capital", numbers, tuple(tables), words=tuple(words))


def _at_cost(process: DecisionProcess, bps: float) -> DecisionProcess:
    """The process with one proportional cost in place of commission and slippage."""
    return with_costs(process, process.env.model_copy(update={"commission_bps": bps, "slippage_bps": 0.0}))


def _with_capital(process: DecisionProcess, capital: float) -> DecisionProcess:
    return with_costs(process, process.env.model_copy(update={"initial_capital": capital}))


def _over_lags(context: ComparisonContext) -> tuple[dict[str, dict[str, object]], list[str]]:
    found: dict[str, dict[str, object]] = {}
    for lag in LAGS:
        if lag == context.process.lag:
            found[str(lag)] = _figures({run.name: run for run in context.runs})
        elif lag or context.process.env.fill != "open":
            found[str(lag)] = _figures(context.backtest(with_lag(context.process, lag)))
    missing = len(found) < len(LAGS)
    return found, ["Fills at the open have no lag of 0: the close would be known before it."] if missing else []


def _break_even(
    context: ComparisonContext, costs: Mapping[str, Mapping[str, Backtest]], numbers: dict[str, object]
) -> list[Sentence]:
    found: dict[str, float | None] = {}
    words: list[Sentence] = []
    with forked(partial(_even, context, costs, mean_return)) as by_return:
        by_sharpe = _even(context, costs, metrics.sharpe_of)
    for key, bps, measure in (("return", by_return(), "return"), ("sharpe", by_sharpe, "Sharpe ratio")):
        beyond = bps is not None and not np.isfinite(bps)
        found |= {f"{key}_bps": None if beyond else bps, f"{key}_beyond_bps": HIGHEST_BPS if beyond else None}
        judged = f"By {measure}, {context.judged}"
        if beyond:
            highest = Cell(("break_even", f"{key}_beyond_bps"), "bp", 0)
            words.append((f"{judged} is ahead of equal weight at up to ", highest, " a trade."))
        elif bps == 0.0:
            words.append(f"{judged} is not ahead of equal weight even where trading is free.")
        elif bps is not None:
            even = Cell(("break_even", f"{key}_bps"), "bp", 1)
            words.append((f"{judged} breaks even with equal weight at ", even, " a trade."))
    numbers["break_even"] = found
    return words


def _even(
    context: ComparisonContext, costs: Mapping[str, Mapping[str, Backtest]], score: Callable[[Backtest], float]
) -> float | None:
    """The cost at which the judged strategy scores as equal weight does; None where that is undefined."""
    if BASELINE not in context.makers or context.judged == BASELINE:
        return None
    known = {float(bps): score(runs[context.judged]) - score(runs[BASELINE]) for bps, runs in costs.items()}
    if not np.isfinite(list(known.values())).all():
        return None
    return break_even_bps(context.process, context.window, context.makers[context.judged], known, 0.01, score)


def mean_return(run: Backtest) -> float:
    return float(run.returns.mean())


def _capital(context: ComparisonContext, numbers: dict[str, object]) -> list[Sentence]:
    process = context.process
    grows = process.costs.needs_market
    numbers |= {"capital": {}, "capacity": None}
    if not grows and process.env.costs.minimum <= 0.0:
        volumes = "volumes: env.costs.impact and similar keys would use them."
        if process.panel.volume is None:
            volumes = "no volumes to compute participation and impact from."
        none = "Capital plays no part here: no configured cost depends on the size of the account."
        return [f"{none} The market has {volumes}"]
    names = _pair(context)
    numbers["capital"] = {
        f"{capital:.0f}": _figures(context.backtest(_with_capital(process, capital), names=names))
        for capital in CAPITALS
    }
    if not grows:
        return ["Capital matters only through the minimum commission of a trade: no configured cost grows with size."]
    found = capacity(process, context.window, context.makers[context.judged], tolerance=0.02)
    numbers["capacity"] = found if np.isfinite(found) else None
    if found == 0.0:
        return [
            f"{context.judged} has no capacity: it earned no more than equal weight even without size-dependent costs."
        ]
    if not np.isfinite(found):
        return ["Size-dependent costs never take half of what is earned over equal weight, up to a capital of 1e16."]
    half = "half of what it earns over equal weight"
    return [("Capacity: with ", Cell(("capacity",), ",", 0), f" to begin with, size-dependent costs take {half}.")]


def _figures(runs: Mapping[str, Backtest]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, run in runs.items():
        known = metrics.summarise(run)
        refused = 0 if run.refused is None else int(run.refused.sum())
        found[name] = {**{metric: known[metric] for metric in SHOWN}, "refused": refused}
    return found


def _table(context: ComparisonContext, title: str, key: str, columns: list[tuple[str, str]]) -> Table:
    cells = [(heading, Cell((key, place, ROW, "sharpe"))) for place, heading in columns]
    cells.insert(0, ("as configured", Cell(("configured", ROW, "sharpe"))))
    return make_table(title, "Strategy", context.makers, cells, marked=context.judged)


def _pair(context: ComparisonContext) -> list[str]:
    return [name for name in dict.fromkeys((context.judged, BASELINE)) if name in context.makers]


def break_even_bps(
    process: DecisionProcess,
    window: range,
    make: Callable[[], Strategy],
    known: Mapping[float, float] | None = None,
    tolerance: float = BPS_TOLERANCE,
    score: Callable[[Backtest], float] = mean_return,
) -> float:
    """The proportional cost (bp of the value traded) at which a strategy scores what equal weight does.

    Parameters
    ----------
    known : mapping, optional
        Costs in basis points at which the score less that of equal weight is known already.
    tolerance : float
        Of the answer, in basis points.

    Returns
    -------
    float
        Zero where the strategy does not beat equal weight even for nothing; infinite where it still does at 1000, as
        one that trades less than equal weight may. Where the excess changes its sign more than once, about the lowest.
    """
    found = dict(known or {})

    def excess(bps: float) -> float:
        if bps not in found:
            own, equal = run_backtests(_at_cost(process, bps), window, [make(), EqualWeight()])
            found[bps] = score(own) - score(equal)
        return found[bps]

    if excess(0.0) <= 0.0:
        return 0.0
    low, ladder = 0.0, sorted(bps for bps in found if bps > 0.0) or [1.0]
    high = ladder.pop(0)
    while excess(high) > 0.0:
        if high >= HIGHEST_BPS:
            return float("inf")
        low, high = high, ladder.pop(0) if ladder else min(STEP * high, HIGHEST_BPS)
    return float(scipy.optimize.brentq(excess, low, high, xtol=tolerance, rtol=1e-12))


def capacity(
    process: DecisionProcess, window: range, make: Callable[[], Strategy], tolerance: float = CAPITAL_TOLERANCE
) -> float:
    """The initial capital at which costs that grow with size take half of what a strategy earns beyond equal weight.

    What it earns is its mean net return over that of equal weight, both without those costs; what they take is the
    strategy's own mean net return without them less that with them. An order that the account cannot pay for is beyond
    capacity. ``tolerance`` is relative.

    Returns
    -------
    float
        Zero where the strategy does not beat equal weight, or half is gone, at a capital of 100 already; infinite where
        it is not gone at 1e16.

    Raises
    ------
    ConfigError
        If no cost of the process grows with size.
    """
    if not process.costs.needs_market:
        raise ConfigError("capacity needs a cost that grows with size: set env.costs.impact (1 is usual) above zero")
    free: list[float] = []

    def bearable(capital: float) -> bool:
        sized = _with_capital(process, capital)
        env = sized.env
        if not free or env.costs.minimum > 0.0:  # else capital plays no part without the costs that grow with size
            unhindered = with_costs(process, env.model_copy(update={"costs": CostsConfig(minimum=env.costs.minimum)}))
            both = run_backtests(unhindered, window, [make(), EqualWeight()])
            free[:] = [float(run.returns.mean()) for run in both]
        (full,) = run_backtests(sized, window, [make()])
        ideal, equal = free
        return full.refused is None and ideal - float(full.returns.mean()) < 0.5 * (ideal - equal)

    low = SMALLEST_CAPITAL
    if not bearable(low):
        return 0.0
    while bearable(high := 10.0 * low):
        if high >= LARGEST_CAPITAL:
            return float("inf")
        low = high
    while high / low > 1.0 + tolerance:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if bearable(middle) else (low, middle)
    return low
