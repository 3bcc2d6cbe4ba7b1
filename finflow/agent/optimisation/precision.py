"""Less work and less memory in an update: products in bfloat16, and hidden layers that are computed twice.

And no numbers under 1e-38: a proposal of CQL far less likely than others has a share of the soft maximum so small that
it is no normal number, and a processor takes many times longer over those. In an update of one thread they are zero.

Micikevicius et al. (2018), Mixed Precision Training, for what stays in float32: parameters, optimisers, losses; here
whatever is a portfolio, a density or a quantile too, since eight bits do not tell a weight of 0.050 from 0.0501.
Chen et al. (2016), Training Deep Nets with Sublinear Memory Cost, for computing again in place of keeping.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Generator, Tensor
from torch.utils.checkpoint import checkpoint

from finflow.agent.batch import Batch

P = ParamSpec("P")
R = TypeVar("R")
Learner = TypeVar("Learner", bound=Any)


def in_its_precision(
    update: Callable[Concatenate[Learner, Batch, P], R],
) -> Callable[Concatenate[Learner, Batch, P], R]:
    """An update without denormal numbers, and its products in bfloat16 where ``bcell.mixed_precision`` asks for it."""

    @functools.wraps(update)
    def run(learner: Learner, batch: Batch, /, *rest: P.args, **named: P.kwargs) -> R:
        enabled = bool(learner.config.mixed_precision)
        # without a cache of casts: parameters move between one use and the next of an update
        alone = torch.get_num_threads() == 1  # the switch is a thread's own: others of an operation would not hear
        torch.set_flush_denormal(alone)
        try:
            with torch.autocast(batch.rewards.device.type, torch.bfloat16, enabled=enabled, cache_enabled=False):
                return update(learner, batch, *rest, **named)
        finally:
            torch.set_flush_denormal(False)

    return run


def exact(like: Tensor) -> torch.autocast:
    """A stretch of an update that stays in the precision of its inputs."""
    return torch.autocast(like.device.type, enabled=False)


def at_least_single(found: Tensor) -> Tensor:
    """A tensor in float32 if it is in less, and as it is otherwise."""
    return found.float() if found.dtype == torch.bfloat16 else found


def recomputed(function: Callable[..., R], noise: Generator | None = None) -> Callable[..., R]:
    """A function whose inner tensors are not kept for the backward pass, but computed again there, to the same bits.

    Parameters
    ----------
    function : callable
        Of tensors; whatever is random in it comes from ``noise``.
    noise : Generator, optional
        Is put back for the second time to where it was at the first.
    """

    def run(*arguments: Any) -> R:
        if not torch.is_grad_enabled():
            return function(*arguments)
        before = None if noise is None else noise.get_state()
        times = 0

        def again(*arguments: Any) -> R:
            nonlocal times
            times += 1
            if times == 1 or noise is None or before is None:
                return function(*arguments)
            now = noise.get_state()
            noise.set_state(before)
            try:
                return function(*arguments)
            finally:  # torch stops the second time by an exception, as soon as it has all that it needs
                noise.set_state(now)

        found: R = checkpoint(again, *arguments, use_reentrant=False, preserve_rng_state=False)
        return found

    return run
