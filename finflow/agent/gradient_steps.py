"""Steps of optimisers, target networks, and the numerical precision of an update.

With ``bcell.mixed_precision`` matrix products are in bfloat16. Parameters, optimisers, losses, portfolios, densities
and quantiles stay in float32: bfloat16 does not distinguish a weight of 0.050 from 0.0501. Denormal numbers (under
1e-38) are set to zero in updates of one thread, because processors compute many times slower with them; the soft
maximum of CQL is full of them.

References
----------
Micikevicius et al. (2018), Mixed Precision Training.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class SkippingAdam(torch.optim.Adam):
    """Adam, fused into one pass, that can skip steps whose gradient is not finite (``skip_nonfinite``).

    Its learning rates are used times what ``share`` returns, which changes nothing of their schedules.

    torch wraps these methods so that ``torch.compile`` leaves them alone; the wrappers load its compiler, which takes a
    second of every process that learns. Nothing here is compiled by torch, so the methods go without.
    """

    skip_nonfinite = False
    share: Callable[[], float] | None = None
    found_inf: Tensor | None = None

    add_param_group: Any = inspect.unwrap(torch.optim.Adam.add_param_group)
    state_dict: Any = inspect.unwrap(torch.optim.Adam.state_dict)
    load_state_dict: Any = inspect.unwrap(torch.optim.Adam.load_state_dict)
    zero_grad: Any = inspect.unwrap(torch.optim.Adam.zero_grad)
    step: Any = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


def make_optimiser(learned: nn.Module | Iterable[Tensor], learning_rate: float) -> SkippingAdam:
    """Adam over the parameters of a module, or over tensors."""
    parameters = learned.parameters() if isinstance(learned, nn.Module) else learned
    return SkippingAdam(parameters, lr=learning_rate, fused=True)


def gradient_step(loss: Tensor, optimiser: SkippingAdam, gradient_norm: float = math.inf) -> Tensor:
    """Take one step down a loss, (), with gradients shortened to ``gradient_norm``; returns their norm before, ()."""
    compute_gradients(loss, optimiser)
    return step(optimiser, gradient_norm)


def compute_gradients(loss: Tensor, *optimisers: SkippingAdam) -> None:
    """Set the gradients of the optimisers' parameters to those of a loss, (): the first half of `gradient_step`."""
    for optimiser in optimisers:
        optimiser.zero_grad()
    with full_precision(loss):
        loss.backward()  # type: ignore[no-untyped-call]


def step(optimiser: SkippingAdam, gradient_norm: float) -> Tensor:
    """Take one step along computed gradients: the second half of `gradient_step`."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    norm = nn.utils.clip_grad_norm_(parameters, gradient_norm)
    # 1 where the norm is not finite
    optimiser.found_inf = (norm - norm).ne(0.0).float() if optimiser.skip_nonfinite else None
    rates = [group["lr"] for group in optimiser.param_groups]
    for group in optimiser.param_groups:
        group["lr"] *= 1.0 if optimiser.share is None else optimiser.share()
    optimiser.step()
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        group["lr"] = rate
    return norm.detach()


@torch.no_grad()
def polyak_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Move a target network's parameters a share ``tau`` toward the source's."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)


def set_learning_rate(optimiser: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = learning_rate


def cosine(initial: float, progress: float) -> float:
    """Cosine decay from ``initial`` at progress 0 to zero at progress 1."""
    return 0.5 * initial * (1.0 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))


def linearised(value_of: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Value (batch,) of inputs (batch, ...) with its gradient for them, and none for the parameters behind it.

    Inputs without gradients stay so; the value need not depend on all of them.
    """
    points = [one.detach().requires_grad_(one.requires_grad) for one in inputs]
    value = value_of(*points)
    learned = [(one, point) for one, point in zip(inputs, points, strict=True) if one.requires_grad]
    with full_precision(value):
        slopes = torch.autograd.grad(value.sum(), [point for _, point in learned], allow_unused=True)
    result = value.detach()
    for slope, (one, point) in zip(slopes, learned, strict=True):
        if slope is not None:
            result = result + (slope * (one - point.detach())).flatten(1).sum(dim=-1)
    return result


@contextmanager
def update_precision(device: torch.device, mixed_precision: bool) -> Iterator[None]:
    """Context of a learner's update: no denormal numbers; products in bfloat16 with ``bcell.mixed_precision``."""
    # casts are not cached: parameters change within an update
    cast = torch.autocast(device.type, torch.bfloat16, enabled=mixed_precision, cache_enabled=False)
    with no_denormals(), cast:
        yield


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
