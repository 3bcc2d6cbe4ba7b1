"""Loops over arrays, compiled by numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled_function(**options: Any) -> Callable[[F], F]:
    """``numba.njit`` that keeps its code on disk: beside the source, in ``NUMBA_CACHE_DIR`` or in the user's cache.

    Where none of these can be written, every process compiles anew; numba alone would refuse to import the module.
    """

    def compile_(function: F) -> F:
        try:
            return cast("F", njit(cache=True, **options)(function))
        except RuntimeError:
            return cast("F", njit(**options)(function))

    return compile_
