"""Offline learning on made-up markets: it finds what was planted, and holds where nothing was."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.agent.networks.policy import EXPERTS, ExpertPolicy
from finflow.config import load_config
from finflow.evaluation.analysis.optimality import Optimality, score_runs
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.market.panel import BARS_PER_YEAR
from finflow.market.synthetic.synthetic_market import process_of
from finflow.offline.dataset import OfflineDataset
from finflow.strategies.classical import named_strategy
from finflow.strategies.optimal.optimal_policy import optimum_of
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.planted_signals import LEARNING, OWN

LOG_RETURN_ALONE = {"objectives.sharpe_beta": 0.0, "objectives.lambda_turn": 0.0, "objectives.lambda_cvar": 0.0}
SMALL = {
    "market.source": "synthetic",
    "market.train_end": "2010-12-31",
    "bcell.hidden_dim": 64,
    "bcell.n_quantiles": 1,
    "bcell.actor_lr": 1e-3,
    "bcell.critic_lr": 1e-3,
    "bcell.iql_temperature": 30.0,  # a decision in a single asset is worth a small part of the reward's deviation
    "bcell.expert_cloning": 0.0,  # what is planted is sought, whatever the experts are called
    "offline.evaluation_updates": 0,
    "train.validation_updates": 100_000,
    "train.checkpoint_updates": 100_000,
}


CLIMB = {"bcell.iql_extraction": "gradient", "bcell.iql_temperature": 3.0, "train.offline_training_epochs": 4}


class Learned(NamedTuple):
    """What IQL made of a market: its run over the validation window, the optimal policy's, the scores, and what an
    observer who knows the law believes at each decision."""

    own: Backtest
    optimal: Backtest
    scores: dict[str, Optimality]
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


def test_the_best_asset_is_found(tmp_path: Path) -> None:
    learned = learn(
        tmp_path,
        market__synthetic__kind="constant-drift",
        market__validation_end="2014-12-31",
        train__offline_episodes=300,
        train__offline_training_epochs=14,
    )
    families = [learned.data.reward[learned.data.family == family].mean() for family in range(6)]
    assert learned.own.rewards.mean() > max(families)
    assert learned.scores["finflow"].score > 0.15  # seen: 0.38 over four years, with a standard error of 0.17


def test_where_assets_do_not_differ_it_learns_to_hold(tmp_path: Path) -> None:
    learned = learn(
        tmp_path,
        market__synthetic__kind="exchangeable",
        market__synthetic__bars=12_000,
        market__validation_end="2014-12-31",
        train__offline_episodes=200,
        train__offline_training_epochs=8,
    )
    held, aimed = learned.data.portfolio[:, :3], learned.data.action
    behaviour = 0.5 * abs(aimed - held).sum(axis=1).mean() * BARS_PER_YEAR
    own = learned.own.turnover.mean() * BARS_PER_YEAR
    assert own < 0.05 * behaviour
    assert own < 2.0 * learned.optimal.turnover.mean() * BARS_PER_YEAR  # most of either is the first purchase


def climbs(folder: Path, kind: str, least: float, **changes: Any) -> Learned:
    """Most of what the optimal policy earns over equal weight and holding; and more than anybody it learned from."""
    learned = learn(folder, **{**LEARNING, **OWN[kind], **CLIMB, "market.synthetic.kind": kind, **changes})
    families = [learned.data.reward[learned.data.family == family].mean() for family in range(6)]
    assert learned.own.rewards.mean() > max(families)
    assert learned.scores["finflow"].score > least
    return learned


def test_a_climb_finds_a_spread_that_it_costs_to_trade_on(tmp_path: Path) -> None:
    climbs(tmp_path, "mean-reverting", least=0.5)  # seen: 0.73, with a standard error of 0.07


def test_in_the_bad_regime_the_gate_turns_to_the_experts_that_defend(tmp_path: Path) -> None:
    """Experts that stay what they are called leave it to the gate to say which of them is right now."""
    learned = climbs(tmp_path, "regime", least=0.7, bcell__expert_cloning=1.0)  # seen: 0.85, standard error 0.03
    assert learned.own.explanation is not None
    gate = learned.own.explanation["gate"]
    bad, good = gate[learned.beliefs > 0.8].mean(axis=0), gate[learned.beliefs < 0.2].mean(axis=0)
    defending = [EXPERTS.index("defensive"), EXPERTS.index("volatility")]
    assert bad[defending].sum() > good[defending].sum() + 0.3  # seen: 0.96 and 0.03
