"""Distributions of actions: the logistic-normal on the simplex, and those of tasks that are not markets.

Of portfolios, ``z_i = log(w_i / w_K)`` for i < K is normal with a location and a scale; ``w = softmax([z, 0])``. The
density is with respect to Lebesgue measure on the first K - 1 weights: ``log p(w) = sum_i log N(z_i) - sum_k log w_k``,
the last term being the Jacobian of the map from z to w.

Where assets are not listed, the distribution is that of the listed ones and cash alone: a simplex of fewer dimensions.
Their log ratios are `UNLISTED`, a constant without density; their weights are exactly zero.

References
----------
Aitchison (1986), The Statistical Analysis of Compositional Data, section 6.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

SMALLEST_WEIGHT = 1e-6  # smaller weights are read as this: logarithms stay finite
UNLISTED = -1e3  # log ratio of an asset that is not listed: its weight is zero in single and double precision
ENTROPY_OF_NORMAL = 0.5 * math.log(2.0 * math.pi * math.e)  # of the standard normal distribution, nats
LOG_DENSITY_AT_CENTRE = -0.5 * math.log(2.0 * math.pi)  # of the standard normal distribution


@dataclass(frozen=True)
class _Normal:
    """A batch of distributions whose coordinates are normal, and independent of one another."""

    location: Tensor  # (batch, d): the mean
    log_scale: Tensor  # (batch, d), or (d,) where it is common to all: log of the standard deviation

    @torch.no_grad()
    def draw_action(self, generator: Generator) -> Tensor:
        """Draw coordinates, (batch, d), which are the actions of on-policy learning; not held to the bounds of a task.

        Densities of log ratios and those of weights differ by a Jacobian that is the same for every policy, and drops
        out of every ratio and KL.
        """
        noise = standard_normal(tuple(self.location.shape), generator, self.location)
        return torch.addcmul(self.location, noise, self.log_scale.exp())


@dataclass(frozen=True)
class LogisticNormal(_Normal):
    """A batch of logistic-normal distributions, d = K - 1; the centre of each is the softmax of its location."""

    listed: Tensor | None = None  # (batch, K - 1): assets that it is about, or all; the others' location is `UNLISTED`

    @property
    def dimensions(self) -> int | Tensor:
        """Free dimensions of an action: K - 1, or the number of listed assets, (batch,), at least one."""
        return count_dimensions(self.location, self.listed)

    def repeated(self, count: int) -> LogisticNormal:
        """Every distribution ``count`` times in a row."""
        location, log_scale = (part.repeat_interleave(count, dim=0) for part in (self.location, self.log_scale))
        listed = None if self.listed is None else self.listed.repeat_interleave(count, dim=0)
        return LogisticNormal(location, log_scale, listed)

    def centre(self) -> Tensor:
        """Softmax of the location, (batch, K): the deterministic portfolio."""
        return log_portfolio(self.location).exp()

    def sample(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Portfolios (batch, P, K) and their log densities (batch, P), reparametrised by normal noise (batch, P, D)."""
        coordinates = self.location.unsqueeze(1) + self.log_scale.exp().unsqueeze(1) * noise
        log_weights = log_portfolio(coordinates)
        listed = None if self.listed is None else self.listed.unsqueeze(1)
        return log_weights.exp(), sampled_density(noise, self.log_scale.unsqueeze(1), log_weights, listed)

    def draw(self, noise: Tensor) -> Tensor:
        """Log weights (batch, K) of one reparametrised portfolio each, by standard normal noise (batch, K - 1)."""
        return log_portfolio(self.location + self.log_scale.exp() * noise)

    def entropy_density(self, noise: Tensor) -> Tensor:
        """Log density of samples with respect to Lebesgue measure on z, (batch,), by their normal noise (batch, K - 1).

        Entropy is taken of it. Entropy of weights is largest for portfolios near equal weight, cash included: its
        gradient moves the location there. Entropy of log ratios depends on the scale alone.
        """
        return sum_listed(normal_log_density(noise, self.log_scale), self.listed)

    def log_density(self, portfolios: Tensor) -> Tensor:
        """Log density of given portfolios, (batch,), one for each distribution."""
        log_weights = portfolios.clamp(min=SMALLEST_WEIGHT).log()
        coordinates = log_weights[..., :-1] - log_weights[..., -1:]
        standard = (coordinates - self.location) * (-self.log_scale).exp()
        return sampled_density(standard, self.log_scale, log_weights, self.listed)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log of the joint density of log ratios (batch, K - 1), (batch,)."""
        standard = (actions - self.location) * (-self.log_scale).exp()
        return sum_listed(LOG_DENSITY_AT_CENTRE - 0.5 * standard.square() - self.log_scale, self.listed)

    def entropy(self) -> Tensor:
        """Entropy of the portfolio per free dimension, nats (batch,), with the Jacobian's mean taken at the centre."""
        spread = mean_listed(self.log_scale + ENTROPY_OF_NORMAL, self.listed)
        log_weights = log_portfolio(self.location)
        if self.listed is None:
            return spread + log_weights.sum(dim=-1) / self.dimensions
        return spread + (sum_listed(log_weights[..., :-1], self.listed) + log_weights[..., -1]) / self.dimensions

    def kl(self, other: LogisticNormal) -> Tensor:
        """``KL(self || other)``, nats (batch,): `kl_per_dimension` in an order of operations of its own, summed."""
        change = self.log_scale - other.log_scale
        shift = (self.location - other.location) * (-other.log_scale).exp()
        return sum_listed(0.5 * ((2.0 * change).exp() + shift.square() - 1.0) - change, self.listed)

    def rows(self, index: Tensor) -> LogisticNormal:
        listed = None if self.listed is None else self.listed[index]
        return LogisticNormal(self.location[index], self.log_scale[index], listed)


