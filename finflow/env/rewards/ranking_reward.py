"""Reward of a ranking: how well the weights order the assets by what they return over the next bars."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from finflow.config import RankingConfig
from finflow.env.reward_context import RewardContext
from finflow.env.rewards import ranking_measures as measures
from finflow.errors import ConfigError

FloatArray = NDArray[np.float64]
TEMPERATURE = 0.1  # softness of the ranks for gradients, in multiples of an equal weight


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

    def check(self, n_assets: int) -> None:
        """Raise `ConfigError` where the market has fewer than K assets."""
        if self.config.k > n_assets:
            raise ConfigError(
                f"objectives.ranking.k = {self.config.k}: the market has {n_assets} assets; use {n_assets} at most"
            )

    def __call__(self, context: RewardContext) -> Any:
        """Reward of each decision, (batch,)."""
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
        exact = self._measured(ranked, realised, known)
        if isinstance(scores, np.ndarray):
            return exact
        import torch

        value = torch.as_tensor(exact, dtype=scores.dtype, device=scores.device)
        if not (torch.is_grad_enabled() and scores.requires_grad):
            return value
        smooth = self._smooth(scores, realised, known)
        return smooth + (value - smooth).detach()

    def _measured(self, scores: FloatArray, returns: FloatArray, candidates: NDArray[np.bool_]) -> FloatArray:
        """Exact measure."""
        places, k = measures.TiedRanks.of(scores, candidates), self.config.k
        gains, best = self._relevance(returns, candidates)
        total: FloatArray = np.zeros(len(scores))
        for weight, name in self._parts():
            if name == "ndcg":
                value = measures.ndcg(places, gains, k)
            else:
                value = (measures.hit if name == "hit" else measures.mrr)(places, best, k)
            total += weight * value
        return total

    def _smooth(self, scores: Any, returns: FloatArray, candidates: NDArray[np.bool_]) -> Any:
        """Measure of smooth places, whose gradient stands for that of the exact one."""
        import torch

        k = self.config.k
        gains, best = self._relevance(returns, candidates)

        def tensor(values: NDArray[Any]) -> Any:
            return torch.as_tensor(values, dtype=scores.dtype, device=scores.device)

        known = torch.as_tensor(candidates, device=scores.device)
        places = measures.smooth_places(scores, known, TEMPERATURE / scores.shape[-1])
        total = torch.zeros_like(scores[..., 0])
        for weight, name in self._parts():
            if name == "ndcg":
                value = measures.smooth_ndcg(places, tensor(gains), tensor(measures.ideal_dcg(gains, k)), k)
            else:
                value = (measures.smooth_hit if name == "hit" else measures.smooth_mrr)(places, tensor(best), k)
            total = total + weight * value
        return total

    def _relevance(self, returns: FloatArray, candidates: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
        gains = measures.graded_gains(returns, candidates, self.config.grades)
        return gains, measures.best_candidates(returns, candidates)

    def _parts(self) -> tuple[tuple[float, str], ...]:
        if self.config.type == "mixed":
            return ((self.config.ndcg_weight, "ndcg"), (self.config.hit_weight, "hit"))
        return ((1.0, self.config.type),)


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
