"""Mathematics of on-policy learning: advantages, losses of PPO, coefficients of a KL penalty, and the step of TRPO.

References
----------
Schulman and others (2016), High-Dimensional Continuous Control Using Generalized Advantage Estimation, equation 16.
Schulman and others (2017), Proximal Policy Optimization Algorithms, section 4 and equations 7 and 8.
Schulman and others (2015), Trust Region Policy Optimization, appendix C.
Ziegler and others (2019), Fine-Tuning Language Models from Human Preferences, section 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from finflow.agent.gradient_steps import full_precision

SMALLEST_DEVIATION = 1e-8


def generalised_advantages(
    rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor, gamma: float, lam: float
) -> Tensor:
    """Generalised advantage estimation: ``A_t = sum_l (gamma lambda)^l delta_{t+l}`` until the episode ends.

    ``delta_t = r_t + gamma (1 - terminated_t) V(s_{t+1}) - V(s_t)``. A terminated episode has no value beyond its end;
    a truncated one has the value of the observation at which it was cut. With ``lam`` 0 this is the one-step TD error,
    with 1 the Monte Carlo return less the value. Targets of the value function are the advantages plus the values.

    Parameters
    ----------
    rewards, values, next_values : Tensor, (steps, environments)
        The next value is of the observation that followed; where an episode ended, of its own last observation.
    terminated, ended : Tensor, (steps, environments)
        1 where the decision ended the episode for good; where it was the episode's last, by truncation too.
    """
    deltas = rewards + gamma * (1.0 - terminated) * next_values - values
    decay = (gamma * lam) * (1.0 - ended)
    advantages = torch.empty_like(deltas)
    following = torch.zeros_like(deltas[0])
    for step in range(len(deltas) - 1, -1, -1):
        following = deltas[step] + decay[step] * following
        advantages[step] = following
    return advantages


def standardised(advantages: Tensor) -> Tensor:
    """Advantages with mean 0 and sample deviation 1, over all that are given; a single one is left as it is."""
    if advantages.numel() < 2:
        return advantages
    return (advantages - advantages.mean()) / (advantages.std() + SMALLEST_DEVIATION)


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """``1 - var(returns - values) / var(returns)``, (): 1 for a perfect value function, 0 for a constant one."""
    spread = returns.var(correction=0)
    return 1.0 - (returns - values).var(correction=0) / spread.clamp(min=SMALLEST_DEVIATION)


def surrogate_loss(ratio: Tensor, advantages: Tensor, clip: float | None = None) -> Tensor:
    """``-mean(ratio A)``, (), of joint density ratios (batch,).

    At the old policy its gradient is the policy gradient's. With ``clip``, ``-mean min(ratio A, clip(ratio, 1 - eps,
    1 + eps) A)``: beyond the limit a ratio gains nothing more; a change that is for the worse is charged in full.
    """
    gain = ratio * advantages
    if clip is not None:
        gain = torch.minimum(gain, ratio.clamp(1.0 - clip, 1.0 + clip) * advantages)
    return -gain.mean()


def value_loss(values: Tensor, returns: Tensor) -> Tensor:
    """Half the mean squared error of values (batch,), ()."""
    return 0.5 * (values - returns).square().mean()


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Estimate of KL(old || new) from the old policy's actions, (): the mean of ``ratio - 1 - log ratio``, at least 0.

    Reference: Schulman (2020), Approximating KL Divergence.
    """
    return (log_ratio.exp() - 1.0 - log_ratio).mean()


def clip_fraction(ratio: Tensor, clip: float) -> Tensor:
    """Share of ratios beyond the limits, ()."""
    return ((ratio - 1.0).abs() > clip).to(ratio.dtype).mean()


TOLERANCE = 1.5  # of the doubling rule: the KL may lie within this factor of its target
LARGEST_ERROR = 0.2  # of the proportional controller