@dataclass(frozen=True)
class Categorical:
    """A batch of distributions over the actions 0 .. n - 1, by their log probabilities (batch, n)."""

    log_probabilities: Tensor

    def draw_action(self, generator: Generator) -> Tensor:
        """Draw actions, int64 (batch,)."""
        with torch.no_grad():
            return torch.multinomial(self.log_probabilities.exp(), 1, generator=generator).squeeze(1)

    def mode(self) -> Tensor:
        """The most probable actions, int64 (batch,)."""
        return self.log_probabilities.argmax(dim=-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log probabilities of actions (batch,), (batch,)."""
        return self.log_probabilities.gather(1, actions.unsqueeze(1)).squeeze(1)

    def entropy(self) -> Tensor:
        return -(self.log_probabilities.exp() * self.log_probabilities).sum(dim=-1)

    def kl(self, other: Categorical) -> Tensor:
        """``KL(self || other)``, (batch,)."""
        return (self.log_probabilities.exp() * (self.log_probabilities - other.log_probabilities)).sum(dim=-1)

    def rows(self, index: Tensor) -> Categorical:
        return Categorical(self.log_probabilities[index])


@dataclass(frozen=True)
class DiagonalNormal(_Normal):
    """A batch of normal distributions (batch, d), independent in each dimension; log deviations are common to all."""

    def mode(self) -> Tensor:
        return self.location

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log joint densities of actions (batch, d), (batch,)."""
        standard = (actions - self.location) * (-self.log_scale).exp()
        constant = self.log_scale.sum() - LOG_DENSITY_AT_CENTRE * self.location.shape[-1]
        return -0.5 * standard.square().sum(dim=-1) - constant

    def entropy(self) -> Tensor:
        entropy = self.log_scale.sum() + ENTROPY_OF_NORMAL * self.location.shape[-1]
        return entropy.expand(len(self.location))

    def kl(self, other: DiagonalNormal) -> Tensor:
        """``KL(self || other)``, (batch,): `kl_per_dimension` in an order of operations of its own, summed."""
        change = self.log_scale - other.log_scale
        shift = (self.location - other.location) * (-other.log_scale).exp()
        return 0.5 * shift.square().sum(dim=-1) + (0.5 * ((2.0 * change).exp() - 1.0) - change).sum()

    def rows(self, index: Tensor) -> DiagonalNormal:
        return DiagonalNormal(self.location[index], self.log_scale)


def sampled_density(noise: Tensor, log_scale: Tensor, log_weights: Tensor, listed: Tensor | None) -> Tensor:
    """Log density (...) of samples with log weights (..., K), by the noise (..., K - 1) that they were drawn with."""
    normal = normal_log_density(noise, log_scale)
    if listed is None:
        return normal.sum(-1) - log_weights.sum(-1)
    return sum_listed(normal - log_weights[..., :-1], listed) - log_weights[..., -1]


def normal_log_density(standard: Tensor, log_scale: Tensor) -> Tensor:
    """Log densities of normal numbers in each dimension, from their distances to the mean in standard deviations."""
    return -0.5 * (standard.square() + math.log(2.0 * math.pi)) - log_scale


def kl_per_dimension(policy: LogisticNormal, reference: LogisticNormal) -> Tensor:
    """``KL(policy || reference) / (K - 1)``, (batch,), in closed form.

    Both are normal in the same log ratios, and a divergence does not change with the coordinates: per dimension
    ``log(s0 / s) + (s^2 + (z - z0)^2) / (2 s0^2) - 1/2``. Dimensions are those of the assets that are listed.
    `LogisticNormal.kl` rounds differently; each keeps its order of operations.
    """
    ratio = (policy.log_scale - reference.log_scale).exp()
    shift = (policy.location - reference.location) * (-reference.log_scale).exp()
    return mean_listed(0.5 * (ratio.square() + shift.square() - 1.0) - ratio.log(), policy.listed)


def kl_from_equal_weight(aim: Tensor, listed: Tensor) -> Tensor:
    """``KL(u || aim)``, (batch,), of aims (batch, K): u is equal weight over the assets that are ``listed``.

    It grows without bound as the aim leaves an asset out.
    """
    count = listed.sum(dim=-1).clamp(min=1).to(aim.dtype)
    missing = -(aim[:, :-1].clamp(min=SMALLEST_WEIGHT).log() + count.log().unsqueeze(-1))
    return torch.where(listed, missing, torch.zeros_like(missing)).sum(dim=-1) / count


def kl_from_portfolios(given: Tensor, portfolios: Tensor) -> Tensor:
    """``KL(given || portfolio)`` of portfolios (..., K), (...)."""
    return (torch.xlogy(given, given) - given * portfolios.clamp(min=SMALLEST_WEIGHT).log()).sum(dim=-1)


def sum_listed(values: Tensor, listed: Tensor | None) -> Tensor:
    """Sum over listed assets, (..., K - 1) to (...); over all where ``listed`` is left out."""
    return (values if listed is None else torch.where(listed, values, torch.zeros_like(values))).sum(dim=-1)


def mean_listed(values: Tensor, listed: Tensor | None) -> Tensor:
    """Mean over listed assets, (..., K - 1) to (...); 0 where none is listed."""
    if listed is None:
        return values.mean(dim=-1)
    return sum_listed(values, listed) / listed.sum(dim=-1).clamp(min=1)


def count_dimensions(ratios: Tensor, listed: Tensor | None) -> int | Tensor:
    """Free dimensions of log ratios (batch, K - 1): K - 1, or the number of listed assets, (batch,), at least one."""
    return ratios.shape[-1] if listed is None else listed.sum(dim=-1).clamp(min=1).to(ratios.dtype)


def log_portfolio(coordinates: Tensor) -> Tensor:
    """Log weights of additive log-ratio coordinates: log softmax of ``[z, 0]``."""
    zero = torch.zeros_like(coordinates[..., :1])
    return torch.log_softmax(torch.cat([coordinates, zero], dim=-1), dim=-1)


def log_ratios(portfolios: Tensor, listed: Tensor | None = None) -> Tensor:
    """Additive log-ratio coordinates of portfolios, (..., K) to (..., K - 1); `UNLISTED` for assets not listed."""
    log_weights = portfolios.clamp(min=SMALLEST_WEIGHT).log()
    ratios = log_weights[..., :-1] - log_weights[..., -1:]
    return ratios if listed is None else ratios.masked_fill(~listed, UNLISTED)


def log_ratio_entropy(scale: float, dimensions: int | Tensor) -> float | Tensor:
    """Entropy of D log ratios that are normal with a common ``scale``: ``D ln(scale sqrt(2 pi e))``."""
    return dimensions * (math.log(scale) + ENTROPY_OF_NORMAL)


def mean_per_dimension(values: Tensor, n_dimensions: int | Tensor) -> Tensor:
    """Mean of values (B,) per free dimension, (); of one number for all of them, or of each its own, (B,)."""
    return (values / n_dimensions).mean() if isinstance(n_dimensions, Tensor) else values.mean() / n_dimensions


def weighted_likelihood_loss(log_density: Tensor, weights: Tensor, n_dimensions: int | Tensor) -> Tensor:
    """``- mean weight * log pi(a | s)`` per free dimension of the action, which may be each decision's own, (B,)."""
    return -mean_per_dimension(weights * log_density, n_dimensions)


def standard_normal(shape: tuple[int, ...], generator: Generator, like: Tensor) -> Tensor:
    """Standard normal noise from ``generator``, of the type and on the device of ``like``."""
    return torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
