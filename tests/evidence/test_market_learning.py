"""Learning on markets whose optimum is known: what is there is found and used, offline too; a closed policy opens."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from finflow.agent.networks.policy import EXPERTS, ExpertPolicy
from finflow.evaluation.analysis.decision_quality import OptimalityScore, score_runs
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.market.bar_frequency import BARS_PER_YEAR
from finflow.market.sources.synthetic_market import process_of
from finflow.offline.dataset import OfflineDataset
from finflow.strategies.classical import named_strategy
from finflow.strategies.optimal_policy import optimum_of
from finflow.training.data.training_data import prepare
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.phases.training_run import Validation
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.optimality import judge_of
from scripts.evidence.rollouts import GROWTH, OWN
from tests.short_trainings import config_in

pytestmark = pytest.mark.learning

LOG_RETURN_ALONE = {"objectives.sharpe_beta": 0.0, "objectives.lambda_turn": 0.0, "objectives.lambda_cvar": 0.0}

#: A twentieth of the default's decisions, networks of an eighth of its width, no offline phase to speak of.
SMALL: dict[str, object] = {
    "bcell.hidden_dim": 32,
    "bcell.n_quantiles": 8,
    "bcell.expansion": 8,
    "bcell.actor_lr": 1e-2,
    "out_of_fold.blocks": 2,
    "out_of_fold.looks": 1,
    "train.n_envs": 16,
    "train.online_episodes": 34,
    "train.warmup_episodes": 4,
    "train.online_batch_size": 128,
    "train.offline_episodes": 6,
    "train.offline_training_epochs": 1,
    "train.validation_updates": 100_000,
    "offline.evaluation_updates": 0,
    "market.source": "synthetic",
    "market.synthetic.bars": 2500,
    "market.train_end": "2018-12-31",
    "market.validation_end": "2020-12-31",
    **LOG_RETURN_ALONE,
}


def learned(folder: Path, **changes: object) -> tuple[list[Validation], FinFlowTrainer, dict[str, float]]:
    """Validations of the online phase, the trainer, and what held-out years said."""
    found: list[Validation] = []
    trainer = FinFlowTrainer(config_in(folder, SMALL, **changes), on_validation=found.append)
    trainer.train_iql()
    trainer.finetune()
    state = trainer._begin().state.out_of_fold
    assert state is not None
    assert state.evidence is not None
    return [one for one in found if one.phase == "online"], trainer, state.evidence


def test_the_best_asset_is_found_and_held(tmp_path: Path) -> None:
    """Constant drift: 1 is holding the best asset throughout, 0 is equal weight; the pretrained policy is far below."""
    (start, end), trainer, evidence = learned(tmp_path, market__synthetic__kind="constant-drift")
    judge = judge_of(prepare(trainer.config))
    assert judge(start.backtest) < 0.3
    assert judge(end.backtest) > 0.8
    assert evidence["out_of_fold_t"] > 5.0
    assert evidence["confidence"] > 0.8


def test_where_assets_are_exchangeable_nothing_is_used(tmp_path: Path) -> None:
    """By luck at most one sample in forty uses a quarter or more of what it learned; this one is no such sample."""
    _, _, evidence = learned(tmp_path, market__synthetic__kind="exchangeable", train__online_episodes=24)
    assert evidence["confidence"] <= 0.25


def test_a_policy_that_hardly_trades_begins_to(tmp_path: Path) -> None:
    """From a trade rate of 1e-6, in a market where the best asset is worth holding: nothing is NaN on the way.

    Its logit, 12 below that of an eighth, has the slope of a fiftieth at least, and rises.
    """
    keys = {"market__synthetic__kind": "constant-drift", "out_of_fold__blocks": 1, "bcell__actor_lr": 3e-2}
    trainer = FinFlowTrainer(config_in(tmp_path, SMALL, **keys))
    trainer.train_iql()
    run = trainer._begin()
    trainer._hand_over(run)
    policy = trainer.agent.policy
    with torch.no_grad():
        policy.trade.bias[0] = math.log(1e-6)
    trainer.finetune()
    assert run.probe is not None
    assert all(bool(tensor.isfinite().all()) for tensor in policy.state_dict().values())
    lines = (trainer.run_folder / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["phase"] == "online"]
    numbers = [value for row in rows for value in row.values() if isinstance(value, float)]
    assert numbers
    assert all(math.isfinite(value) for value in numbers)
    assert (trainer.run_folder / "events.jsonl").read_text().count("rollback") == 0
    with torch.no_grad():
        rate = policy(run.probe).trade_rate
    assert float(rate.mean()) > 0.02  # at 1e-6 it is clamped to 1e-3


OFFLINE: dict[str, object] = {
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

    def earns_most(self) -> bool:
        """Whether it earns more than anybody it learned from."""
        families = [self.data.reward[self.data.family == family].mean() for family in range(6)]
        return bool(self.own.rewards.mean() > max(families))


def learn(folder: Path, **changes: Any) -> Learned:
    """Run the offline phase on a market, and play its policy over the validation window."""
    config = config_in(folder, {**OFFLINE, **LOG_RETURN_ALONE}, **changes)
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


KEYS: dict[str, object] = {"market__validation_end": "2014-12-31", "train__offline_batch_size": 256}


def test_the_best_asset_is_found(tmp_path: Path) -> None:
    keys = {"bcell__actor_lr": 3e-3, "bcell__critic_lr": 3e-3, "market__synthetic__kind": "constant-drift"}
    learned = learn(tmp_path, **KEYS, **keys, train__offline_episodes=150, train__offline_training_epochs=3)
    assert learned.earns_most()
    assert learned.scores["finflow"].score > 0.15  # seen: 0.39 over four years, with a standard error of 0.18


def test_where_assets_do_not_differ_it_learns_to_hold(tmp_path: Path) -> None:
    keys = {"bcell__actor_lr": 2e-3, "bcell__critic_lr": 2e-3, "market__synthetic__kind": "exchangeable"}
    keys |= {"market__synthetic__bars": 12_000}
    learned = learn(tmp_path, **KEYS, **keys, train__offline_episodes=100, train__offline_training_epochs=4)
    held, aimed = learned.data.portfolio[:, :3], learned.data.action
    behaviour = 0.5 * abs(aimed - held).sum(axis=1).mean() * BARS_PER_YEAR
    own = learned.own.turnover.mean() * BARS_PER_YEAR
    assert own < 0.05 * behaviour
    assert own < 2.0 * learned.optimal.turnover.mean() * BARS_PER_YEAR  # most of either is the first purchase


#: What is planted is sought, whatever the experts are called, and nothing is held back.
LEARNING: dict[str, object] = {
    "features.filters": "none",
    "features.regimes": False,
    **GROWTH,
    "market.train_end": "2010-12-31",
    "market.validation_end": "2014-12-31",
    "train.offline_episodes": 1500,
    "train.offline_training_epochs": 8,
    "offline.patience": 0,
    "train.validation_updates": 100_000,
    "offline.evaluation_updates": 0,
    "bcell.hidden_dim": 64,
    "bcell.n_quantiles": 1,
    "bcell.expert_cloning": 0.0,  # what is planted is sought, whatever the experts are called
    "bcell.gamma": 0.9,  # a signal is gone within days: what lies further ahead is noise
    "bcell.actor_lr": 3e-3,
    "bcell.critic_lr": 1e-3,
    "bcell.iql_cloning": 0.3,
}
#: A policy that climbs its critics.
CLIMB = {
    "bcell.iql_extraction": "gradient",
    "train.offline_episodes": 500,
    "train.offline_batch_size": 256,
    "train.offline_training_epochs": 2,
    "bcell.actor_lr": 4e-3,
    "bcell.critic_lr": 3e-3,
}


def climbs(folder: Path, kind: str, least: float, **changes: Any) -> Learned:
    """Most of what the optimal policy earns over equal weight and holding; and more than anybody it learned from."""
    learned = learn(folder, **{**LEARNING, **OWN[kind], **CLIMB, "market.synthetic.kind": kind, **changes})
    assert learned.earns_most()
    assert learned.scores["finflow"].score > least
    return learned


def test_a_climb_finds_a_spread_that_it_costs_to_trade_on(tmp_path: Path) -> None:
    climbs(tmp_path, "mean-reverting", least=0.5)  # seen: 0.72, with a standard error of 0.06


def test_in_the_bad_regime_the_gate_turns_to_the_experts_that_defend(tmp_path: Path) -> None:
    """Experts that stay what they are called leave it to the gate to say which of them is right now."""
    learned = climbs(tmp_path, "regime", least=0.6, bcell__expert_cloning=1.0)  # seen: 0.69, standard error 0.03
    assert learned.own.explanation is not None
    gate = learned.own.explanation["gate"]
    bad, good = gate[learned.beliefs > 0.8].mean(axis=0), gate[learned.beliefs < 0.2].mean(axis=0)
    defending = [EXPERTS.index("defensive"), EXPERTS.index("volatility")]
    assert bad[defending].sum() > good[defending].sum() + 0.3  # seen: 0.95 and 0.06
