"""Portfolios that cover the simplex, with their exact density: for exploration, starting points and CQL.

Uniform draws alone almost never hold much of one asset: of 21 weights the largest exceeds one half about once in
50 000 draws. So a part of the draws comes from sparse Dirichlet distributions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

CONCENTRATIONS = (1.0, 0.3, 0.1)
SHARES = (0.5, 0.25, 0.25)
SMOOTHING = 0.01


def smooth(weights: NDArray[np.float64], share: float = SMOOTHING) -> NDArray[np.float64]:
    """Move portfolios into the interior of the simplex: ``(1 - share) w + share / K``."""
    smoothed: NDArray[np.float64] = (1.0 - share) * weights + share / weights.shape[-1]
    return smoothed


def draw_coverage(
    rng: np.random.Generator, size: int, n_weights: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw smoothed portfolios from the coverage mixture.

    Parameters
    ----------
    rng : numpy.random.Generator
    size : int
    n_weights : int
        K, assets and cash.

    Returns
    -------
    weights : array, (size, K)
        In the interior of the simplex.
    log_density : array, (size,)
        Log of the mixture's density at ``weights``, with respect to Lebesgue measure on K - 1 weights.
    """
    component = rng.choice(len(SHARES), size=size, p=SHARES)
    concentration = np.asarray(CONCENTRATIONS)[component]
    # log of a Gamma(a) variable as log Gamma(a + 1) + log(U) / a, which does not underflow for small a
    log_gamma = np.log(rng.standard_gamma(concentration[:, None] + 1.0, size=(size, n_weights)))
    log_gamma += np.log1p(-rng.random((size, n_weights))) / concentration[:, None]
    log_weights = log_gamma - logsumexp(log_gamma, axis=1, keepdims=True)
    return smooth(np.exp(log_weights)), mixture_log_density(log_weights)


def mixture_log_density(log_weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log density of the smoothed mixture, given the log weights before smoothing.

    Parameters
    ----------
    log_weights : array, (size, K)

    Returns
    -------
    array, (size,)
        ``log sum_c share_c Dir(w; a_c) - (K - 1) log(1 - smoothing)``: smoothing shrinks every volume.
    """
    n_weights = log_weights.shape[1]
    total = log_weights.sum(axis=1)
    parts = [
        np.log(share) + gammaln(n_weights * a) - n_weights * gammaln(a) + (a - 1.0) * total
        for share, a in zip(SHARES, CONCENTRATIONS, strict=True)
    ]
    density: NDArray[np.float64] = logsumexp(np.stack(parts), axis=0) - (n_weights - 1) * np.log1p(-SMOOTHING)
    return density
