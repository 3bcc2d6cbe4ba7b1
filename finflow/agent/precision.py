"""Numerical precision and memory of an update: bfloat16 products, recomputed hidden layers, no denormal numbers.

Parameters, optimisers, losses, portfolios, densities and quantiles stay in float32: bfloat16 does not distinguish a
weight of 0.050 from 0.0501. Denormal numbers (under 1e-38) are set to zero in updates of one thread, because
processors compute many times slower with them; the soft maximum of CQL is full of them.

References
----------
Micikevicius et al. (2018), Mixed Precision Training.
Chen et al. (2016), Training Deep Nets with Sublinear Memory Cost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Generator, Tensor
from torch.utils.checkpoint import checkpoint

from finflow.agent.batch import Batch

P = ParamSpec("P")
R = TypeVar("R")
Learner = TypeVar("Learner", bound=Any)


def autocast_update(
    update: Callable[Concatenate[Learner, Batch, P], R],
) -> Callable[Concatenate[Learner, Batch, P], R]:
    """Decorate a learner's update: no denormal numbers; products in bfloat16 with ``bcell.mixed_precision``."""

    @functools.wraps(update)
    def run(learner: Learner, batch: Batch, /, *rest: P.args, **named: P.kwargs) -> R:
        enabled = bool(learner.config.mixed_precision)
        # casts are not cached: parameters change within an update
        cast = torch.autocast(batch.rewards.device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)
        with no_denormals(), cast:
            return update(learner, batch, *rest, **named)

    return run


@contextmanager
def no_denormals() -> Iterator[None]:
    """Context in which denormal results are zero, in operations of one thread."""
    # the switch belongs to a thread; the other threads of an operation would not have it
    torch.set_flush_denormal(torch.get_num_threads() == 1)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def full_precision(like: Tensor) -> torch.autocast:
    """Context in which operations keep the precision of their inputs."""
    return torch.autocast(like.device.type, enabled=False)


def at_least_single(values: Tensor) -> Tensor:
    """Convert bfloat16 to float32, and leave other types as they are."""
    return values.float() if values.dtype == torch.bfloat16 else values


def recomputed(function: Callable[..., R], noise: Generator | None = None) -> Callable[..., R]:
    """Wrap a function so that its inner tensors are recomputed in the backward pass, to the same bits, not kept.

    Its random numbers come from ``noise``, which is rewound for the second call to its state at the first.
    """

    def run(*arguments: Any) -> R:
        if not torch.is_grad_enabled():
            return function(*arguments)
        initial = None if noise is None else noise.get_state()
        calls = 0

        def again(*arguments: Any) -> R:
            nonlocal calls
            calls += 1
            if calls == 1 or noise is None or initial is None:
                return function(*arguments)
            current = noise.get_state()
            noise.set_state(initial)
            try:
                return function(*arguments)
            finally:  # torch ends the second call by an exception, once it has all that it needs
                noise.set_state(current)

        result: R = checkpoint(again, *arguments, use_reentrant=False, preserve_rng_state=False)
        return result

    return run
