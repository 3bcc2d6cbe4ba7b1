"""Foreknowledge in a configuration: features, a user's own strategies and the agent, held against unknown returns.

A component with another source of future prices than the panel is found by how well its answers predict returns. Files,
connections and programs that a user's code opens are seen by an audit hook of the interpreter (PEP 578), one for the
life of the process, set at the first watched call. What neither finds: docs/reference/audit.md.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from finflow.arrays import FloatArray, IntArray
from finflow.env.decision_process import DecisionProcess
from finflow.errors import first_few, typed_line
from finflow.evaluation.backtest import run_backtests
from finflow.market.features.feature_set import user_feature
from finflow.strategies.strategy import Strategy
from finflow.training.audit.audit_subjects import AuditSubjects
from finflow.training.audit.audited_parts import DecisionRecorder
from finflow.training.audit.foreknowledge import (
    FEWEST,
    Foreknowledge,
    View,
    market_return,
    ranks_of,
    views_of_portfolios,
)
from finflow.training.audit.look_ahead import BEYOND_LIMIT, CLEAN, FAILED, FOREKNOWLEDGE, NOTED, OPENED, Finding

P = ParamSpec("P")
T = TypeVar("T")
Decided = tuple[Sequence[View], IntArray, int]
"""Views of decisions, the newest bar that each may know, and the bars from there to the fill."""

_CODE = (".py", ".pyc", ".pyi", ".pyd", ".so", ".dll", ".dylib", ".pth")
_OF_THE_SYSTEM = ("/proc/", "/sys/", "/dev/", "/usr/share/zoneinfo/")
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_ACTIVE: list[dict[str, None]] = []


class OpenedFiles:
    """A record of what each component opens: component -> what, in words, each once, in order."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, None]] = {}

    def watch(self, component: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of a component, and record what it opens until it returns or raises."""
        _add_hook()
        _ACTIVE.append(self.found.setdefault(component, {}))
        try:
            return function(*args, **kwargs)
        finally:
            _ACTIVE.pop()


@cache
def _add_hook() -> None:
    sys.addaudithook(_hook)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _ACTIVE or event not in _WORDS:
        return
    words, place = _WORDS[event]
    text = _file(*args) if event == "open" else f"{words} {_name(args[place])}"
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not OpenedFiles.watch.__code__:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(_LIBRARIES):
            return  # a library that is being imported opens it, and not the code that is watched
        frame = frame.f_back
    _ACTIVE[-1] |= {text: None} if text else {}


def _file(path: object, mode: object = None, flags: object = 0) -> str | None:
    """A file that holds no code and belongs to no device or system; None for others, and for what was open before."""
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    name = os.fsdecode(path)
    if name.endswith(_CODE) or "__pycache__" in name or os.path.abspath(name).startswith(_OF_THE_SYSTEM):
        return None
    writes = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))
    return f"writes the file {name}" if writes else f"reads the file {name}"


def _name(value: object) -> str:
    return ":".join(map(str, value[:2])) if isinstance(value, tuple) else str(value)


_WORDS = {
    "open": ("", 0),
    "sqlite3.connect": ("opens the database", 0),
    "socket.connect": ("connects to", 1),
    "socket.sendto": ("sends to", 1),
    "urllib.Request": ("asks for", 0),
    **dict.fromkeys(("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"), ("runs", 0)),
    "os.spawn": ("runs", 1),
}
"""By event of the interpreter: words for it, and the place of their object among its arguments."""


class AuditedForeknowledge:
    """The test of foreknowledge over the whole of a configured market.

    Features are asked about all bars that have them; strategies and agents decide at every bar from the end of
    training on, where an agent has not learned from what follows.
    """

    def __init__(self, market: AuditSubjects, opened: OpenedFiles) -> None:
        self.market = market
        self.opened = opened
        self.test = Foreknowledge(market.panel.close, market.config.train.seed)

    def of_features(self) -> Iterator[Finding]:
        """Yield a finding for each own feature, before scaling, and one for all features together."""
        panel = self.market.panel
        for path in self.market.config.features.extra:
            name = f"feature {path.partition('@')[0]}"
            yield self._judged(name, np.arange(panel.n_bars), partial(self._own_feature, name, path))
        features = self.market.features(panel, self.market.split.train_end)
        bars = np.arange(features.first_bar, panel.n_bars)
        assets = [(name, features.assets[bars, :, i]) for i, name in enumerate(features.asset_names)]
        whole = [(name, features.market[bars, i]) for i, name in enumerate(features.market_names)]
        views = [view for name, values in (*assets, *whole) for view in _views_of_feature(name, values)]
        yield self._judged("features", bars, lambda: (views, bars, 0))

    def _own_feature(self, name: str, path: str) -> Decided:
        panel, feature = self.market.panel, user_feature(path)
        values = self.opened.watch(name, feature.compute, panel)
        return list(_views_of_feature(feature.name, values)), np.arange(panel.n_bars), 0

    def of_strategies(self, makers: Mapping[str, Callable[[], Strategy]]) -> Iterator[Finding]:
        lag, panel, split = self.market.config.env.execution_lag, self.market.panel, self.market.split
        process = self.market.process(panel, split.train_end, lag)
        window = range(max(split.train_end, process.first_bar), panel.n_bars)
        count = len(process.decision_bars(window))
        few = f"{count} decisions after training are too few to test; {FEWEST} are needed"
        ends = (panel.dates[split.train_end - 1], panel.dates[-1])
        for name, make in makers.items():
            if count < FEWEST:
                yield Finding(name, FOREKNOWLEDGE, ends, count, NOTED, where=few)
            else:
                yield self._judged(name, np.array(window), partial(self._decided, name, process, window, make))

    def _decided(self, name: str, process: DecisionProcess, window: range, make: Callable[[], Strategy]) -> Decided:
        return self.opened.watch(name, decided_views, process, window, make())

    def of_opened(self) -> Iterator[Finding]:
        """Yield a note for each component that opened anything."""
        ends = tuple(self.market.panel.dates[[0, -1]])
        for name, opened in self.opened.found.items():
            if opened:
                yield Finding(name, OPENED, ends, 0, NOTED, where=first_few(list(opened), 5))

    def _judged(self, name: str, bars: IntArray, decide: Callable[[], Decided]) -> Finding:
        dates = self.market.panel.dates
        try:
            views, known, paid = decide()
        except Exception as error:
            return Finding(name, FOREKNOWLEDGE, tuple(dates[bars[[0, -1]]]), len(bars), FAILED, where=typed_line(error))
        finding = Finding(name, FOREKNOWLEDGE, tuple(dates[known[[0, -1]]]), len(known), CLEAN)
        worst = max(self.test.scores(views, known, paid), key=lambda one: one.share, default=None)
        if worst is None:
            return finding
        first, last = dates[known[[worst.rows.start, worst.rows.stop - 1]]]
        words = (
            f"the rank correlation of its {worst.view} with {worst.outcome} is {worst.value:+.2f} beyond that of other "
            f"dates, from {first} to {last}; no honest rule is known to reach "
            f"{worst.limit:.2f} of this market, and chance has a deviation of {worst.spread:.2f}"
        )
        return replace(finding, verdict=BEYOND_LIMIT, where=words)


def decided_views(process: DecisionProcess, window: range, strategy: Strategy) -> Decided:
    """Views of a strategy's decisions, the newest bar that each may know, and the bars from there to the fill."""
    recorder = DecisionRecorder(strategy)
    run_backtests(process, window, [recorder])
    targets, held = np.stack(recorder.answers["weights"]), np.stack(recorder.accounts)[:, : process.n_weights]
    # The account is its owner's and known a bar before the fill, also where prices are older.
    paid = min(process.lag, 1)
    known = np.asarray(process.decision_bars(window), dtype=np.int64) - paid
    return views_of_portfolios(targets, held), known, paid


def _views_of_feature(name: str, values: FloatArray) -> Iterator[View]:
    """Yield ranks among the assets, and the level of all of them over time."""
    if values.ndim == 2:
        yield View(f"values of {name} among assets", ranks_of(values))
        values = market_return(values)
    yield View(f"values of {name} over time", ranks_of(values.reshape(-1, 1), axis=0))
