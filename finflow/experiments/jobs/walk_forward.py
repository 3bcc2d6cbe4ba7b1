"""Walk-forward and combinatorial folds: the bars that a training may see, and the windows that it is judged on.

Protocols, searches and retrainings train and judge by these folds. The cuts of protocols are skfolio's, of the bars
before the test window; what a fold may see on either side of an evaluated window: docs/guide/protocols.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from finflow.arrays import IntArray
from finflow.config import Config, ProtocolConfig
from finflow.env.decision_process import DecisionProcess
from finflow.errors import MarketError
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.market.features.feature_set import Features
from finflow.market.features.rolling_windows import DAILY_WINDOWS, windows_of
from finflow.market.panel import MarketPanel, split_panel
from finflow.market.sources.panel_loader import load_panel
from finflow.offline.collection import refuse_own_decisions
from finflow.strategies.strategy import Strategy
from finflow.training.data.training_data import TrainingData, prepare_pieces
from finflow.training.judging.agent_strategy import Agents

Protocol = Literal["walk-forward", "cpcv"]
HISTORY = DAILY_WINDOWS.longest - 1
"""Bars that the longest feature of daily prices looks back on: the purge that is taken when none is configured."""
FEWEST = 3
"""Bars of a window that can be evaluated: two decisions, and a bar of growth after them."""


@dataclass(frozen=True)
class Fold:
    """One training of a protocol, and what it is evaluated on; bars are those of the panel before the test window."""

    number: int
    pieces: tuple[range, ...]  # what its training may see
    validation: int  # how many of the last bars of the pieces are for choosing a checkpoint
    tests: tuple[range, ...]  # windows that it is evaluated on
    paths: tuple[int, ...] = (0,)  # for each of them, the path that it belongs to

    def training_data(self, panel: MarketPanel, config: Config, features: Features | None = None) -> TrainingData:
        """The market of its training, which lacks what it is evaluated on."""
        return prepare_pieces(panel, config, self.pieces, self.validation, features)

    def judge(
        self, process: DecisionProcess, agents: Agents, rivals: Sequence[Strategy] = ()
    ) -> list[tuple[Backtest, ...]]:
        """Backtest agents that act as one, and rivals after them, in each of its windows; all begin in cash."""
        return [run_backtests(process, test, [agents.strategies()[0], *rivals]) for test in self.tests]


def load_before_test(config: Config) -> tuple[MarketPanel, int]:
    """Load the prices, cut before the test window, and the number of bars of the training window.

    Raises ConfigError if a user's own decisions are to be learned from.
    """
    refuse_own_decisions(config)
    panel = load_panel(config.market)
    split = split_panel(panel, config.market)
    return panel.until(split.validation_end), split.train_end


def history_of(panel: MarketPanel) -> int:
    """Bars that the longest feature of a panel looks back on."""
    return windows_of(panel.bars_per_year).longest - 1


def folds_of(protocol: Protocol, bars: int, settings: ProtocolConfig, history: int = HISTORY) -> tuple[Fold, ...]:
    """The folds of a protocol over so many bars, of which features look back on `history`.

    Raises MarketError if the bars are too few for the folds; the line says how many there are.
    """
    purge = purge_of(settings, history)
    cuts = _walk_forward(bars, settings, purge) if protocol == "walk-forward" else _combinatorial(bars, settings, purge)
    folds = []
    for number, (learned, tests, paths) in enumerate(cuts, start=1):
        pieces = tuple(_seen(learned, tests, settings.embargo, history))
        validation = _validation(pieces, settings.validation_share, history)
        if validation < FEWEST or any(len(test) < FEWEST for test in tests):
            raise MarketError(
                f"fold {number} of the {protocol} protocol has too few bars to learn in and to be evaluated on: there "
                f"are {bars} before the test window; use more data, fewer folds or groups, or a smaller "
                "evaluation.protocol.purge"
            )
        folds.append(Fold(number, pieces, validation, tests, paths))
    return tuple(folds)


def last_fold(first: int, bars: int, settings: ProtocolConfig, history: int) -> Fold:
    """The one fold that is evaluated on the bars from ``first`` on, and learns from those ``purge`` bars before them.

    Raises MarketError if there are too few bars.
    """
    pieces = (range(max(first - purge_of(settings, history), 0)),)
    validation = _validation(pieces, settings.validation_share, history)
    if validation < FEWEST or bars - first < FEWEST:
        raise MarketError(
            f"the {first} bars before the validation window, or its own {bars - first}, are too few to learn in and to "
            "be evaluated on; use more data or a smaller evaluation.protocol.purge"
        )
    return Fold(1, pieces, validation, (range(first, bars),))


def purge_of(settings: ProtocolConfig, history: int) -> int:
    """Bars beside an evaluated window that are not learned from."""
    return history if settings.purge is None else settings.purge


Cut = tuple[IntArray, tuple[range, ...], tuple[int, ...]]


def _walk_forward(bars: int, settings: ProtocolConfig, purge: int) -> Iterator[Cut]:
    """Windows that follow one another to the last bar; each fold learns from all that lies ``purge`` bars before."""
    from skfolio.model_selection import WalkForward

    evaluated = bars - int(settings.first_share * bars) - purge
    size = evaluated // settings.folds
    if size < FEWEST:
        raise MarketError(
            f"{bars} bars before the test window are too few for {settings.folds} folds: after the first "
            f"{settings.first_share:.0%} and a purge of {purge} bars, {max(evaluated, 0)} are left to be evaluated on; "
            "use fewer evaluation.protocol.folds, a smaller first_share or purge, or more data"
        )
    first = bars - purge - size * settings.folds
    cuts = WalkForward(test_size=size, train_size=first, expand_train=True, purged_size=purge)
    for learned, test in cuts.split(np.zeros((bars, 1))):
        yield learned, (range(int(test[0]), int(test[-1]) + 1),), (0,)


def _combinatorial(bars: int, settings: ProtocolConfig, purge: int) -> Iterator[Cut]:
    """Every choice of the groups to be evaluated on; together they make several paths over all bars."""
    from skfolio.model_selection import CombinatorialPurgedCV

    size = bars // settings.groups
    if purge + settings.embargo >= size - 1:
        raise MarketError(
            f"{settings.groups} groups of the {bars} bars before the test window have {size} bars each, no more than "
            f"the purge of {purge} and the embargo of {settings.embargo} beside an evaluated one; use fewer "
            "evaluation.protocol.groups, a smaller purge, or more data"
        )
    cuts = CombinatorialPurgedCV(
        settings.groups, settings.test_groups, purged_size=purge, embargo_size=settings.embargo
    )
    paths = cuts.get_path_ids()
    for number, (learned, tests) in enumerate(cuts.split(np.zeros((bars, 1)))):
        windows = tuple(range(int(test[0]), int(test[-1]) + 1) for test in tests)
        yield learned, windows, tuple(int(path) for path in paths[number])


def _seen(learned: IntArray, tests: tuple[range, ...], embargo: int, history: int) -> Iterator[range]:
    """Ranges of bars to learn from (ascending), with the bars before them that their features look back on.

    Of those bars none lies in an evaluated window or its embargo.
    """
    for part in np.split(learned, np.flatnonzero(np.diff(learned) > 1) + 1):
        if len(part):
            start = int(part[0])
            held_out = max((test.stop + embargo for test in tests if test.stop <= start), default=0)
            yield range(max(held_out, start - history), int(part[-1]) + 1)


def _validation(pieces: tuple[range, ...], share: float, history: int) -> int:
    """Bars to choose by: a share of all of them, and no more than half of what the last piece has after its history."""
    if not pieces:
        return 0
    return min(int(share * sum(len(piece) for piece in pieces)), max(len(pieces[-1]) - history, 0) // 2)
