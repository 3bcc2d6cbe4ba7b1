"""Backtests: strategies simulated on the decision process, and the record that every number of a report is from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from finflow.arrays import BoolArray, DateArray, FloatArray, IntArray
from finflow.cores import forked
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState, Step, rows_of
from finflow.errors import MarketError, refuse
from finflow.ledger.accounting import settle
from finflow.ledger.costs import without_market
from finflow.market.bar_frequency import bars_per_year
from finflow.strategies.classical import Optimised, optimisers
from finflow.strategies.strategy import Information, Memo, Strategy

Decide = Callable[[int, PortfolioState], FloatArray]
Make = Callable[[], Strategy]

BASELINE, CASH = "equal-weight", "cash"  # names in reports, of the baseline and of cash
ROUNDING = 1e-4  # what a solver or single precision may leave; beyond it a strategy is wrong, not inexact


@dataclass(frozen=True)
class Backtest:
    """The net result of a strategy, one row a holding period.

    ``explanation``, of learned agents only: "gate" (steps, 5), "experts" (steps, 5, K) and "trade_rate" (steps,);
    "held" (steps, K) and "reward_state" (steps, 3), as they were observed.
    """

    name: str  # of the strategy, in tables and figures
    dates: DateArray  # (steps,), the bar at which each holding period ends
    returns: FloatArray  # (steps,), simple, net of costs
    cash_returns: FloatArray  # (steps,)
    costs: FloatArray  # (steps,), fraction of wealth paid for the trade that opened each period
    turnover: FloatArray  # (steps,), half-sum of absolute trades over K, as a fraction of wealth
    weights: FloatArray  # (steps, K), held after the trade, cash last
    assets: tuple[str, ...]  # the K names, the last "cash"
    explanation: Mapping[str, FloatArray] | None = None
    refused: BoolArray | None = None  # (steps,), where the account could not pay for the trade; None: it always did
    rewards: FloatArray | None = None  # (steps,), of the objective; None where it was not asked, as for an index
    bars_per_year: int = 0  # holding periods of a year; by the dates where it is 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "bars_per_year", self.bars_per_year or bars_per_year(self.dates))

    @property
    def wealth(self) -> FloatArray:
        """Wealth of 1 invested before each trade, and at the end, (steps + 1,)."""
        return np.asarray(np.cumprod(np.append(1.0, 1.0 + self.returns)))

    @property
    def is_index(self) -> bool:
        """An index, which holds itself alone."""
        return self.assets == (self.name, "cash")


class History:
    """Closes of the market (bars, assets), as a strategy receives them: memory that has not been given later ones.

    A slice would have the values, but NumPy keeps the array it was taken from within reach, as ``.base``. So rows are
    copied as they become known, each once, into memory whose size depends on the past alone.
    """

    def __init__(self, prices: FloatArray) -> None:
        self._source = prices
        self._known: FloatArray = np.empty((0, prices.shape[1]))
        self._count = 0

    def until(self, count: int) -> FloatArray:
        """The first ``count`` rows, read-only; no fewer than before."""
        if count > len(self._known):
            grown = np.full((2 * count, self._known.shape[1]), np.nan)
            grown[: self._count] = self._known[: self._count]
            self._known = grown
        self._known.setflags(write=True)
        self._known[self._count : count] = self._source[self._count : count]
        self._known.setflags(write=False)
        self._count = count
        return self._known[:count]


def simulate(
    process: DecisionProcess, state: PortfolioState, decisions: IntArray, decide: Decide
) -> Iterator[tuple[IntArray, Step]]:
    """Step N portfolios through the decision process, each for its own number of ``decisions``, int64 (N,).

    ``decide(step, state)`` gives targets, (n, K), of the portfolios that still decide. Yields their numbers, int64
    (n,), and what came of it.
    """
    rows = np.arange(len(decisions))
    for step in range(int(decisions.max())):
        going = decisions[rows] > step
        if not going.all():
            rows, state = rows[going], rows_of(state, going)
        outcome = process.step(state, decide(step, state))
        state = outcome.state
        yield rows, outcome


def run_backtests(process: DecisionProcess, window: range, strategies: Sequence[Strategy]) -> tuple[Backtest, ...]:
    """Backtest strategies over a window, side by side, on the ledger of training.

    Raises MarketError if the window is too short to decide in, or a strategy names something that is not a portfolio.

    Parameters
    ----------
    window : range
        Bars at which decisions may fill; each holding period ends inside it.
    strategies : sequence of Strategy
        Every one starts in cash at the first bar.
    """
    bars = process.decision_bars(window)
    refuse(len(bars) < 2, f"the window has {len(bars)} bars to decide at; a backtest needs two or more", MarketError)
    state = process.start(np.full(len(strategies), bars.start, dtype=np.int64))
    history, decisions = History(process.panel.close), np.full(len(strategies), len(bars))

    def decide(step: int, state: PortfolioState) -> FloatArray:
        return targets_of(process, state, strategies, step, bars[step], history)

    outcomes = [outcome for _, outcome in simulate(process, state, decisions, decide)]
    none = np.zeros(len(strategies), dtype=np.bool_)
    refused = np.stack([none if one.refused is None else one.refused for one in outcomes])
    names = {"returns": "simple_return", "costs": "cost", "turnover": "turnover", "weights": "filled"}
    tables = {
        name: np.stack([getattr(one, field) for one in outcomes], axis=1)
        for name, field in (names | {"rewards": "reward"}).items()
    }
    ends = slice(bars.start + 1, bars.stop + 1)
    return tuple(
        Backtest(
            name=strategy.name,
            dates=process.panel.dates[ends],
            cash_returns=process.growth[ends, -1] - 1.0,
            assets=(*process.panel.assets, "cash"),
            bars_per_year=process.panel.bars_per_year,
            explanation=explain() if callable(explain := getattr(strategy, "explanation", None)) else None,
            refused=refused[:, i] if refused[:, i].any() else None,
            **{name: table[i] for name, table in tables.items()},
        )
        for i, strategy in enumerate(strategies)
    )


def index_backtest(process: DecisionProcess, window: range) -> Backtest | None:
    """The index, bought once on the same ledger and held; None where the panel has no index.

    Nothing is known of the volume of an index, so it pays neither impact nor slippage by size.
    """
    panel = process.panel
    if panel.benchmark is None:
        return None
    bars = process.decision_bars(window)
    ends = slice(bars.start + 1, bars.stop + 1)
    growth = panel.benchmark[ends] / panel.benchmark[bars.start : bars.stop]
    invested = np.array([[1.0, 0.0]])
    costs, capital = without_market(process.costs), np.array([process.env.initial_capital])
    first = np.zeros(len(bars))
    first[0] = 1.0
    cost = float(settle(np.array([[0.0, 1.0]]), invested, costs, capital).cost[0])
    return Backtest(
        name=panel.benchmark_name or "index",
        dates=panel.dates[ends],
        returns=growth * (1.0 - cost * first) - 1.0,
        cash_returns=process.growth[ends, -1] - 1.0,
        costs=cost * first,
        turnover=first,
        weights=np.repeat(invested, len(bars), axis=0),
        assets=(panel.benchmark_name or "index", "cash"),
        bars_per_year=panel.bars_per_year,
    )


def targets_of(
    process: DecisionProcess,
    state: PortfolioState,
    strategies: Sequence[Strategy],
    step: int,
    bar: int,
    history: History,
) -> FloatArray:
    """Decisions of strategies that fill at one bar, (strategies, K); `MarketError` where one names no portfolio.

    ``state`` is of one portfolio for each strategy, after ``step`` decisions; ``history`` of the panel's closes. At an
    execution lag over 0, ``bar`` may be the one after the last of the panel.
    """
    newest = bar - process.lag
    known = history.until(newest + 1)
    observation = process.observe(state)
    portfolios = observation["portfolio"][:, : process.n_weights]
    targets: FloatArray = np.empty_like(portfolios)
    for i, strategy in enumerate(strategies):
        information = Information(
            step=step,
            prices=known,
            listed=process.listed[newest].copy(),
            portfolio=portfolios[i],
            observation={name: value[i] for name, value in observation.items()},
            bars_per_year=process.panel.bars_per_year,
            date=process.panel.dates[newest],
        )
        target = np.asarray(strategy.decide(information), dtype=np.float64)
        if wrong := _not_a_portfolio(target, process.n_weights):
            day = process.panel.dates[bar] if bar < process.panel.n_bars else f"the day after {process.panel.dates[-1]}"
            raise MarketError(
                f"the strategy {strategy.name} named {wrong} on {day}; a portfolio has "
                f"{process.n_weights} weights, cash last, none negative, that sum to one"
            )
        targets[i] = target
    return targets


def _not_a_portfolio(target: FloatArray, n_weights: int) -> str | None:
    """The fault of a strategy's answer; None where there is none but rounding."""
    if target.shape != (n_weights,):
        return f"numbers of the shape {target.shape}"
    least, total = target.min(), target.sum()
    if least >= -ROUNDING and abs(total - 1.0) <= ROUNDING:  # true of finite numbers alone
        return None
    if not np.isfinite(target).all():
        return "numbers that are not finite"
    return f"a weight of {least:.6g}" if least < -ROUNDING else f"weights that sum to {total:.6g}"


