"""Foreknowledge in a configuration: features, a user's own strategies and the agent, held against unknown returns.

Perturbations of the panel find components that read its future. A component with another source of future prices (a
file, a network, its own code) does not react to the panel, and is found here by how well its answers predict returns.

Files, connections and programs that a user's code opens are seen by an audit hook of the interpreter (PEP 578). A hook
cannot be taken back, so there is one for the life of the process, set at the first watched call, which returns at once
unless a call is being watched. Seen is what Python itself opens: what a library opens in compiled code of its own
(Parquet by pyarrow, HDF5), and memory shared between processes, raise no event.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from finflow.env.decision_process import DecisionProcess
from finflow.evaluation.backtest import run_backtests
from finflow.market.features.feature_set import user_feature
from finflow.strategies.strategy import Strategy
from finflow.training.audit.audited_decisions import AnswerRecorder, AuditedMarket, Watched
from finflow.training.audit.foreknowledge import (
    FEWEST,
    FloatArray,
    Foreknowledge,
    View,
    market_return,
    ranks_of,
    views_of_portfolios,
)
from finflow.training.audit.look_ahead import (
    BEYOND_LIMIT,
    CLEAN,
    FAILED,
    FOREKNOWLEDGE,
    NOTED,
    OPENED,
    Finding,
    raised,
)

P = ParamSpec("P")
T = TypeVar("T")

_CODE = (".py", ".pyc", ".pyi", ".pyd", ".so", ".dll", ".dylib", ".pth")
_OF_THE_SYSTEM = ("/proc/", "/sys/", "/dev/", "/usr/share/zoneinfo/")
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_ACTIVE: list[dict[str, None]] = []
_HOOKED: list[bool] = []


class OpenedFiles:
    """A record of what each component opens: component -> what, in words, each once, in order."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, None]] = {}

    def watch(self, component: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of a component, and record what it opens until it returns or raises."""
        if not _HOOKED:
            sys.addaudithook(_hook)
            _HOOKED.append(True)
        _ACTIVE.append(self.found.setdefault(component, {}))
        try:
            return function(*args, **kwargs)
        finally:
            _ACTIVE.pop()


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _ACTIVE or event not in _WORDS:
        return
    text = _WORDS[event](*args)
    if text is not None and not _imports_a_library(sys._getframe(1)):
        _ACTIVE[-1][text] = None


def _imports_a_library(frame: FrameType | None) -> bool:
    """Return true where a library that is being imported opens, and not the code that is watched."""
    while frame is not None and frame.f_code is not OpenedFiles.watch.__code__:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(_LIBRARIES):
            return True
        frame = frame.f_back
    return False


def _file(path: object, mode: object = None, flags: object = 0) -> str | None:
    """A file that holds no code and belongs to no device or system; None for others, and for what was open before."""
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    name = os.fsdecode(path)
    if name.endswith(_CODE) or "__pycache__" in name or os.path.abspath(name).startswith(_OF_THE_SYSTEM):
        return None
    writes = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))
    return f"writes the file {name}" if writes else f"reads the file {name}"


def _place(address: object) -> str:
    return ":".join(map(str, address[:2])) if isinstance(address, tuple) else str(address)


_WORDS: dict[str, Callable[..., str | None]] = {
    "open": _file,
    "sqlite3.connect": lambda database, *_: f"opens the database {database}",
    "socket.connect": lambda _, address: f"connects to {_place(address)}",
    "socket.sendto": lambda _, address: f"sends to {_place(address)}",
    "urllib.Request": lambda address, *_: f"asks for {address}",
    "subprocess.Popen": lambda program, *_: f"runs {program}",
    "os.system": lambda command, *_: f"runs {command!s}",
    "os.exec": lambda program, *_: f"runs {program!s}",
    "os.posix_spawn": lambda program, *_: f"runs {program!s}",
    "os.spawn": lambda _, program, *__: f"runs {program!s}",
}
"""By event of the interpreter, its arguments in words."""


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
        first, last = self.market.panel.dates[known[[worst.rows.start, worst.rows.stop - 1]]]
        words = (
            f"the rank correlation of its {worst.view} with {worst.outcome} is {worst.value:+.2f} beyond that of other "
            f"dates, from {first} to {last}; no honest rule is known to reach "
            f"{worst.limit:.2f} of this market, and chance has a deviation of {worst.spread:.2f}"
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
