"""The step of TRPO: conjugate gradient on Fisher-vector products, and a line search on the exact KL.

References
----------
Schulman and others (2015), Trust Region Policy Optimization, appendix C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from finflow.agent.gradient_steps import full_precision

DAMPING = 0.1  # added to the diagonal of the Fisher matrix
CONJUGATE_STEPS = 15  # of the conjugate gradient at most
LINE_SEARCH_STEPS, SHRINKING = 10, 0.8  # step lengths tried, and the factor from one to the next
RESIDUAL = 1e-10  # of the conjugate gradient: its squared length at which the solution is taken


class TrustRegionStep(NamedTuple):
    """Outcome of a step."""

    accepted: bool  # false where no step length improved the objective; the parameters stay as they were
    divergence: float  # exact mean KL(old || new) after it, in nats
    improvement: float  # of the objective
    length: float  # share of the longest step that was taken


def trust_region_step(
    parameters: Sequence[nn.Parameter],
    objective: Callable[[], Tensor],
    divergence: Callable[[], Tensor],
    delta: float,
) -> TrustRegionStep:
    """Move parameters along the natural gradient as far as the KL allows and the objective improves.

    Parameters
    ----------
    parameters : sequence of Parameter
        Of the policy; changed in place. After a refused step they are what they were, bit for bit.
    objective : callable
        The surrogate objective to maximise at the present parameters, ().
    divergence : callable
        Mean KL(old || present) in nats, (); its second derivative at the old parameters is the Fisher matrix.
    delta : float
        Largest divergence.
    """
    before = objective()
    direction = natural_gradient(parameters, before, divergence)
    start = parameters_to_vector(parameters).detach().clone()
    step = longest_step(direction, fisher_product(parameters, divergence), delta)
    was, length = float(before.detach()), 1.0
    if bool(torch.isfinite(step).all()):
        for _ in range(LINE_SEARCH_STEPS):
            _set(parameters, start + length * step)
            with torch.no_grad():
                moved, gained = float(divergence()), float(objective()) - was
            if moved <= delta and gained > 0.0:
                return TrustRegionStep(True, moved, gained, length)
            length *= SHRINKING
    _set(parameters, start)
    return TrustRegionStep(False, 0.0, 0.0, 0.0)


def natural_gradient(parameters: Sequence[nn.Parameter], objective: Tensor, divergence: Callable[[], Tensor]) -> Tensor:
    """Direction ``(F + damping I)^-1 g`` as one vector: F the Fisher matrix, g the gradient of the objective, ()."""
    with full_precision(objective):
        gradient = _flat(torch.autograd.grad(objective, parameters, allow_unused=True), parameters)
    return conjugate_gradient(fisher_product(parameters, divergence), gradient, CONJUGATE_STEPS)


def longest_step(direction: Tensor, product: Callable[[Tensor], Tensor], delta: float) -> Tensor:
    """The direction at the length whose KL is delta to second order: ``sqrt(2 delta / (d' F d)) d``."""
    curvature = torch.dot(direction, product(direction))
    return direction * (2.0 * delta / curvature.clamp(min=torch.finfo(curvature.dtype).tiny)).sqrt()


def fisher_product(
    parameters: Sequence[nn.Parameter], divergence: Callable[[], Tensor], damping: float = DAMPING
) -> Callable[[Tensor], Tensor]:
    """Product of a vector and ``F + damping I``, as a function of the vector, without ever forming the matrix."""
    distance = divergence()
    with full_precision(distance):
        slope = torch.autograd.grad(distance, parameters, create_graph=True, allow_unused=True)
    flat_slope = _flat(slope, parameters)

    def product(vector: Tensor) -> Tensor:
        along = torch.dot(flat_slope, vector)
        with full_precision(along):
            curvature = torch.autograd.grad(along, parameters, retain_graph=True, allow_unused=True)
        return _flat(curvature, parameters) + damping * vector

    return product


def conjugate_gradient(product: Callable[[Tensor], Tensor], target: Tensor, steps: int) -> Tensor:
    """Solve ``A x = b`` for a symmetric positive definite A known by its products; b, ``target``, and x are (n,)."""
    solution = torch.zeros_like(target)
    residual, search = target.clone(), target.clone()
    squared = torch.dot(residual, residual)
    for _ in range(steps):
        if not float(squared) > RESIDUAL:
            break
        image = product(search)
        length = squared / torch.dot(search, image)
        solution = solution + length * search
        residual = residual - length * image
        previous, squared = squared, torch.dot(residual, residual)
        search = residual + (squared / previous) * search
    return solution


@torch.no_grad()
def _set(parameters: Sequence[nn.Parameter], vector: Tensor) -> None:
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, part in zip(parameters, torch.split(vector, sizes), strict=True):
        parameter.copy_(part.view_as(parameter))


def _flat(gradients: Sequence[Tensor | None], parameters: Sequence[nn.Parameter]) -> Tensor:
    """Gradients below one another; zeros where a parameter has no part in them."""
    parts = [
        torch.zeros_like(parameter).reshape(-1) if gradient is None else gradient.reshape(-1)
        for gradient, parameter in zip(gradients, parameters, strict=True)
    ]
    return torch.cat(parts)
