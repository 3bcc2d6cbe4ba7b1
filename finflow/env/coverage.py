"""Portfolios that cover the simplex, with their exact density: for exploration, starting points and CQL.

Uniform draws alone almost never hold much of one asset: of 21 weights the largest exceeds one half about once in
50 000 draws. So a part of the draws comes from sparse Dirichlet distributions.

Where assets are not listed, the draws and their densities are of the simplex of the listed ones and cash: Gamma
variables of some of the assets make a Dirichlet distribution over those.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln, logsumexp

from finflow.arrays import BoolArray, FloatArray, IntArray

CONCENTRATIONS = (1.0, 0.3, 0.1)
SHARES = (0.5, 0.25, 0.25)
SMOOTHING = 0.01


def smooth(weights: FloatArray, share: float = SMOOTHING, listed: BoolArray | None = None) -> FloatArray:
    """Move portfolios (..., K) into the interior of the simplex: ``(1 - share) w + share / K``.

    The share is divided among the assets that are ``listed`` (..., K - 1) and cash; all of them when left out.
    """
    if listed is None:
        smoothed: FloatArray = (1.0 - share) * weights + share / weights.shape[-1]
        return smoothed
    held = _with_cash(listed)
    among: FloatArray = (1.0 - share) * weights + share * held / held.sum(axis=-1, keepdims=True)
    return among


def draw_coverage(
    rng: np.random.Generator, size: int, n_weights: int, listed: BoolArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Draw smoothed portfolios of ``n_weights`` K, assets and cash, from the coverage mixture.

    Parameters
    ----------
    listed : bool array, (size, K - 1), optional
        Assets that may be held; all of them when left out.

    Returns
    -------
    weights : array, (size, K)
        In the interior of the simplex of what is listed.
    log_density : array, (size,)
        Log of the mixture's density at ``weights``, with respect to Lebesgue measure on the weights of the listed
        assets, K - 1 of them when all are.
    """
    return coverage_portfolios(draw_log_gammas(rng, size, n_weights), listed)


def draw_log_gammas(rng: np.random.Generator, size: int, n_weights: int) -> FloatArray:
    """Draw logs of Gamma variables, (size, K), whose shares of their sum are portfolios of the coverage mixture."""
    component = rng.choice(len(SHARES), size=size, p=SHARES)
    concentration = np.asarray(CONCENTRATIONS)[component]
    # log of a Gamma(a) variable as log Gamma(a + 1) + log(U) / a, which does not underflow for small a
    log_gamma = np.log(rng.standard_gamma(concentration[:, None] + 1.0, size=(size, n_weights)))
    log_gamma += np.log1p(-rng.random((size, n_weights))) / concentration[:, None]
    return log_gamma


def coverage_portfolios(log_gamma: FloatArray, listed: BoolArray | None = None) -> tuple[FloatArray, FloatArray]:
    """Smoothed portfolios (..., K) from logs of Gamma variables (..., K), and their log densities (...)."""
    if listed is not None:
        log_gamma = np.where(_with_cash(listed), log_gamma, -np.inf)
    log_weights = log_gamma - logsumexp(log_gamma, axis=-1, keepdims=True)
    return smooth(np.exp(log_weights), listed=listed), mixture_log_density(log_weights, listed)


def mixture_log_density(log_weights: FloatArray, listed: BoolArray | None = None) -> FloatArray:
    """Log density (...) of the smoothed mixture over the listed assets, given log weights (..., K) before smoothing.

    ``log sum_c share_c Dir(w; a_c) - (K - 1) log(1 - smoothing)``: smoothing shrinks every volume.
    """
    n_weights: int | IntArray = log_weights.shape[-1]
    total = log_weights.sum(axis=-1)
    if listed is not None:
        held = _with_cash(listed)
        n_weights, total = held.sum(axis=-1), np.where(held, log_weights, 0.0).sum(axis=-1)
    parts = [
        np.log(share) + gammaln(n_weights * a) - n_weights * gammaln(a) + (a - 1.0) * total
        for share, a in zip(SHARES, CONCENTRATIONS, strict=True)
    ]
    density: FloatArray = logsumexp(np.stack(parts), axis=0) - (n_weights - 1) * np.log1p(-SMOOTHING)
    return density


def _with_cash(listed: BoolArray) -> BoolArray:
    """Weights that may be held, (..., K): those of listed assets (..., K - 1), and cash."""
    return np.concatenate([listed, np.ones_like(listed[..., :1])], axis=-1)
