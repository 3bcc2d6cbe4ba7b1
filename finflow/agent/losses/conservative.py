"""The conservative penalty's surroundings: what is proposed, what it may not push under, and how heavy it is.

References
----------
Kumar et al. (2020), Conservative Q-Learning, equation 4 and appendix F (the Lagrange version).
Nakamoto et al. (2023), Cal-QL, equation 5.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

LARGEST_WEIGHT = 1e6  # of a tuned penalty, as in the code of the paper


class CoverageProposals(NamedTuple):
    """Proposals for CQL from the coverage mixture, with their log densities.

    Attributes
    ----------
    portfolios : Tensor, (batch, P, K)
    log_density : Tensor, (batch, P)
    """

    portfolios: Tensor
    log_density: Tensor

    def joined(self, portfolios: Sequence[Tensor], log_densities: Sequence[Tensor]) -> CoverageProposals:
        """These, and others drawn elsewhere, without their history."""
        return CoverageProposals(
            torch.cat([self.portfolios, *(part.detach() for part in portfolios)], dim=1),
            torch.cat([self.log_density, *(part.detach() for part in log_densities)], dim=1),
        )


def lower_bound(calibrations: Tensor, calibration: str) -> Tensor:
    """Values (batch,) that policy-drawn proposals are not pushed under; minus infinity where there is no bound."""
    return torch.full_like(calibrations, float("-inf")) if calibration == "none" else calibrations


def tuned_weight(log_weight: Tensor) -> Tensor:
    """The weight of a penalty that is tuned, (); bounded, and with a gradient."""
    return log_weight.exp().clamp(max=LARGEST_WEIGHT)


def indifferent_penalty(log_density: Tensor, n_dimensions: int) -> Tensor:
    """The penalty, (), of one critic that values every action alike, by the proposals at hand.

    ``mean_B log mean_P exp(- log density) / D``. With many proposals it is ``H_max / D``, the entropy of the uniform
    law a dimension, whatever the value; with few it lies below, as the log of a mean of uneven weights does.

    Parameters
    ----------
    log_density : Tensor, (B, P)
        Log density that each proposal was drawn with.
    n_dimensions : int
        D.
    """
    proposals = log_density.shape[-1]
    return (torch.logsumexp(-log_density, dim=-1) - math.log(proposals)).mean() / n_dimensions


def overestimation(penalty: Tensor, n_critics: int, indifferent: Tensor) -> Tensor:
    """How far a critic's soft maximum lies above its value of the data, (): the penalty, freed of the actions' volume.

    Parameters
    ----------
    penalty : Tensor, ()
        Summed over the critics.
    n_critics : int
    indifferent : Tensor, ()
        ``indifferent_penalty`` of the same proposals: that much is no overestimation.
    """
    return penalty.detach() / n_critics - indifferent


def lagrange_loss(log_weight: Tensor, excess: Tensor, gap: float) -> Tensor:
    """``- alpha' * (excess - gap)``: descending it makes the weight grow while the excess is over the gap."""
    return -tuned_weight(log_weight) * (excess - gap)
