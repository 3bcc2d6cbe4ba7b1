"""Listwise losses of the experts' scores: assets ranked by what they returned afterwards.

An expert's portfolio is a softmax of its scores, so that the logarithms of its weights are its scores, up to one number
for all assets. The cash that it holds is left out.

References
----------
Cao and others (2007), Learning to Rank: From Pairwise Approach to Listwise Approach (ListNet).
Qin, Liu and Li (2010), A General Approximation Framework for Direct Optimization of Information Retrieval Measures.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from finflow.agent.networks.logistic_normal import SMALLEST_WEIGHT
from finflow.env.rewards.ranking_measures import discounts
from finflow.env.rewards.smooth_ranking import listwise_loss, smooth_ndcg, smooth_places


class ListwiseTargets(NamedTuple):
    """Ranking that is right afterwards, and the loss that is taken against it.

    Attributes
    ----------
    loss : {"softmax", "ndcg"}
        Cross-entropy of the first place (ListNet), or one less the NDCG@K of smooth ranks (ApproxNDCG).
    weight : float
    k : int
        Of NDCG@K.
    temperature : float
        Of smooth places, in units of the scores.
    relevance : Tensor, (groups, assets)
        Of ``softmax``: returns in deviations of the assets' returns. Of ``ndcg``: gains ``2^g - 1`` of their grades.
    candidates : bool Tensor, (groups, assets)
        Assets whose return is known; a state without two of them counts for nothing.
    """

    loss: Literal["softmax", "ndcg"]
    weight: float
    k: int
    temperature: float
    relevance: Tensor
    candidates: Tensor

    def rows(self, bars: Tensor) -> ListwiseTargets:
        """Targets at ``bars`` (groups,)."""
        return self._replace(relevance=self.relevance[bars], candidates=self.candidates[bars])

    def penalty(self, experts: Tensor) -> Tensor:
        """Weighted mean loss of experts' portfolios (groups, experts, K), ()."""
        count = experts.shape[1]
        scores = experts[..., :-1].float().clamp(min=SMALLEST_WEIGHT).log().flatten(0, 1)
        relevance = self.relevance.repeat_interleave(count, dim=0)
        candidates = self.candidates.repeat_interleave(count, dim=0)
        if self.loss == "softmax":
            return self.weight * listwise_loss(scores, relevance, candidates)
        return self.weight * (1.0 - self._smooth_ndcg(scores, relevance, candidates))

    def _smooth_ndcg(self, scores: Tensor, gains: Tensor, candidates: Tensor) -> Tensor:
        """Mean NDCG@K of smooth ranks, (), over the rows that have two candidates and a gain."""
        by_place = torch.as_tensor(discounts(gains.shape[-1], self.k), dtype=gains.dtype, device=gains.device)
        gains = gains * candidates
        ideal = gains.sort(dim=-1, descending=True).values @ by_place
        ndcg = smooth_ndcg(smooth_places(scores, candidates, self.temperature), gains, ideal, self.k)
        counted = (candidates.sum(dim=-1) > 1) & (ideal > 0.0)
        return torch.where(counted, ndcg, torch.zeros_like(ndcg)).sum() / counted.sum().clamp(min=1)
