"""Backtests under other conditions: costs, lags and capitals, with break-even cost and capacity, and stress periods.

Every strategy is run again, fresh, on the same ledger, since what it decides may depend on what it holds. Costs of the
sweep replace commission and slippage by one proportional cost; the others (`env.costs`) stay as configured.

**Stress periods.** A period inside the evaluation's window is a part of its backtest. Others are run on their own:
every strategy starts in cash `RUN_IN` bars before the first day, so that it holds what it means to hold when the period
begins, and only the days of the period count. An agent that learned from a period's days is no evidence of how it would
have done in it: such a period is marked in-sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import scipy

from finflow.arrays import FloatArray
from finflow.config import CostsConfig
from finflow.cores import shared_with_fork
from finflow.env.decision_process import DecisionProcess, with_trading
from finflow.evaluation.backtest import BASELINE, Backtest, ComparisonContext, index_backtest
from finflow.evaluation.page.page_numbers import show
from finflow.evaluation.page.section import ROW, Cell, Section, Sentence, make_table
from finflow.evaluation.statistics import metrics
from finflow.market.bar_frequency import BARS_PER_YEAR
from finflow.market.panel import Split

COSTS = (0.0, 5.0, 10.0, 25.0, 50.0)
LAGS = (0, 1, 2)
CAPITALS = (1e4, 1e5, 1e6, 1e7, 1e8, 1e9)
Figures = dict[str, dict[str, float]]
HIGHEST_BPS = 1000.0
LADDER = (*COSTS, 100.0, 200.0, 400.0, 800.0, HIGHEST_BPS)  # where the break-even cost is searched
SMALLEST_CAPITAL, LARGEST_CAPITAL = 1e2, 1e16
TOLERANCE_BPS, TOLERANCE_CAPITAL = 0.01, 0.02  # of break-even costs, and relative of the capacity
PERIODS = (
    ("2000-2002", "2000-01-01", "2002-12-31"),
    ("2008-2009", "2008-01-01", "2009-12-31"),
    ("February-March 2020", "2020-02-01", "2020-03-31"),
    ("2022", "2022-01-01", "2022-12-31"),
)
RUN_IN = 63  # daily bars: a quarter of a year; of longer bars twelve at least
SHORTEST = 10  # days that count


def mean_return(run: Backtest) -> float:
    return float(run.returns.mean())


SCORES = {"return": ("return", mean_return), "sharpe": ("Sharpe ratio", metrics.sharpe_of)}


def sweep_section(context: ComparisonContext) -> Section:
    """Run the sweeps, those over costs and lags on a second core too where one is free, and say what they found."""
    process = context.process
    lags = [lag for lag in LAGS if lag or process.env.fill != "open"]
    others = [with_trading(process, execution_lag=lag) for lag in lags if lag != process.lag]
    others += [_at_cost(process, bps) for bps in COSTS]
    with shared_with_fork(lambda number: context.backtest(others[number]), len(others)) as results:
        pass  # whichever is free takes the next
    found = iter(results())
    by_lag = {str(lag): _figures(context.runs if lag == process.lag else next(found)) for lag in lags}
    costs = dict(zip(COSTS, found, strict=True))
    (even, words_of_even), (by_capital, most, words_of_capital) = _break_even(context, costs), _capital(context)
    numbers: dict[str, object] = {
        "costs_bps": {f"{bps:g}": _figures(runs) for bps, runs in costs.items()},
        "lags": by_lag,
        "configured": _figures(context.runs),
        "break_even": even,
        "capital": by_capital,
        "capacity": most,
    }
    words: list[Sentence] = [
        "Each strategy run again under other conditions. The first column is as configured; costs are one proportional "
        "cost on every trade, in place of commission and slippage.",
        *words_of_even,
        *(["Fills at the open have no lag of 0: the close would be known before it."] * (len(lags) < len(LAGS))),
        words_of_capital,
    ]
    configured = ("as configured", Cell(("configured", ROW, "sharpe")))
    tables = [
        make_table(
            f"Sharpe ratio by {name}",
            "Strategy",
            context.makers,
            [configured, *((head, Cell((key, place, ROW, "sharpe"))) for place, head in columns)],
            marked=context.judged,
        )
        for name, key, columns in (
            ("cost", "costs_bps", [(f"{bps:g}", f"{bps:g} bp") for bps in COSTS]),
            ("lag", "lags", [(lag, f"lag {lag}") for lag in by_lag]),
        )
    ]
    if by_capital:
        shown = (("Sharpe", "sharpe", "", 2), ("costs a year", "annual_cost", "%", 2))
        cells = [
            (f"{name}: {what}", Cell(("capital", ROW, name, metric), unit, digits))
            for name in _pair(context)
            for what, metric, unit, digits in (*shown, ("trades refused", "refused", "", 0))
        ]
        rows = [((f"{capital:.0f}",), show(capital, ",", 0)) for capital in CAPITALS]
        tables.append(make_table("By initial capital", "Capital", rows, cells))
    return Section("sweeps", "Costs, lag and capital", numbers, tuple(tables), words=tuple(words))


def _at_cost(process: DecisionProcess, bps: float) -> DecisionProcess:
    """The process with one proportional cost in place of commission and slippage."""
    return with_trading(process, commission_bps=bps, slippage_bps=0.0)


def _figures(runs: Iterable[Backtest]) -> Figures:
    return {
        run.name: {
            "sharpe": metrics.sharpe_of(run),
            "annual_cost": metrics.annual_cost(run.costs, run.bars_per_year),
            "refused": 0 if run.refused is None else int(run.refused.sum()),
        }
        for run in runs
    }


def _pair(context: ComparisonContext) -> list[str]:
    return [name for name in dict.fromkeys((context.judged, BASELINE)) if name in context.makers]


def _break_even(
    context: ComparisonContext, costs: Mapping[float, Sequence[Backtest]]
) -> tuple[dict[str, float | None], list[Sentence]]:
    """Costs at which the judged strategy scores as equal weight does, by return and by Sharpe ratio, and in words."""
    found: dict[str, float | None] = {}
    words: list[Sentence] = []
    for key, (measure, score) in SCORES.items():
        bps = break_even_bps(context, score, costs)
        beyond, judged = bps == np.inf, f"By {measure}, {context.judged}"
        found |= {f"{key}_bps": None if beyond else bps, f"{key}_beyond_bps": HIGHEST_BPS if beyond else None}
        if bps == 0.0:
            words.append(f"{judged} is not ahead of equal weight even where trading is free.")
        elif bps is not None:
            place, digits = (f"{key}_beyond_bps", 0) if beyond else (f"{key}_bps", 1)
            how = "is ahead of equal weight at up to" if beyond else "breaks even with equal weight at"
            words.append((f"{judged} {how} ", Cell(("break_even", place), "bp", digits), " a trade."))
    return found, words


def break_even_bps(
    context: ComparisonContext, score: Callable[[Backtest], float], costs: Mapping[float, Sequence[Backtest]]
) -> float | None:
    """The proportional cost (bp of the value traded) at which the judged strategy scores what equal weight does.

    Zero where it does not beat equal weight even for nothing; infinite where it still does at 1000, as one that trades
    less than equal weight may; None where it is equal weight, or has no score. Where the excess changes its sign more
    than once, about the lowest. ``costs`` has backtests at costs for which there are some already.
    """
    pair = _pair(context)
    if len(pair) < 2:
        return None

    @cache
    def excess(bps: float) -> float:
        runs = costs[bps] if bps in costs else context.backtest(_at_cost(context.process, bps), names=pair)
        own, equal = (score(next(run for run in runs if run.name == name)) for name in pair)
        return own - equal

    if not all(np.isfinite(excess(bps)) for bps in costs):
        return None
    if excess(0.0) <= 0.0:
        return 0.0
    for low, high in pairwise(LADDER):
        if excess(high) <= 0.0:
            return float(scipy.optimize.brentq(excess, low, high, xtol=TOLERANCE_BPS, rtol=1e-12))
    return np.inf


def _capital(context: ComparisonContext) -> tuple[dict[str, Figures], float | None, Sentence]:
    """Figures by initial capital, the capacity, and what is to say of both."""
    process = context.process
    if not process.costs.needs_market and process.env.costs.minimum <= 0.0:
        volumes = "volumes: env.costs.impact and similar keys would use them."
        if process.panel.volume is None:
            volumes = "no volumes to compute participation and impact from."
        none = "Capital plays no part here: no configured cost depends on the size of the account."
        return {}, None, f"{none} The market has {volumes}"
    pair = _pair(context)
    found = {
        f"{capital:.0f}": _figures(context.backtest(with_trading(process, initial_capital=capital), names=pair))
        for capital in CAPITALS
    }
    if not process.costs.needs_market:
        only = "Capital matters only through the minimum commission of a trade: no configured cost grows with size."
        return found, None, only
    most = capacity(context)
    half = " to begin with, size-dependent costs take half of what it earns over equal weight."
    said: dict[float, Sentence] = {
        0.0: f"{context.judged} has no capacity: it earned no more than equal weight even without size-dependent "
        "costs.",
        np.inf: "Size-dependent costs never take half of what is earned over equal weight, up to a capital of 1e16.",
    }
    return found, most, said.get(most, ("Capacity: with ", Cell(("capacity",), ",", 0), half))


def capacity(context: ComparisonContext) -> float:
    """The initial capital at which costs that grow with size take half of what the judged strategy earns beyond equal
    weight.

    What it earns is its mean net return over that of equal weight, both without those costs; what they take is the
    strategy's own mean net return without them less that with them. An order that the account cannot pay for is beyond
    capacity. Zero where the strategy does not beat equal weight, or half is gone, at a capital of 100 already; infinite
    where it is not gone at 1e16.
    """
    process, minimum = context.process, context.process.env.costs.minimum

    @cache
    def unhindered(capital: float) -> list[float]:
        free = with_trading(process, initial_capital=capital, costs=CostsConfig(minimum=minimum))
        return [mean_return(run) for run in context.backtest(free, names=_pair(context))]

    def bearable(capital: float) -> bool:
        ideal = unhindered(capital if minimum > 0.0 else SMALLEST_CAPITAL)
        (full,) = context.backtest(with_trading(process, initial_capital=capital), names=[context.judged])
        return full.refused is None and ideal[0] - mean_return(full) < 0.5 * (ideal[0] - ideal[-1])

    low = SMALLEST_CAPITAL
    if not bearable(low):
        return 0.0
    while bearable(high := 10.0 * low):
        if high >= LARGEST_CAPITAL:
            return np.inf
        low = high
    while high / low > 1.0 + TOLERANCE_CAPITAL:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if bearable(middle) else (low, middle)
    return low


def stress_section(context: ComparisonContext, split: Split) -> Section | None:
    """Judge every strategy in every period that the panel has `SHORTEST` days of; None where it has none of them."""
    dates, numbers = context.process.panel.dates, dict[str, dict[str, Any]]()
    windows = (("in-sample", split.train), ("validation", split.validation), ("out-of-sample", split.test))
    for name, *ends in PERIODS:
        start, stop = np.searchsorted(dates, np.array(ends, "datetime64[D]") + np.arange(2)).tolist()
        days = range(max(start, context.process.first_bar + 1), stop)
        if len(days) < SHORTEST:
            continue
        touched = [word for word, bars in windows if days.start < bars.stop and bars.start < days.stop]
        numbers[name] = {
            "first": str(dates[days.start]),
            "last": str(dates[days.stop - 1]),
            "days": len(days),
            "sample": " and ".join(touched),
            "strategies": {
                name: {"return": float(np.prod(1.0 + own) - 1.0), "max_drawdown": metrics.max_drawdown(own)}
                for name, own in _returns(context, days).items()
            },
        }
    if not numbers:
        return None
    words = (
        "In-sample means that the judged agent learned from these days, and validation that its checkpoint was chosen "
        "by them: neither is evidence. The classical strategies are fitted on earlier days alone in every period.",
    )
    columns = (
        ("First day", Cell((ROW, "first"))),
        ("Last day", Cell((ROW, "last"))),
        ("Days", Cell((ROW, "days"), decimals=0)),
        ("Sample", Cell((ROW, "sample"))),
    )
    tables = [make_table("Periods", "Period", numbers, columns)]
    for key, title in (("return", "Return over each period"), ("max_drawdown", "Maximum drawdown in each period")):
        heads = {name: f"{name}, {period['sample']}" for name, period in numbers.items()}
        cells = [(head, Cell((name, "strategies", ROW, key), "%", 1)) for name, head in heads.items()]
        strategies = next(iter(numbers.values()))["strategies"]
        tables.append(make_table(title, "Strategy", strategies, cells, marked=context.judged))
    return Section("stress", "Stress periods", numbers, tuple(tables), words=words)


def _returns(context: ComparisonContext, days: range) -> dict[str, FloatArray]:
    """Returns of every strategy over the days, the index last."""
    process, window, runs = context.process, context.window, context.runs
    bars = process.decision_bars(window)
    if not (len(bars) and bars.start < days.start and days.stop - 1 <= bars.stop):
        run_in = max(RUN_IN * process.panel.bars_per_year // BARS_PER_YEAR, 12)
        window = range(max(process.first_bar, days.start - 1 - run_in), days.stop)
        runs = context.backtest(process, window)
    index = index_backtest(process, window)
    if index is not None and index.name not in context.makers:
        runs = (*runs, index)
    first = process.decision_bars(window).start + 1
    return {run.name: run.returns[days.start - first : days.stop - first] for run in runs}
