"""Foreknowledge in a configuration: features, a user's own strategies and the agent, held against unknown returns.

Perturbations of the panel find components that read its future. A component with another source of future prices (a
file, a network, its own code) does not react to the panel, and is found here by how well its answers predict returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from finflow.env.decision_process import DecisionProcess
from finflow.evaluation.audit.findings import BEYOND_LIMIT, CLEAN, FAILED, FOREKNOWLEDGE, NOTED, OPENED, Finding, raised
from finflow.evaluation.audit.foreknowledge import FEWEST, View, market_return, ranks_of
from finflow.evaluation.audit.foreknowledge_scores import Foreknowledge, views_of_portfolios
from finflow.evaluation.audit.opened_files import OpenedFiles
from finflow.evaluation.backtest import run_backtests
from finflow.market.features.feature_set import user_feature
from finflow.strategies.strategy import Strategy
from finflow.training.audit.audited_decisions import AnswerRecorder, AuditedMarket, Watched

FloatArray = NDArray[np.float64]


class AuditedForeknowledge:
    """The test of foreknowledge over the whole of a configured market.

    Features are asked about all bars that have them; strategies and agents decide at every bar from the end of
    training on, where an agent has not learned from what follows.
    """

    def __init__(self, market: AuditedMarket, opened: OpenedFiles) -> None:
        self.market = market
        self.opened = opened
        self.test = Foreknowledge(market.panel.close, market.config.train.seed)

    def of_features(self) -> Iterator[Finding]:
        """Yield a finding for each own feature, before scaling, and one for all features together."""
        panel = self.market.panel
        for path in self.market.config.features.extra:
            name = f"feature {path.partition('@')[0]}"
            feature = user_feature(path)
            try:
                values = self.opened.watch(name, feature.compute, panel)
            except Exception as error:
                yield self._finding(name, np.arange(panel.n_bars), FAILED, raised(error))
                continue
            yield self._judged(name, list(_views_of_feature(feature.name, values)), np.arange(panel.n_bars))
        features = self.market.features(panel, self.market.split.train_end)
        bars = np.arange(features.first_bar, panel.n_bars)
        assets = [(name, features.assets[bars, :, i]) for i, name in enumerate(features.asset_names)]
        whole = [(name, features.market[bars, i]) for i, name in enumerate(features.market_names)]
        views = [view for name, values in (*assets, *whole) for view in _views_of_feature(name, values)]
        yield self._judged("features", views, bars)

    def of_strategies(self, makers: Mapping[str, Callable[[], Strategy]]) -> Iterator[Finding]:
        lag, panel, split = self.market.config.env.execution_lag, self.market.panel, self.market.split
        process = self.market.process(panel, split.train_end, lag)
        window = range(max(split.train_end, process.first_bar), panel.n_bars)
        count = len(process.decision_bars(window))
        for name, make in makers.items():
            if count < FEWEST:
                few = f"{count} decisions after training are too few to test; {FEWEST} are needed"
                yield self._finding(name, np.array([split.train_end - 1, panel.n_bars - 1]), NOTED, few, rows=count)
                continue
            try:
                decided = decided_views(process, window, make(), partial(self.opened.watch, name))
            except Exception as error:
                yield self._finding(name, np.array(window), FAILED, raised(error))
                continue
            yield self._judged(name, *decided)

    def of_opened(self) -> Iterator[Finding]:
        """Yield a note for each component that opened anything."""
        for name, opened in self.opened.found.items():
            if opened:
                first, more = list(opened)[:5], len(opened) - 5
                names = ", ".join(first) + (f" and {more} more" if more > 0 else "")
                yield self._finding(name, np.array([0, self.market.panel.n_bars - 1]), NOTED, names, OPENED, rows=0)

    def _judged(self, name: str, views: Sequence[View], known: NDArray[np.int64], paid: int = 0) -> Finding:
        worst = max(self.test.scores(views, known, paid), key=lambda one: one.share, default=None)
        if worst is None:
            return self._finding(name, known, CLEAN)
        score, dates = worst.score, self.market.panel.dates
        words = (
            f"the rank correlation of its {score.view} with {score.outcome} is {score.value:+.2f} beyond that of other "
            f"dates, from {dates[worst.known[0]]} to {dates[worst.known[1]]}; no honest rule is known to reach "
            f"{worst.limit:.2f} of this market, and chance has a deviation of {score.spread:.2f}"
        )
        return self._finding(name, known, BEYOND_LIMIT, words)

    def _finding(
        self,
        name: str,
        bars: NDArray[np.int64],
        verdict: str,
        where: str = "",
        probe: str = FOREKNOWLEDGE,
        rows: int | None = None,
    ) -> Finding:
        ends = self.market.panel.dates[bars[[0, -1]]]
        return Finding(name, probe, tuple(ends), len(bars) if rows is None else rows, verdict, where=where)


def decided_views(
    process: DecisionProcess, window: range, strategy: Strategy, watched: Watched | None = None
) -> tuple[list[View], NDArray[np.int64], int]:
    """Views of a strategy's decisions, the newest bar that each may know, and the bars from there to the fill."""
    recorder = AnswerRecorder(strategy, watched=watched)
    run_backtests(process, window, [recorder])
    held = np.stack(recorder.accounts)[:, : process.n_weights]
    # The account is its owner's and known a bar before the fill, also where prices are older.
    paid = min(process.lag, 1)
    known = np.asarray(process.decision_bars(window), dtype=np.int64) - paid
    return views_of_portfolios(np.stack(recorder.answers["weights"]), held), known, paid


def _views_of_feature(name: str, values: FloatArray) -> Iterator[View]:
    """Yield ranks among the assets, and the level of all of them over time."""
    if values.ndim == 2:
        yield View(f"values of {name} among assets", ranks_of(values))
        values = market_return(values)
    yield View(f"values of {name} over time", ranks_of(values.reshape(-1, 1), axis=0))
