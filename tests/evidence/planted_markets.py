"""Offline learning on made-up markets whose optimum is known, small enough for a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import load_config
from finflow.evaluation.analysis.decision_quality import OptimalityScore, score_runs
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.market.sources.synthetic_market import process_of
from finflow.offline.dataset import OfflineDataset
from finflow.strategies.classical import named_strategy
from finflow.strategies.optimal_policy import optimum_of
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.trainer import FinFlowTrainer

LOG_RETURN_ALONE = {"objectives.sharpe_beta": 0.0, "objectives.lambda_turn": 0.0, "objectives.lambda_cvar": 0.0}
SMALL = {
    "market.source": "synthetic",
    "market.train_end": "2010-12-31",
    "bcell.hidden_dim": 64,
    "bcell.n_quantiles": 1,
    "bcell.actor_lr": 1e-3,
    "bcell.critic_lr": 1e-3,
    "bcell.expert_cloning": 0.0,  # what is planted is sought, whatever the experts are called
    "offline.evaluation_updates": 0,
    "train.validation_updates": 100_000,
    "train.checkpoint_updates": 100_000,
}


class Learned(NamedTuple):
    """What IQL made of a market: its run over the validation window, the optimal policy's, the scores, and what an
    observer who knows the price process believes at each decision."""

    own: Backtest
    optimal: Backtest
    scores: dict[str, OptimalityScore]
    data: OfflineDataset
    beliefs: NDArray[np.float64]


def learn(folder: Path, **changes: Any) -> Learned:
    """Run the offline phase on a market, and play its policy over the validation window."""
    settings = {name.replace("__", "."): value for name, value in changes.items()}
    folders = {"output.logs_dir": str(folder / "logs"), "output.offline_dir": str(folder / "offline")}
    config = load_config(None, {**SMALL, **LOG_RETURN_ALONE, **folders, **settings}, environ={})
    trainer = FinFlowTrainer(config)
    data = trainer.collect_offline_data()
    trainer.train_iql()
    learner = trainer._begin().state.learner
    assert learner is not None
    assert isinstance(learner.policy, ExpertPolicy)
    best = optimum_of(config.market, config.env)
    process, window = trainer.training_data.process, trainer.training_data.split.validation
    assert best is not None
    classical = [named_strategy(name, config.evaluation) for name in ("equal-weight", "buy-and-hold")]
    runs = run_backtests(process, window, [AgentStrategy(learner.policy, trainer.device), best.policy, *classical])
    beliefs = process_of(config.market.synthetic).filtered(np.log(process.panel.close))
    known = [bar - process.lag for bar in process.decision_bars(window)]
    scores = dict(score_runs(process, window, runs, best).scores)
    return Learned(runs[0], runs[1], scores, data, beliefs[known])
