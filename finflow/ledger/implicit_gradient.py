"""Gradient of the wealth factor of a trade by the implicit function theorem, for portfolios in torch.

The wealth factor is the root of ``mu = 1 - cost(mu * target - before)``. Its derivative follows from the equation at
the root; how the root was found does not matter, so that no gradient is kept of the iteration.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def needs_gradient(*tensors: Tensor) -> bool:
    """True where a gradient is kept of what is computed from any of the tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def attach_gradient(root: Tensor, cost_at: Callable[[Tensor], Tensor]) -> Tensor:
    """Wealth factors with their gradient for whatever their costs depend on, (batch,).

    ``d mu = - d cost / (1 + cost'(mu))``, with ``d cost`` at constant mu: one Newton step from the root, which changes
    its value by no more than rounding.

    Parameters
    ----------
    root : Tensor, (batch,)
        Wealth factors that solve the equation, without gradient.
    cost_at : callable
        Maps wealth factors (batch,) to costs as shares of wealth (batch,).
    """
    point = root.detach().requires_grad_(True)
    with torch.enable_grad():
        cost = cost_at(point)
        (slope,) = torch.autograd.grad(cost.sum(), point, retain_graph=True)
    return root + (1.0 - cost - root) / (1.0 + slope)
