"""Differentiable places and measures of a ranking, on tensors.

A place is smooth: ``1 + sum_j sigmoid((s_j - s_i) / T)`` over the other candidates. As T goes to 0 it becomes the rank,
with equals in the middle of the places that they share. Measures of smooth places are those of Qin, Liu and Li
(ApproxNDCG), with the cut at K smooth too.

References
----------
Qin, Liu and Li (2010), A General Approximation Framework for Direct Optimization of Information Retrieval Measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


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
