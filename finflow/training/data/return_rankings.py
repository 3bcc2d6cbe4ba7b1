"""Rankings of the assets by their returns after each decision of the training years, for the experts to learn from."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from finflow.agent.losses.listwise import ListwiseTargets
from finflow.config import Config
from finflow.env.decision_process import DecisionProcess
from finflow.env.rewards.ranking_measures import graded_gains
from finflow.env.rewards.ranking_reward import RankingReward
from finflow.training.data.training_data import TrainingData

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
SMALLEST_SPREAD = 1e-12  # of returns between assets: below it they count as equal


def ranking_horizon(config: Config) -> int:
    """Bars after a fill whose returns the experts learn to rank; none where they do not."""
    return 0 if config.bcell.expert_ranking == "none" else config.objectives.ranking.horizon


def return_rankings(config: Config, training_data: TrainingData, device: torch.device) -> ListwiseTargets | None:
    """Targets at every bar of the market that is learned in; None where experts do not learn to rank.

    Only bars of the training window have candidates, and only where all of the horizon lies within it.

    Raises
    ------
    ConfigError
        If there are fewer assets than K.
    """
    keys, process = config.objectives.ranking, training_data.learning
    if config.bcell.expert_ranking == "none":
        return None
    if config.bcell.expert_ranking == "ndcg":
        RankingReward(keys).check(process.n_weights - 1)
    returns, candidates = horizon_returns(process, training_data.train_segments, keys.horizon)
    if config.bcell.expert_ranking == "ndcg":
        relevance = graded_gains(returns, candidates, keys.grades)
    else:
        relevance = in_deviations(returns, candidates)
    return ListwiseTargets(
        config.bcell.expert_ranking,
        config.bcell.expert_ranking_weight,
        keys.k,
        keys.temperature,
        torch.from_numpy(relevance).float().to(device),
        torch.from_numpy(candidates).to(device),
    )


def horizon_returns(process: DecisionProcess, windows: tuple[range, ...], horizon: int) -> tuple[FloatArray, BoolArray]:
    """Returns of the assets over the bars after a decision's fill, and which of them can be known.

    Parameters
    ----------
    process : DecisionProcess
    windows : tuple of range
        Bars that may be learned from: a return that reaches beyond its window is not known.
    horizon : int
        Bars.

    Returns
    -------
    returns : array, (bars, assets)
        Zero where not known.
    candidates : bool array, (bars, assets)
    """
    returns = np.zeros(process.listed.shape)
    candidates = np.zeros(process.listed.shape, dtype=np.bool_)
    for window in windows:
        bars = np.arange(max(window.start, process.first_bar), min(window.stop, len(process.growth)) - horizon)
        if not len(bars):
            continue
        ahead = bars[:, None] + np.arange(horizon + 1)
        candidates[bars] = process.listed[ahead].all(axis=1)
        growth = process.growth[ahead[:, 1:], :-1].prod(axis=1)
        returns[bars] = np.where(candidates[bars], growth - 1.0, 0.0)
    return returns, candidates


def in_deviations(returns: FloatArray, candidates: BoolArray) -> FloatArray:
    """Returns (bars, assets) less their mean over the candidates, over their deviation; 0 for others."""
    count = np.maximum(candidates.sum(axis=1, keepdims=True), 1)
    centred = np.where(candidates, returns - returns.sum(axis=1, keepdims=True) / count, 0.0)
    spread = np.sqrt((centred**2).sum(axis=1, keepdims=True) / count)
    scaled: FloatArray = centred / np.maximum(spread, SMALLEST_SPREAD)
    return scaled
