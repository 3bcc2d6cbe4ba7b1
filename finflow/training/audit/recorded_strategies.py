"""Strategies as an audit asks them: in the backtest, with all that they are handed and all that they answer."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from finflow.evaluation.audit.look_ahead import Answer, Rows
from finflow.evaluation.backtest import run_backtests
from finflow.market.panel import MarketPanel
from finflow.strategies.strategy import Information, Strategy

if TYPE_CHECKING:
    from finflow.training.audit.audit_subjects import Subjects

FloatArray = NDArray[np.float64]

_RUNS = (60, 84, 110)
"""Decisions before the one that is probed: many rhythms of rebalancing divide one of them."""


class Played:
    """Strategies' answers in the backtest, in runs that end with the last decision that may not know of a shock.

    They play side by side, as in a report, and each alone where one of them fails.

    At lags over 1 the observed portfolio is newer than the prices, by design: it is the account's own. There a shock
    moves the account, so the account as it was without the shock is handed in: what is asked is what is decided with
    the same account and another future.

    Parameters
    ----------
    subjects : Subjects
    makers : mapping
        Name -> makes the strategy, anew for every run.
    """

    def __init__(self, subjects: Subjects, makers: Mapping[str, Callable[[], Strategy]]) -> None:
        self.subjects = subjects
        self.makers = makers
        self.accounts: dict[tuple[str, int, int], list[FloatArray]] = {}
        self.together = lru_cache(maxsize=2)(self._together)

    def of(self, name: str) -> Callable[[MarketPanel, int], Answer]:
        """The answers of one of them."""

        def answer(panel: MarketPanel, last: int) -> Answer:
            played = self.together(panel, last)
            return self._play(panel, last, [name])[name] if played is None else played[name]

        return answer

    def _together(self, panel: MarketPanel, last: int) -> dict[str, dict[str, Rows]] | None:
        try:
            return self._play(panel, last, list(self.makers))
        except Exception:  # whose it is, each of them will show alone
            return None

    def _play(self, panel: MarketPanel, last: int, names: Sequence[str]) -> dict[str, dict[str, Rows]]:
        subjects, is_base = self.subjects, panel is self.subjects.panel
        lag = subjects.config.env.execution_lag
        process = subjects.process(panel, subjects.fit(last), lag)
        rhythms = (subjects.config.evaluation.rebalance_every, *_RUNS)
        chosen = rhythms[int(np.random.default_rng(last).integers(len(rhythms)))]
        parts: dict[str, dict[str, Rows]] = {name: {} for name in names}
        for length in (0,) if subjects.before == 1 else (0, chosen):
            window = range(last + lag - length, last + lag + 3)
            bars = process.decision_bars(window)
            if window.start < process.first_bar or len(bars) < 2:  # features begin later, or the cut leaves no decision
                continue
            accounts = [None if is_base or lag < 2 else self.accounts[name, last, length] for name in names]
            notes = [_Notes(self.makers[name](), account) for name, account in zip(names, accounts, strict=True)]
            run_backtests(process, window, notes)
            rows = np.asarray(bars, dtype=np.int64)
            for name, note in zip(names, notes, strict=True):
                if is_base:
                    self.accounts[name, last, length] = note.accounts
                for part, values in note.answers.items():
                    parts[name][f"{part} (decision {length + 1} of a run)"] = Rows(np.stack(values), rows, lag)
        return parts


class _Notes:
    """A strategy that passes every question on to another, and notes the answers."""

    def __init__(self, inner: Strategy, account: list[FloatArray] | None) -> None:
        self.inner = inner
        self.name = inner.name
        self.account = account
        self.accounts: list[FloatArray] = []
        self.answers: dict[str, list[NDArray[Any]]] = {"weights": []}

    def decide(self, information: Information) -> FloatArray:
        observation = dict(information.observation or {})
        if self.account is not None:
            observation["portfolio"] = self.account[information.step]
            own = self.account[information.step][: len(information.portfolio)]
            information = replace(information, portfolio=own, observation=observation)
        self.accounts.append(np.array(observation["portfolio"]))
        target = np.asarray(self.inner.decide(information), dtype=np.float64)
        self.answers["weights"].append(target)
        for name, value in getattr(self.inner, "notes", {}).items():
            self.answers.setdefault(name, []).append(value)
        return target


class Digger:
    """Holds what it has, and notes all it was told, with the memory behind every array that it was handed.

    Parameters
    ----------
    accounts : bool
        Whether the account it is told of is the backtest's own, whose memory counts too.
    """

    name = "digger"

    def __init__(self, accounts: bool) -> None:
        self.accounts = accounts
        self.notes: dict[str, NDArray[Any]] = {}

    def decide(self, information: Information) -> FloatArray:
        observation = information.observation or {}
        handed = {
            "prices": information.prices,
            "listed": information.listed,
            "portfolio": information.portfolio,
            **{f"observed {name}": value for name, value in observation.items()},
        }
        self.notes = {"prices known": np.array([len(information.prices)]), "newest prices": information.prices[-1]}
        for name, array in handed.items():
            if name != "prices":
                self.notes[name] = np.array(array)
            if self.accounts or "portfolio" not in name:
                self.notes[f"memory behind {name}"] = _digest(_root(array))
        return information.portfolio


def _root(array: NDArray[Any]) -> NDArray[Any]:
    """The array whose memory another one looks into."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _digest(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Size and checksum of an array's memory, bit by bit."""
    return np.unpackbits(np.array([array.size, zlib.crc32(array.tobytes())], dtype=np.uint64).view(np.uint8))