class DoublingKL:
    """Coefficient of a KL penalty: doubled above 1.5 times the target, halved below the target over 1.5.

    Examples
    --------
    >>> controller = DoublingKL(0.01, target=0.01)
    >>> controller.update(0.02), controller.update(0.001)
    (0.02, 0.01)
    """

    SAVED = ("beta",)

    def __init__(self, beta: float, target: float) -> None:
        self.beta, self.target = beta, target

    def update(self, divergence: float) -> float:
        """Take the KL of one update of the policy, in the unit of the target; returns the new beta."""
        if divergence > TOLERANCE * self.target:
            self.beta *= 2.0
        elif divergence < self.target / TOLERANCE:
            self.beta /= 2.0
        return self.beta


class ProportionalKL:
    """``beta *= 1 + clip(KL / target - 1, -0.2, 0.2) n / horizon``, after n decisions (Ziegler and others 2019).

    ``target``: KL in the unit that `update` is given. ``horizon``: decisions over which beta may change by a factor of
    about ``exp(0.2)``.
    """

    SAVED = ("beta",)

    def __init__(self, beta: float, target: float, horizon: int = 10_000) -> None:
        self.beta, self.target, self.horizon = beta, target, horizon

    def update(self, divergence: float, decisions: int) -> float:
        """Take the KL measured over so many decisions; returns the new beta, the old one where it is no number."""
        if math.isfinite(divergence):
            error = min(max(divergence / self.target - 1.0, -LARGEST_ERROR), LARGEST_ERROR)
            self.beta *= max(1.0 + error * decisions / self.horizon, 0.0)
        return self.beta


DAMPING = 0.1  # added to the diagonal of the Fisher matrix
CONJUGATE_STEPS = 15  # of the conjugate gradient at most
LINE_SEARCH_STEPS, SHRINKING = 10, 0.8  # step lengths tried, and the factor from one to the next
RESIDUAL = 1e-10  # of the conjugate gradient: its squared length at which the solution is taken


def trust_region_step(
    parameters: Sequence[nn.Parameter], objective: Callable[[], Tensor], divergence: Callable[[], Tensor], delta: float
) -> tuple[float, float]:
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

    Returns
    -------
    divergence, improvement : float
        Exact mean KL(old || new) after the step, in nats, and the gain of the objective; zeros where no step length
        improved it.
    """
    before = objective()
    product = fisher_product(parameters, divergence)
    direction = natural_gradient(parameters, before, product)
    curvature = torch.dot(direction, product(direction))
    longest = direction * (2.0 * delta / curvature.clamp(min=torch.finfo(curvature.dtype).tiny)).sqrt()
    start = parameters_to_vector(parameters).detach().clone()
    was, length = float(before.detach()), 1.0
    if bool(torch.isfinite(longest).all()):
        for _ in range(LINE_SEARCH_STEPS):
            _set(parameters, start + length * longest)
            with torch.no_grad():
                moved, gained = float(divergence()), float(objective()) - was
            if moved <= delta and gained > 0.0:
                return moved, gained
            length *= SHRINKING
    _set(parameters, start)
    return 0.0, 0.0


def natural_gradient(
    parameters: Sequence[nn.Parameter], objective: Tensor, product: Callable[[Tensor], Tensor]
) -> Tensor:
    """Direction ``(F + damping I)^-1 g`` as one vector, by `fisher_product`: g the gradient of the objective, ()."""
    with full_precision(objective):
        gradient = _flat(torch.autograd.grad(objective, parameters, allow_unused=True), parameters)
    return conjugate_gradient(product, gradient, CONJUGATE_STEPS)


def fisher_product(parameters: Sequence[nn.Parameter], divergence: Callable[[], Tensor]) -> Callable[[Tensor], Tensor]:
    """Product of a vector and ``F + damping I``, as a function of the vector, without ever forming the matrix."""
    distance = divergence()
    with full_precision(distance):
        slope = torch.autograd.grad(distance, parameters, create_graph=True, allow_unused=True)
    flat_slope = _flat(slope, parameters)

    def product(vector: Tensor) -> Tensor:
        along = torch.dot(flat_slope, vector)
        with full_precision(along):
            curvature = torch.autograd.grad(along, parameters, retain_graph=True, allow_unused=True)
        return _flat(curvature, parameters) + DAMPING * vector

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
    """Copy a vector into parameters: views of it would lie elsewhere in memory, and round differently."""
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
