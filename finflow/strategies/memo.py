"""Memory of computations that depend on prices alone, for strategies that are backtested again at other costs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Memo = MutableMapping[tuple[str, bytes], Any]
"""Results by the name of the computation and a digest of its inputs."""

Result = TypeVar("Result")


@runtime_checkable
class Memoised(Protocol):
    """A strategy with a memory that is passed to it; results are the same with and without."""

    memo: Memo | None


def memoised(memo: Memo | None, name: str, inputs: Sequence[NDArray[Any]], compute: Callable[[], Result]) -> Result:
    """Return what a computation gave for the same inputs before, or compute and remember it.

    Parameters
    ----------
    inputs : sequence of array
        All that the result depends on and that differs between backtests with the same memo.
    compute : callable
        Returns the result, which may not be changed afterwards.
    """
    if memo is None:
        return compute()
    digest = hashlib.sha256()
    for one in inputs:
        digest.update(f"{one.dtype}{one.shape}".encode())
        digest.update(np.ascontiguousarray(one).data)
    key = name, digest.digest()
    if key not in memo:
        memo[key] = compute()
    result: Result = memo[key]
    return result
