"""Interface of strategies: rules from what is known to a portfolio, with a memory of what depends on prices alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from finflow.arrays import BoolArray, FloatArray
from finflow.market.bar_frequency import BARS_PER_YEAR

Memo = MutableMapping[tuple[str, bytes], Any]
"""Results by the name of the computation and a digest of its inputs.

A strategy with an attribute ``memo`` is given one, and has the same results without."""
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Information:
    """All that a strategy may use for one decision. K is the number of assets and cash, which is last.

    Attributes
    ----------
    step : int
        Decisions since the start of the run, 0 at the first.
    prices : float64 of shape (bars known, assets)
        Closing prices up to the bar t - lag inclusive; NaN where not listed. Not to be written to; the memory behind
        it holds nothing later either.
    listed : bool of shape (assets,)
        Which assets had a price at the bar t - lag. Weight on one that has ended by the fill goes to the others.
    portfolio : float64 of shape (K,)
        Weights held, as observed: right after the last fill, at the prices of bar t - 1 (at lag 0: drifted to bar t).
        Naming it again trades exactly nothing.
    observation : mapping or None
        The environment's observation, for learned agents.
    bars_per_year : int
        252 for daily bars, 52 for weekly, 12 for monthly ones.
    date : datetime64[D] or None
        Of the bar t - lag, the newest that is known.
    """

    step: int
    prices: FloatArray
    listed: BoolArray
    portfolio: FloatArray
    observation: Mapping[str, NDArray[Any]] | None = None
    bars_per_year: int = BARS_PER_YEAR
    date: np.datetime64 | None = None


@runtime_checkable
class Strategy(Protocol):
    """Anything with a name that answers information with weights."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    def decide(self, information: Information) -> FloatArray:
        """Target weights of shape (K,): none negative, summing to one, cash last."""
        ...


def with_cash(weights: FloatArray) -> FloatArray:
    """Append cash, which takes what the risky weights (summing to one or less) leave over."""
    risky = np.maximum(weights, 0.0)
    if risky.sum() > 1.0:
        risky = risky / float(risky.sum())
    return np.append(risky, max(0.0, 1.0 - float(risky.sum())))


def equal_weights(listed: BoolArray) -> FloatArray:
    """The same weight in every listed asset, nothing in cash; all cash where none is listed."""
    return np.append(listed, not listed.any()) / max(int(np.count_nonzero(listed)), 1)


def memoised(memo: Memo | None, name: str, inputs: Sequence[NDArray[Any]], compute: Callable[[], Result]) -> Result:
    """Return what a computation gave for the same inputs before, or compute and remember it.

    ``inputs``: all that the result depends on and that differs between backtests with the same memo. The result may not
    be changed afterwards.
    """
    if memo is None:
        return compute()
    digest = hashlib.sha256()
    for one in inputs:
        digest.update(f"{one.dtype.str}{one.shape}".encode())
        digest.update(np.ascontiguousarray(one).data)
    key = name, digest.digest()
    if key not in memo:
        memo[key] = compute()
    result: Result = memo[key]
    return result
