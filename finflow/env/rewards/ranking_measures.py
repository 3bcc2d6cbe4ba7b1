"""Measures of a ranking, batched: NDCG@K, Hit@K and MRR@K, exact with ties averaged, and smooth for gradients.

Where scores are equal, places are shared out: a measure is its mean over all orders of the equals. Candidates that do
not count (not listed, or left out) have no place and no relevance. A row with fewer than two candidates, or without
any relevance, measures 0.

A smooth place is ``1 + sum_j sigmoid((s_j - s_i) / T)`` over the other candidates. As T goes to 0 it becomes the rank,
with equals in the middle of the places that they share. Measures of smooth places are those of Qin, Liu and Li
(ApproxNDCG), with the cut at K smooth too.

References
----------
Jarvelin and Kekalainen (2002), Cumulated Gain-Based Evaluation of IR Techniques.
McSherry and Najork (2008), Computing Information Retrieval Performance Measures Efficiently in the Presence of Tied
Scores.
Qin, Liu and Li (2010), A General Approximation Framework for Direct Optimization of Information Retrieval Measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class TiedRanks(NamedTuple):
    """Places of candidates by score, ties included."""

    above: NDArray[np.int64]  # (batch, n): candidates with a higher score
    tied: NDArray[np.int64]  # (batch, n): candidates with the same score, itself included; 1 where it is no candidate
    candidates: BoolArray  # (batch, n)

    @classmethod
    def of(cls, scores: FloatArray, candidates: BoolArray) -> TiedRanks:
        """Places of finite scores (batch, n), the best first."""
        ordered = np.where(candidates, -scores, np.inf)
        first = scipy.stats.rankdata(ordered, method="min", axis=-1).astype(np.int64)
        last = scipy.stats.rankdata(ordered, method="max", axis=-1).astype(np.int64)
        return cls(first - 1, np.where(candidates, last - first + 1, 1), candidates)

    def mean_of(self, by_place: FloatArray) -> FloatArray:
        """Mean of a quantity of the place, (n,), over the places that each candidate shares; (batch, n), else 0."""
        summed = np.concatenate([[0.0], np.cumsum(by_place)])
        shared: FloatArray = (summed[self.above + self.tied] - summed[self.above]) / self.tied
        return np.where(self.candidates, shared, 0.0)


def graded_gains(returns: FloatArray, candidates: BoolArray, grades: int) -> FloatArray:
    """Gains ``2^g - 1`` of quantile grades g of realised returns among the candidates, (batch, n); 0 for others.

    The grade is ``floor(grades * (r - 1) / n)`` of the mean rank r among n candidates, so that equal returns have
    equal grades: 0 for the worst quantile, ``grades - 1`` for the best.
    """
    ranks = scipy.stats.rankdata(np.where(candidates, returns, np.inf), axis=-1)
    counts = np.maximum(candidates.sum(axis=-1, keepdims=True), 1)
    grade = np.floor(grades * (ranks - 1.0) / counts)
    gains: FloatArray = np.where(candidates, 2.0**grade - 1.0, 0.0)
    return gains


def best_candidates(returns: FloatArray, candidates: BoolArray) -> FloatArray:
    """Shares of the best return's candidates, (batch, n): 1 for the best one, 1 / m where m share it."""
    known = np.where(candidates, returns, -np.inf)
    best = candidates & (known == known.max(axis=-1, keepdims=True))
    shares: FloatArray = best / np.maximum(best.sum(axis=-1, keepdims=True), 1)
    return shares


def discounts(count: int, k: int) -> FloatArray:
    """``1 / log2(1 + rank)`` of the first k of ``count`` places; 0 beyond."""
    found: FloatArray = 1.0 / np.log2(np.arange(2, count + 2))
    found[k:] = 0.0
    return found


def ideal_dcg(gains: FloatArray, k: int) -> FloatArray:
    """Discounted gain of the best ranking of gains (batch, n), (batch,)."""
    ordered = -np.sort(-gains, axis=-1)
    found: FloatArray = ordered @ discounts(gains.shape[-1], k)
    return found


def ndcg(places: TiedRanks, gains: FloatArray, k: int) -> FloatArray:
    """NDCG@K of gains (batch, n), (batch,)."""
    ideal = ideal_dcg(gains, k)
    value = (gains * places.mean_of(discounts(gains.shape[-1], k))).sum(axis=-1)
    return np.where(ideal > 0.0, value / np.where(ideal > 0.0, ideal, 1.0), 0.0)


def hit(places: TiedRanks, best: FloatArray, k: int) -> FloatArray:
    """Hit@K, (batch,): the share of the best candidates ``best`` (batch, n) among the first k places."""
    first: FloatArray = (np.arange(best.shape[-1]) < k).astype(np.float64)
    found: FloatArray = (best * places.mean_of(first)).sum(axis=-1)
    return found


def mrr(places: TiedRanks, best: FloatArray, k: int) -> FloatArray:
    """MRR@K, (batch,): one over the place of the best candidate, 0 beyond the K-th."""
    ranks = np.arange(1, best.shape[-1] + 1)
    found: FloatArray = (best * places.mean_of(np.where(ranks <= k, 1.0 / ranks, 0.0))).sum(axis=-1)
    return found


def smooth_places(scores: Tensor, candidates: Tensor, temperature: float) -> Tensor:
    """Smooth places of scores (batch, n) among the candidates, (batch, n), the best near 1.

    The temperature T is in units of the scores.
    """
    import torch

    ahead = torch.sigmoid((scores.unsqueeze(-2) - scores.unsqueeze(-1)) / temperature)
    others = candidates.unsqueeze(-2) & ~torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
    return 1.0 + (ahead * others).sum(dim=-1)


def smooth_cut(places: Tensor, k: int) -> Tensor:
    """Share of a smooth place that lies among the first k: ``sigmoid(4 (k + 1/2 - place))``."""
    import torch

    return torch.sigmoid(4.0 * (k + 0.5 - places))


def smooth_ndcg(places: Tensor, gains: Tensor, ideal: Tensor, k: int) -> Tensor:
    """ApproxNDCG@K, (batch,), of smooth places and gains (batch, n), given the ideal DCG (batch,)."""
    import torch

    value = (gains * smooth_cut(places, k) / torch.log2(1.0 + places)).sum(dim=-1)
    return torch.where(ideal > 0.0, value / ideal.clamp(min=1e-12), torch.zeros_like(value))


def smooth_hit(places: Tensor, best: Tensor, k: int) -> Tensor:
    """Hit@K of smooth places, (batch,), of shares of the best candidates (batch, n)."""
    return (best * smooth_cut(places, k)).sum(dim=-1)


def smooth_mrr(places: Tensor, best: Tensor, k: int) -> Tensor:
    """MRR@K of smooth places, (batch,)."""
    return (best * smooth_cut(places, k) / places).sum(dim=-1)
