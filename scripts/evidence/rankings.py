"""Evidence about rankings: agents that learn from NDCG@K where a ranking is planted, and experts that learn to rank.

The planted market has two hidden regimes that each favour the other end of four assets; the best ranking that prices
allow is by the assets' expected returns given the law's belief. Validation is read once a training, the test window
never.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from finflow.config import Config
from finflow.env.rewards.ranking_reward import RankingReward
from finflow.evaluation.statistics.metrics import summarise
from finflow.training.data.replay import MarketTensors
from finflow.training.data.return_rankings import horizon_returns
from finflow.training.data.training_data import TrainingData, prepare
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.known_state import expected_returns
from scripts.evidence.results import train_and_validate
from scripts.evidence.rollouts import REDUCED, SHORT_OFFLINE, SHORTER_OFFLINE
from scripts.evidence.tables import markdown_table, mean_interval
from scripts.evidence.variants import OFFLINE_ALONE, Variant

FloatArray = NDArray[np.float64]

PREFIX = "ranking-"
GOAL = 0.9
EXPERT_SEEDS = 5
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
LEARNERS: dict[str, dict[str, object]] = {
    "ranking": {"objectives.reward": "ranking"},
    "builtin": {},
}
EXPERTS: dict[str, object] = {**SHORTER_OFFLINE, **OFFLINE_ALONE, "bcell.hidden_dim": 32}
LOSSES = ("none", "softmax", "ndcg")
EXPERT_MARKETS: dict[str, dict[str, object]] = {"planted": PLANTED, "embedded": {"objectives.ranking.k": 5}}


def ranking_variants(seeds: int) -> list[Variant]:
    """Agents on the planted ranking, three samples of it; experts on it and on the embedded prices.

    Parameters
    ----------
    seeds : int
        Of the planted market's samples for the agents, 3 at most; the experts have `EXPERT_SEEDS`.
    """

    def keys_of(market: str, seed: int) -> dict[str, object]:
        return EXPERT_MARKETS[market] | ({"market.synthetic.seed": seed} if market == "planted" else {})

    agents = [
        Variant(f"{PREFIX}planted-{name}", (seed,), {**TRAINED, **keys_of("planted", seed), **keys}, measure=train)
        for name, keys in LEARNERS.items()
        for seed in range(min(seeds, 3))
    ]
    experts = [
        Variant(
            f"{PREFIX}experts-{market}-{loss}",
            (seed,),
            {**EXPERTS, **keys_of(market, seed), "bcell.expert_ranking": loss},
            measure=pretrain,
        )
        for market in EXPERT_MARKETS
        for loss in LOSSES
        for seed in range(EXPERT_SEEDS)
    ]
    return agents + experts


def train(config: Config) -> dict[str, Any]:
    """Train both phases: the ranking by the weights held in the last validation backtest, and what they earned."""
    data, began = prepare(config), time.process_time()
    run = train_and_validate(config, training_data=data).backtests[-1]
    held = rows_of(data, run.weights)
    earned = summarise(run, 0.05)
    names = ("sharpe", "annual_return", "annual_turnover", "annual_cost")
    return {
        "seconds": {"processor": round(time.process_time() - began, 1)},
        "ndcg": measure_rankings(data, {"agent": held, "law": law_of(data)}),
        **{name: float(earned[name]) for name in names},
    }


def pretrain(config: Config) -> dict[str, Any]:
    """Train the offline phase alone: rankings by the gate's mixture of the experts, and by each expert on average."""
    began = time.process_time()
    trainer = FinFlowTrainer(config)
    trainer.train_iql()
    data, policy = trainer.training_data, trainer.policy
    seconds = {"processor": round(time.process_time() - began, 1)}
    bars = data.process.decision_bars(data.split.validation)
    market = MarketTensors.of(data.process, torch.device("cpu"))
    with torch.no_grad():
        states = market.states(torch.arange(bars.start, bars.stop), torch.zeros(len(bars), data.process.portfolio_size))
        reading = policy.read_market(states)
    tables = {"mixture": reading.aim, **{f"expert {place}": one for place, one in enumerate(reading.experts.unbind(1))}}
    scores = {name: rows_of(data, weights.double().numpy()) for name, weights in tables.items()}
    found = measure_rankings(data, scores)
    own = [found.pop(name) for name in list(found) if name.startswith("expert")]
    return {"seconds": seconds, "ndcg": {**found, "experts": float(np.mean(own))}}


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
    """Markdown tables: the agents on the planted ranking, then the experts on both markets."""
    return _agent_table(results) + "\n" + _expert_table(results)


def _agent_table(results: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for name in LEARNERS:
        own = [one for one in results if one["variant"] == f"{PREFIX}planted-{name}"]
        if not own:
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


def _expert_table(results: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for market in EXPERT_MARKETS:
        found = {loss: _by_seed(results, f"{PREFIX}experts-{market}-{loss}") for loss in LOSSES}
        for loss, own in found.items():
            if not own:
                continue
            row = [market, loss, len(own), f"{np.mean([one['chance'] for one in own.values()]):.3f}"]
            for part in ("mixture", "experts"):
                less = [own[seed][part] - found["none"].get(seed, {}).get(part, math.nan) for seed in own]
                row += [mean_interval([one[part] for one in own.values()], 3)]
                row += ["" if loss == "none" else mean_interval(less, 3)]
            rows.append(row)
    heads = ("market", "loss", "seeds", "chance", "mixture", "less none", "an expert on average", "less none")
    return markdown_table(heads, rows)


def _by_seed(results: Sequence[Mapping[str, Any]], variant: str) -> dict[int, dict[str, float]]:
    """NDCG of each seed of a variant."""
    return {int(one["seed"]): dict(one["ndcg"]) for one in results if one["variant"] == variant}
