"""Reward of a ranking: how well the weights order the assets by what they return over the next bars.

The measures are NDCG@K, Hit@K and MRR@K, batched, exact with ties averaged, and smooth for gradients. Where scores are
equal, places are shared out: a measure is its mean over all orders of the equals. Candidates that do not count (not
listed, or left out) have no place and no relevance. A row with fewer than two candidates, or without any relevance,
measures 0. Relevant are in NDCG all assets, by gains, in the others the best one.

A smooth place is ``1 + sum_j sigmoid((s_j - s_i) / T)`` over the other candidates. As T goes to 0 it becomes the rank,
with equals in the middle of the places that they share. Measures of smooth places are those of Qin, Liu and Li
(ApproxNDCG), with the cut at K smooth too: ``sigmoid(4 (k + 1/2 - place))``.

References
----------
Jarvelin and Kekalainen (2002), Cumulated Gain-Based Evaluation of IR Techniques.
McSherry and Najork (2008), Computing Information Retrieval Performance Measures Efficiently in the Presence of Tied
Scores.
Qin, Liu and Li (2010), A General Approximation Framework for Direct Optimization of Information Retrieval Measures.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from finflow.arrays import BoolArray, FloatArray, IntArray
from finflow.config import RankingConfig
from finflow.errors import ConfigError

TEMPERATURE = 0.1  # softness of the ranks for gradients, in multiples of an equal weight


def relevance_of(name: str, returns: FloatArray, candidates: BoolArray, grades: int) -> FloatArray:
    """Relevance of realised returns among the candidates, (batch, n); 0 for others.

    For NDCG gains ``2^g - 1`` of quantile grades g: the grade is ``floor(grades * (r - 1) / n)`` of the mean rank r
    among n candidates, so that equal returns have equal grades: 0 for the worst quantile, ``grades - 1`` for the best.
    For the others 1 for the best return's candidate, 1 / m where m share it.
    """
    if name == "ndcg":
        ranks = scipy.stats.rankdata(np.where(candidates, returns, np.inf), axis=-1)
        counts = np.maximum(candidates.sum(axis=-1, keepdims=True), 1)
        return np.where(candidates, 2.0 ** np.floor(grades * (ranks - 1.0) / counts) - 1.0, 0.0)
    known = np.where(candidates, returns, -np.inf)
    best = candidates & (known == known.max(axis=-1, keepdims=True))
    shares: FloatArray = best / np.maximum(best.sum(axis=-1, keepdims=True), 1)
    return shares


def worth_of_places(name: str, count: int, k: int) -> FloatArray:
    """Worth of each of ``count`` places, 0 beyond the first k."""
    ranks = np.arange(1, count + 1)
    worth = {"ndcg": 1.0 / np.log2(1 + ranks), "hit": np.ones(count), "mrr": 1.0 / ranks}[name]
    return np.where(ranks <= k, worth, 0.0)


def _ideal(gains: FloatArray, k: int) -> FloatArray:
    """Discounted gain of the best ranking of gains (batch, n), (batch,)."""
    return -np.sort(-gains, axis=-1) @ worth_of_places("ndcg", gains.shape[-1], k)


def shared_places(scores: FloatArray, candidates: BoolArray) -> tuple[IntArray, IntArray]:
    """First place, from 0, that each candidate shares with its equals, and the one after the last; (batch, n) each."""
    ordered = np.where(candidates, -scores, np.inf)
    first = scipy.stats.rankdata(ordered, method="min", axis=-1).astype(np.int64) - 1
    after = scipy.stats.rankdata(ordered, method="max", axis=-1).astype(np.int64)
    return first, np.where(candidates, after, first + 1)


def mean_worth(first: IntArray, after: IntArray, by_place: FloatArray) -> FloatArray:
    """Mean of the worth of each place, (n,), over the places that each candidate shares, (batch, n)."""
    summed = np.concatenate([[0.0], np.cumsum(by_place)])
    shared: FloatArray = (summed[after] - summed[first]) / (after - first)
    return shared


def ranking_measure(name: str, scores: FloatArray, candidates: BoolArray, relevance: FloatArray, k: int) -> FloatArray:
    """NDCG@K, Hit@K or MRR@K of finite scores (batch, n), the best first, (batch,)."""
    worth = mean_worth(*shared_places(scores, candidates), worth_of_places(name, scores.shape[-1], k))
    value: FloatArray = (relevance * np.where(candidates, worth, 0.0)).sum(axis=-1)
    if name != "ndcg":
        return value
    ideal = _ideal(relevance, k)
    return np.where(ideal > 0.0, value / np.where(ideal > 0.0, ideal, 1.0), 0.0)


def _smooth_measure(name: str, places: Any, relevance: FloatArray, k: int) -> Any:
    """Measure of smooth places (batch, n), a tensor (batch,), whose gradient stands for that of the exact one."""
    import torch

    value = _like(places, relevance) * torch.sigmoid(4.0 * (k + 0.5 - places))
    if name != "ndcg":
        return (value if name == "hit" else value / places).sum(dim=-1)
    value = (value / torch.log2(1.0 + places)).sum(dim=-1)
    ideal = _like(places, _ideal(relevance, k))
    return torch.where(ideal > 0.0, value / ideal.clamp(min=1e-12), torch.zeros_like(value))


def _smooth_places(scores: Any, candidates: BoolArray) -> Any:
    """Smooth places of scores (batch, n) among the candidates, (batch, n), the best near 1."""
    import torch

    ahead = torch.sigmoid((scores.unsqueeze(-2) - scores.unsqueeze(-1)) / (TEMPERATURE / scores.shape[-1]))
    known = torch.as_tensor(candidates, device=scores.device)
    others = known.unsqueeze(-2) & ~torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
    return 1.0 + (ahead * others).sum(dim=-1)


def _like(tensor: Any, values: FloatArray) -> Any:
    import torch

    return torch.as_tensor(values, dtype=tensor.dtype, device=tensor.device)


OF_TEXT_MODELS = {
    "model_name": "the policy is the B-Cell; bcell.hidden_dim is its width",
    "max_length": "an episode has env.episode_length decisions",
    "max_new_tokens": "a decision is one portfolio, and a sample has --segment of them",
    "dataset_name": "prices are those of market.source, market.path and market.tickers",
    "retrieval_service_name": "features are computed from prices, and features.extra adds your own",
    "generated_texts": "call it with a RewardContext, or score(scores, returns) with arrays (batch, assets)",
}
"""Arguments of rankings by text models, and what stands in their place here."""


def refuse_text_arguments(given: Iterable[str]) -> None:
    """Raise a ConfigError for the first argument of a text model."""
    for name in given:
        if name in OF_TEXT_MODELS:
            raise ConfigError(f"{name} belongs to text models, and assets are ranked here: {OF_TEXT_MODELS[name]}")


class RankingReward:
    """NDCG@K, Hit@K, MRR@K, or a weighted mix, of the weights as a ranking of the assets.

    Returns are realised over ``horizon`` bars. Where the weights are tensors with gradients, the value stays exact and
    its gradient is that of the measure of smooth places, whose temperature is ``TEMPERATURE`` over the number of
    assets.
    """

    differentiable = True

    def __init__(self, config: RankingConfig) -> None:
        self.config = config
        self.horizon = config.horizon

    def __call__(self, context: Any = None, **others: Any) -> Any:
        """Reward of each decision, (batch,); a ConfigError for arguments of text models."""
        refuse_text_arguments(others)
        if others or not hasattr(context, "horizon_growth"):
            raise ConfigError("a ranking reward is called with a RewardContext; score() takes arrays (batch, assets)")
        return self.score(context.action[..., :-1], context.horizon_growth[..., :-1] - 1.0, context.followed)

    def score(self, scores: Any, returns: Any, candidates: Any | None = None) -> Any:
        """Measure scores (batch, assets) as a ranking by realised returns (batch, assets), (batch,).

        Returns are not finite where an asset cannot be followed, which is then no candidate; all others are when
        ``candidates`` are left out.
        """
        ranked, realised = _as_array(scores), _as_array(returns)
        if ranked.ndim != 2 or ranked.shape != realised.shape:
            raise ValueError(f"scores have the shape {ranked.shape} and returns {realised.shape}: (batch, assets) both")
        known = np.isfinite(realised)
        if candidates is not None:
            known = known & _as_array(candidates).astype(np.bool_)
        known &= known.sum(axis=-1, keepdims=True) > 1
        config, weights = self.config, {self.config.type: 1.0}
        if config.type == "mixed":
            weights = {"ndcg": config.ndcg_weight, "hit": config.hit_weight}
        parts = [(weight, name, relevance_of(name, realised, known, config.grades)) for name, weight in weights.items()]
        exact = sum(
            weight * ranking_measure(name, ranked, known, relevant, config.k) for weight, name, relevant in parts
        )
        if isinstance(scores, np.ndarray):
            return exact
        import torch

        value = torch.as_tensor(exact, dtype=scores.dtype, device=scores.device)
        if not (torch.is_grad_enabled() and scores.requires_grad):
            return value
        places = _smooth_places(scores, known)
        smooth = sum(weight * _smooth_measure(name, places, relevant, config.k) for weight, name, relevant in parts)
        return smooth + (value - smooth).detach()


def create_reward_function(
    reward_type: Literal["ndcg", "hit", "mrr", "mixed"] = "ndcg",
    k: int = 10,
    horizon: int = 5,
    ndcg_weight: float = 0.7,
    hit_weight: float = 0.3,
    **options: Any,
) -> RankingReward:
    """Create a reward of how well a portfolio ranks the assets.

    Parameters
    ----------
    reward_type : str
        ``ndcg``, ``hit``, ``mrr``, or ``mixed``: NDCG@K and Hit@K weighted.
    k : int
        Assets at the top of the ranking that count.
    horizon : int
        Bars after the fill over which assets are ranked by their return.
    ndcg_weight, hit_weight : float
        Of ``mixed``.
    **options
        ``grades`` of `RankingConfig`.

    Returns
    -------
    RankingReward
        Its ``score(scores, returns)`` measures arrays or tensors (batch, assets); called with a `RewardContext`, it is
        the reward of a decision process.

    Raises
    ------
    ConfigError
        If an option is unknown or out of its range.

    Examples
    --------
    >>> import numpy as np
    >>> reward = create_reward_function("hit", k=1)
    >>> reward.score(np.array([[0.5, 0.3, 0.2]]), np.array([[0.04, 0.01, -0.02]]))
    array([1.])
    """
    from pydantic import ValidationError

    refuse_text_arguments(options)
    given = {"type": reward_type, "k": k, "horizon": horizon, "ndcg_weight": ndcg_weight, "hit_weight": hit_weight}
    try:
        return RankingReward(RankingConfig(**{**given, **options}))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in problem["loc"])
        name = "reward_type" if name == "type" else name
        raise ConfigError(f"create_reward_function: {name}: {problem['msg']}") from error


def _as_array(values: Any) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        return values
    found: NDArray[Any] = values.detach().cpu().numpy()
    return found
