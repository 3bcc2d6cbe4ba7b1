"""Log densities of segments under a policy: of the portfolios that they held, on the market as it was known."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from finflow.agent.batch import States
from finflow.agent.networks.logistic_normal import LogisticNormal, kl_per_dimension
from finflow.agent.networks.policy import ExpertPolicy
from finflow.env.coverage import smooth
from finflow.offline.collection import AIM_SMOOTHING
from finflow.preferences.pair_tensors import PAIRS_AT_ONCE, PairTensors, Rows
from finflow.preferences.reward_model import states_holding


class SegmentDensity(NamedTuple):
    """Log densities of the segments of some pairs, per free dimension of a decision, in double precision.

    Attributes
    ----------
    total : Tensor, (2, pairs)
        Summed over the decisions of the first and the second segments.
    divergence : Tensor, ()
        Mean KL of the same decisions from a reference, per free dimension; 0 without one.
    """

    total: Tensor
    divergence: Tensor


def segment_density(
    policy: ExpertPolicy, pairs: PairTensors, chosen: Rows, reference: ExpertPolicy | None = None
) -> SegmentDensity:
    """Log densities of what was held in the segments of some pairs.

    The density is the policy's exact one, logistic-normal, at the weights right after the trade, smoothed into the
    interior of the simplex as the aims of behaviour are: else what is hardly held would decide every pair. The policy
    sees the market and the portfolio that the segment held; the state of the built-in reward, which a preference is not
    about, is zero.

    """
    rows, owner = pairs.decisions_of(chosen), pairs.owners_of(chosen)
    bars, place = torch.unique(pairs.bars[rows], return_inverse=True)
    states = states_holding(pairs.assets[bars], pairs.market[bars], pairs.decisions.held[rows])
    distribution = _distribution(policy, states, place)
    listed = pairs.assets[pairs.bars[rows], :, -1] > 0.5
    smoothed = smooth(pairs.decisions.filled[rows].double().numpy(), AIM_SMOOTHING, listed.numpy())
    each = distribution.log_density(torch.from_numpy(smoothed)) / distribution.dimensions
    total = each.new_zeros(2 * len(chosen)).index_add(0, owner, each).view(2, -1)
    divergence = each.new_zeros(())
    if reference is not None:
        divergence = kl_per_dimension(distribution, _distribution(reference, states, place)).mean()
    return SegmentDensity(total, divergence)


@torch.no_grad()
def all_densities(
    policy: ExpertPolicy, pairs: PairTensors, chosen: Rows, reference: ExpertPolicy | None = None
) -> SegmentDensity:
    """The same without gradients, some pairs at a time."""
    parts, divergence = [], 0.0
    for start in range(0, len(chosen), PAIRS_AT_ONCE):
        some = chosen[start : start + PAIRS_AT_ONCE]
        found = segment_density(policy, pairs, some, reference)
        parts.append(found.total)
        divergence += float(found.divergence) * float(pairs.lengths[some].sum())
    return SegmentDensity(torch.cat(parts, dim=1), torch.tensor(divergence / float(pairs.lengths[chosen].sum())))


def _distribution(policy: ExpertPolicy, states: States, place: Tensor) -> LogisticNormal:
    """Distributions of decisions; the market of each bar, (bars, ...), is read once, and ``place`` is that of each."""
    reading = policy.read_market(states).each(lambda part: part[place])
    return policy.trade_toward(states, reading).distribution
