"""Evidence about rankings: agents that learn from NDCG@K where a ranking is planted.

The planted market has two hidden regimes that each favour the other end of four assets; the best ranking that prices
allow is by the assets' expected returns given the law's belief. Validation is read once a training, the test window
never.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from finflow.arrays import BoolArray, FloatArray
from finflow.config import Config
from finflow.env.decision_process import DecisionProcess
from finflow.env.rewards.ranking_reward import RankingReward
from finflow.evaluation.statistics.metrics import summarise
from finflow.training.data.training_data import TrainingData, prepare
from scripts.evidence.known_state import expected_returns
from scripts.evidence.results import Variant, grouped, train_and_validate
from scripts.evidence.rollouts import REDUCED, SHORT_OFFLINE
from scripts.evidence.tables import markdown_table, mean_interval

PREFIX = "ranking-"
GOAL = 0.9
#: Four assets, of which the order changes with a hidden regime; chance has two thirds of the NDCG@2 of the law.
PLANTED: dict[str, object] = {
    "market.source": "synthetic",
    "market.synthetic.kind": "regime",
    "market.synthetic.assets": 4,
    "market.synthetic.bars": 6_000,
    "market.synthetic.drift": 0.008,
    "market.synthetic.edge": 0.012,
    "market.train_end": "2012-12-31",
    "market.validation_end": "2018-12-31",
    "objectives.ranking.k": 2,
}
#: Without blocks of years that are held out, the agent is what it learned, however little of it would be believed.
TRAINED: dict[str, object] = {**SHORT_OFFLINE, **REDUCED, "out_of_fold.blocks": 1, "bcell.hidden_dim": 32}
LEARNERS: dict[str, dict[str, object]] = {"ranking": {"objectives.reward": "ranking"}, "builtin": {}}


def ranking_variants(seeds: int) -> list[Variant]:
    """Agents on the planted ranking, three samples of it at most."""
    return [
        Variant(
            f"{PREFIX}planted-{name}",
            range(min(seeds, 3)),
            {**TRAINED, **PLANTED, **keys},
            measure=train,
            first_sample=0,
        )
        for name, keys in LEARNERS.items()
    ]


def train(config: Config) -> dict[str, Any]:
    """Train both phases: the ranking by the weights held in the last validation backtest, and what they earned."""
    data = prepare(config)
    run = train_and_validate(config, training_data=data).backtests[-1]
    held = rows_of(data, run.weights)
    earned = summarise(run, 0.05)
    names = ("sharpe", "annual_return", "annual_turnover", "annual_cost")
    return {
        "ndcg": measure_rankings(data, {"agent": held, "law": law_of(data)}),
        **{name: float(earned[name]) for name in names},
    }


def measure_rankings(data: TrainingData, scores: Mapping[str, FloatArray]) -> dict[str, float]:
    """Mean NDCG@K over the decisions of the validation window of each table of scores (bars, assets), and of chance."""
    window = data.split.validation
    returns, candidates = horizon_returns(data.process, (window,), data.config.objectives.ranking.horizon)
    rows = np.flatnonzero(candidates.any(axis=1))
    reward = RankingReward(data.config.objectives.ranking)
    tables = {**scores, "chance": np.zeros(returns.shape)}
    return {
        name: float(reward.score(one[rows], returns[rows], candidates[rows]).mean()) for name, one in tables.items()
    }


def horizon_returns(process: DecisionProcess, windows: tuple[range, ...], horizon: int) -> tuple[FloatArray, BoolArray]:
    """Returns of the assets over the bars after a decision's fill, and which of them can be known.

    Parameters
    ----------
    windows : tuple of range
        Bars that may be learned from: a return that reaches beyond its window is not known.

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


def rows_of(data: TrainingData, weights: FloatArray) -> FloatArray:
    """Weights (decisions, K) of the validation window at their bars, without cash, (bars, assets)."""
    bars = data.process.decision_bars(data.split.validation)
    table: FloatArray = np.zeros((data.process.listed.shape[0], weights.shape[1] - 1))
    table[bars.start : bars.stop] = weights[:, :-1]
    return table


def law_of(data: TrainingData) -> FloatArray:
    """Expected returns given the law's belief after the last bar that a decision may know, (bars, assets)."""
    expected, lag = expected_returns(data.panel), data.process.lag
    return np.concatenate([np.zeros((lag, expected.shape[1])), expected[: len(expected) - lag]])


def rankings_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of the agents on the planted ranking."""
    rows = []
    by_variant = grouped(results, "variant")
    for name in LEARNERS:
        if not (own := by_variant.get(f"{PREFIX}planted-{name}")):
            continue
        agent, law, chance = (np.array([one["ndcg"][part] for one in own]) for part in ("agent", "law", "chance"))
        rows.append(
            [
                {"ranking": "NDCG@2", "builtin": "built-in"}[name],
                len(own),
                mean_interval(agent, 3),
                mean_interval(law, 3),
                f"{chance.mean():.3f}",
                mean_interval(agent / law),
                mean_interval((agent - chance) / (law - chance)),
                mean_interval([100.0 * one["annual_return"] for one in own], 1),
                mean_interval([one["sharpe"] for one in own]),
                mean_interval([one["annual_turnover"] for one in own], 1),
            ]
        )
    heads = ("reward", "samples", "NDCG@2", "law", "chance", "of the law", "above chance")
    return markdown_table((*heads, "return a year, %", "Sharpe", "turnover a year"), rows)
