"""The portfolio that is taken from a policy: its centre, a draw around it, or either among the largest assets alone.

With the log ratios ``z ~ N(m, s^2)`` of a policy and a temperature T, a decision is ``softmax([m + sqrt(T) s e, 0])``
with standard normal e: the density of z to the power 1 / T, renormalised. T -> 0 is the centre, softmax of ``[m, 0]``;
T = 1 is the policy's own distribution. e depends on the seed and the date alone. So a decision is the same whatever was
decided before it, and agents that act as one are drawn with the same e.

With ``top_p`` below 1, only the largest assets of the centre are held: the fewest that have that share of what the
centre holds in assets. Their weights grow in proportion. Cash is not among them and keeps its weight: the choice is one
of names, and how much is invested stays the policy's.

References
----------
Holtzman, Buys, Du, Forbes and Choi (2020), The Curious Case of Neural Text Degeneration, section 3.1 (the nucleus).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from finflow.agent.networks.logistic_normal import LogisticNormal, log_portfolio
from finflow.config import ActingConfig

ROUNDING = 1e-6  # of a sum of weights in single precision


def acted_portfolio(distribution: LogisticNormal, acting: ActingConfig, date: np.datetime64 | None) -> Tensor:
    """Portfolios that are decided on, (batch, K); rows are drawn with the same noise.

    The date, of the newest bar that is known, is needed above a temperature of 0 alone; a ValueError without it there.
    """
    centre = distribution.centre()
    drawn = centre
    if acting.temperature > 0.0:
        if date is None:
            raise ValueError("decisions that are drawn need the date of the newest bar that is known")
        noise = noise_of(acting.seed, date, distribution.location.shape[-1]).to(distribution.location)
        spread = acting.temperature**0.5 * distribution.log_scale.exp()
        drawn = log_portfolio(distribution.location + spread * noise).exp()
    return drawn if acting.top_p == 1.0 else keep_assets(drawn, nucleus(centre[..., :-1], acting.top_p))


def noise_of(seed: int, date: np.datetime64, dimensions: int) -> Tensor:
    """Standard normal noise of a date, (dimensions,), in double precision."""
    day = int(date.astype("datetime64[D]").astype(np.int64))
    return torch.from_numpy(np.random.default_rng([seed, day % 2**32]).standard_normal(dimensions))


def nucleus(weights: Tensor, top_p: float) -> Tensor:
    """Smallest set of assets with a share of ``top_p`` in the sum of the weights (..., assets), without cash.

    Of equals the first.

    None where all weights are zero.
    """
    ordered, order = weights.double().sort(dim=-1, descending=True, stable=True)
    larger = ordered.cumsum(dim=-1) - ordered  # what those before it have together
    wanted = max(top_p - ROUNDING, 0.5 * ROUNDING) * ordered.sum(dim=-1, keepdim=True)
    kept = (larger < wanted) & (ordered > 0.0)
    return torch.zeros_like(kept).scatter(-1, order, kept)


def keep_assets(portfolios: Tensor, kept: Tensor) -> Tensor:
    """Move what portfolios (..., K) hold in assets to the ``kept`` ones (..., K - 1), in proportion; cash stays."""
    assets = portfolios[..., :-1]
    left = torch.where(kept, assets, torch.zeros_like(assets))
    scale = assets.sum(dim=-1, keepdim=True) / left.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny)
    return torch.cat([left * scale, portfolios[..., -1:]], dim=-1)