@dataclass(frozen=True, eq=False)
class ComparisonContext:
    """The judged strategy, those it is compared with, and what is needed to run all of them again.

    ``window`` has the bars of the evaluation, ``makers`` makes each strategy fresh, by name, the judged one first, and
    ``runs`` are their backtests in the same order.
    """

    process: DecisionProcess
    window: range
    makers: Mapping[str, Make]
    runs: tuple[Backtest, ...]

    @property
    def judged(self) -> str:
        return next(iter(self.makers))

    def backtest(
        self, process: DecisionProcess, window: range | None = None, names: Iterable[str] | None = None
    ) -> tuple[Backtest, ...]:
        """Run the strategies, all of them or those named, under other conditions or over other bars."""
        chosen = self.makers if names is None else names
        return run_backtests(process, window or self.window, [self.makers[name]() for name in chosen])


def with_memos(makers: Mapping[str, Make], fits: Memo | None = None) -> dict[str, Make]:
    """The same strategies; what depends on prices alone, one made later takes from those made before by its maker.

    ``fits``: for skfolio's optimisers, in place of a memo of each maker's own.
    """

    def fresh(make: Make, memo: Memo) -> Strategy:
        strategy = make()
        if hasattr(strategy, "memo"):
            strategy.memo = memo if fits is None or type(strategy) is not Optimised else fits
        return strategy

    return {name: partial(fresh, make, {}) for name, make in makers.items()}


def run_shared_backtests(
    process: DecisionProcess, window: range, strategies: Sequence[Strategy]
) -> tuple[Backtest, ...]:
    """Backtest strategies over a window as `run_backtests` does, on a second core too where one is free.

    An optimiser's fits are most of its time and do not depend on the other strategies. Results have the same bits as
    those of `run_backtests`, and the strategies' memos hold the same fits.
    """
    solving = [one for one in strategies if isinstance(one, Optimised)]
    others = [one for one in strategies if not isinstance(one, Optimised)]
    if not solving or not others:
        return run_backtests(process, window, strategies)
    with forked(lambda: (run_backtests(process, window, solving), [one.memo for one in solving])) as elsewhere:
        here = iter(run_backtests(process, window, others))
        if not all(one.memo for one in solving):
            optimisers()  # skfolio is imported once for all processes forked later, while this one would wait
    runs, memos = elsewhere()
    for strategy, memo in zip(solving, memos, strict=True):
        if strategy.memo is not None:
            strategy.memo.update(memo or {})
    solved = iter(runs)
    return tuple(next(solved if isinstance(one, Optimised) else here) for one in strategies)
