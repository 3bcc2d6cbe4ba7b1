"""Measures of a ranking, batched: NDCG@K, Hit@K and MRR@K with ties averaged, and what chance would have.

Where scores are equal, places are shared out: a measure is its mean over all orders of the equals. Candidates that do
not count (not listed, or left out) have no place and no relevance. A row with fewer than two candidates, or without
any relevance, measures 0, and so does its chance.

References
----------
Jarvelin and Kekalainen (2002), Cumulated Gain-Based Evaluation of IR Techniques.
McSherry and Najork (2008), Computing Information Retrieval Performance Measures Efficiently in the Presence of Tied
Scores.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

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

    @property
    def counts(self) -> NDArray[np.int64]:
        counts: NDArray[np.int64] = self.candidates.sum(axis=-1)
        return counts


class Measure(NamedTuple):
    """A measure of each row, (batch,), and its expectation under a random ranking, (batch,)."""

    value: FloatArray
    chance: FloatArray


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


def reciprocal_ranks(count: int, k: int) -> FloatArray:
    """``1 / rank`` of the first k of ``count`` places; 0 beyond."""
    ranks = np.arange(1, count + 1)
    return np.where(ranks <= k, 1.0 / ranks, 0.0)


def ideal_dcg(gains: FloatArray, k: int) -> FloatArray:
    """Discounted gain of the best ranking of gains (batch, n), (batch,)."""
    ordered = -np.sort(-gains, axis=-1)
    found: FloatArray = ordered @ discounts(gains.shape[-1], k)
    return found


def ndcg(places: TiedRanks, gains: FloatArray, k: int) -> Measure:
    """NDCG@K of gains (batch, n)."""
    by_place = discounts(gains.shape[-1], k)
    ideal = ideal_dcg(gains, k)
    random = np.cumsum(by_place)[np.maximum(places.counts, 1) - 1] / np.maximum(places.counts, 1)
    value = (gains * places.mean_of(by_place)).sum(axis=-1)
    return Measure(_ratio(value, ideal), _ratio(gains.sum(axis=-1) * random, ideal))


def hit(places: TiedRanks, best: FloatArray, k: int) -> Measure:
    """Hit@K: the share of the best candidates ``best`` (batch, n) among the first k places."""
    return _of_best(places, best, (np.arange(best.shape[-1]) < k).astype(np.float64))


def mrr(places: TiedRanks, best: FloatArray, k: int) -> Measure:
    """MRR@K: one over the place of the best candidate, 0 beyond the K-th."""
    return _of_best(places, best, reciprocal_ranks(best.shape[-1], k))


def _of_best(places: TiedRanks, best: FloatArray, by_place: FloatArray) -> Measure:
    """Mean of a quantity of the best candidates' places."""
    counts = np.maximum(places.counts, 1)
    chance = np.cumsum(by_place)[counts - 1] / counts
    return Measure((best * places.mean_of(by_place)).sum(axis=-1), np.where(best.sum(axis=-1) > 0.0, chance, 0.0))


def _ratio(value: FloatArray, ideal: FloatArray) -> FloatArray:
    """A ratio; 0 where there is nothing to gain."""
    return np.where(ideal > 0.0, value / np.where(ideal > 0.0, ideal, 1.0), 0.0)
