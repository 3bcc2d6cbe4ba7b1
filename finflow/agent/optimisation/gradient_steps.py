"""Small steps that every learner shares: optimisers, gradients, target networks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from finflow.agent.optimisation.precision import exact
from finflow.cores import meanwhile


class CarefulAdam(torch.optim.Adam):
    """Adam, fused into one pass, that can be told to leave out steps whose gradient is not finite.

    Attributes
    ----------
    careful : bool
        Whether it does. What it leaves out changes neither parameters nor moments.
    found_inf : Tensor or None
        Read by the fused pass, so that nothing waits for the device.
    """

    careful = False
    found_inf: Tensor | None = None

    def beware(self, length: Tensor) -> None:
        """Tell the next step how long its gradient is."""
        self.found_inf = (length - length).ne(0.0).float() if self.careful else None  # 1 where it is not finite


def make_optimiser(
    modules: nn.Module | Iterable[nn.Module], learning_rate: float, weight_decay: float = 0.0
) -> CarefulAdam:
    """Adam over the parameters of a module, or of several, fused into one pass.

    Parameters
    ----------
    modules : Module or several
    learning_rate : float
    weight_decay : float
        Decoupled from the gradient (Loshchilov and Hutter 2019): a step takes ``learning_rate * weight_decay`` of every
        weight away. Biases keep what they have, the initial trade rate among them.
    """
    parts = [modules] if isinstance(modules, nn.Module) else list(modules)
    if weight_decay == 0.0:
        return CarefulAdam([p for part in parts for p in part.parameters()], lr=learning_rate, fused=True)
    named = [(name.rpartition(".")[2], p) for part in parts for name, p in part.named_parameters()]
    groups = [
        {"params": [p for name, p in named if name == "weight"], "weight_decay": weight_decay},
        {"params": [p for name, p in named if name != "weight"], "weight_decay": 0.0},
    ]
    return CarefulAdam(groups, lr=learning_rate, fused=True, decoupled_weight_decay=True)


def descend(loss: Tensor, optimiser: torch.optim.Optimizer, gradient_norm: float) -> Tensor:
    """One step down a loss.

    Parameters
    ----------
    loss : Tensor, ()
    optimiser : Optimizer
    gradient_norm : float
        Gradients longer than this are shortened to it.

    Returns
    -------
    Tensor, ()
        Length of the gradient before it was shortened.
    """
    optimiser.zero_grad(set_to_none=True)
    _differentiate(loss)
    return step(optimiser, gradient_norm)


@contextmanager
def descending(loss: Tensor, optimiser: torch.optim.Optimizer) -> Iterator[None]:
    """Take a loss's gradients while the block runs, on a second core where there is one; `step` is to follow.

    Parameters
    ----------
    loss : Tensor, ()
        What the block changes is not what it was computed from.
    optimiser : Optimizer
    """
    optimiser.zero_grad(set_to_none=True)
    with meanwhile(partial(_differentiate, loss), loss.device):
        yield


def step(optimiser: torch.optim.Optimizer, gradient_norm: float) -> Tensor:
    """One step along gradients that have been taken: the second half of `descend`."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    length = nn.utils.clip_grad_norm_(parameters, gradient_norm)
    if isinstance(optimiser, CarefulAdam):
        optimiser.beware(length)
    optimiser.step()
    return length.detach()


def _differentiate(loss: Tensor) -> None:
    """Add a loss's gradients to its parameters'."""
    with exact(loss):
        loss.backward()  # type: ignore[no-untyped-call]


def tune(optimiser: CarefulAdam, loss: Tensor) -> None:
    """One step of a coefficient down its own loss, ()."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.beware(loss)
    optimiser.step()


@torch.no_grad()
def follow(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Move a target network's parameters a share ``tau`` toward the source's."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)


def set_learning_rate(optimiser: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of every parameter."""
    for group in optimiser.param_groups:
        group["lr"] = learning_rate


def cosine(initial: float, progress: float) -> float:
    """Cosine decay from ``initial`` at progress 0 to zero at progress 1."""
    return 0.5 * initial * (1.0 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))


def freeze(modules: Iterable[nn.Module]) -> None:
    """Parameters of these networks take no gradients: they follow others."""
    for module in modules:
        module.requires_grad_(False)
