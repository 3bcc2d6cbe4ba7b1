"""The online phase with its options: it resumes to the same bits, and they reach what they are about."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from finflow.agent.losses.risk import discounted_means, sample_risk
from finflow.config import load_config
from finflow.errors import MarketError
from finflow.evaluation.backtest import run_backtests
from finflow.tensor_file import read_tensors
from finflow.training.data.replay import MarketTensors
from finflow.training.data.rollouts import RolloutMarket
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.phases.finetune import offline_store, ramp_share
from finflow.training.phases.pretrain import reward_units
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import Make, Stop, latest, train_through

OPTIONS = {
    "bcell__cql_mode": "lagrange",
    "bcell__entropy_backup": "relative",
    "bcell__calibration": "returns",
    "bcell__risk_measure": "cvar",
    "bcell__gamma": 0.9,
    "bcell__mixed_precision": True,
    "bcell__gradient_checkpointing": True,
    "bcell__dropout": 0.1,
    "bcell__online_schedule": "cosine",
    "train__actor_ramp_updates": 40,
}


def test_the_policys_rate_rises_from_where_it_may_move() -> None:
    keys = {"train.critic_only_updates": 10, "train.actor_ramp_updates": 4}
    config = load_config(None, keys, environ={})
    assert [ramp_share(config, done) for done in (0, 9, 10, 11, 13, 14, 500)] == [0.0, 0.0, 0.25, 0.5, 1.0, 1.0, 1.0]
    without = load_config(None, keys | {"train.actor_ramp_updates": 0}, environ={})
    assert ramp_share(without, 0) == 1.0


def test_with_every_option_a_resumed_run_equals_one_that_never_stopped(tiny: Make, stop_training: Stop) -> None:
    config = tiny(**OPTIONS, train__online_episodes=6)
    whole = train_through(config)
    stopped = stop_training(config, 14 + 5 + 6)  # 2 epochs of 7 updates, 5 warm-up steps, 6 of 8 online
    resumed = train_through(config, resume=stopped.run_folder)
    assert latest(whole).read_bytes() == latest(resumed).read_bytes()
    tensors, state = read_tensors(latest(whole))
    assert tensors["bcell/log_cql_alpha"].item() != pytest.approx(np.log(5.0), abs=1e-6)
    assert "bcell/cql_optimiser/0.exp_avg" in tensors
    rows = [json.loads(line) for line in (whole.run_folder / "metrics.jsonl").read_text().splitlines()]
    scores = [row["validation_risk_value"] for row in rows if "validation_risk_value" in row]
    assert state["training"]["counters"]["best_score"] == max(scores)
    assert any(row.get("validation_risk_value") != row.get("validation_value") for row in rows)


def test_the_best_is_chosen_by_the_risk_of_validation_returns(tiny: Make) -> None:
    trainer = FinFlowTrainer(tiny(bcell__risk_measure="cvar", bcell__risk_level=0.2, bcell__gamma=0.9))
    run = trainer._begin()
    run.progress.start_phase("validation", 1)
    found = run.validate(trainer.policy)
    process, window = trainer.training_data.process, trainer.training_data.split.validation
    (played,) = run_backtests(process, window, [AgentStrategy(trainer.policy, trainer.device)])
    assert played.rewards is not None
    returns = discounted_means(played.rewards, 0.9)
    worst = np.sort(returns)[: len(returns) // 5].mean()
    assert found["risk_value"] == pytest.approx(sample_risk(returns, trainer.config.bcell))
    assert found["risk_value"] == pytest.approx(worst, rel=0.2)
    assert found["risk_value"] < found["value"]
    assert run.state.counters.best_score == found["risk_value"]


def test_raw_returns_bound_what_is_pushed_down(tiny: Make) -> None:
    """To the end of each episode they are the discounted rewards, and V_mu of where it was cut."""
    trainer = train_through(tiny(bcell__calibration="returns", train__online_episodes=0, train__warmup_episodes=0))
    run, data, agent = trainer._begin(), trainer._data(), trainer.agent
    market = MarketTensors.of(trainer.training_data.process, run.device)
    units, state = reward_units(run, data), run.state
    assert state.learners is not None
    assert state.out_of_fold is not None
    whole = RolloutMarket(trainer.training_data.process, market, units)
    store = offline_store(run, data, state.learners.everyone[0], whole, units, 0, state.out_of_fold)
    rows = np.flatnonzero(data.episode == data.episode[0])
    with torch.no_grad():
        last = market.states(store.columns["bar"][rows[-1:]] + 1, store.columns["next_portfolio"][rows[-1:]])
        expected = float(agent.behaviour_value.of_behaviour(last))
    rewards = units.scaled(store.columns["reward"], store.columns["bar"]).numpy()
    for row in rows[::-1]:
        expected = rewards[row] + 0.99 * expected
        assert store.columns["calibration"][row].item() == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_critics_that_are_put_on_another_level_are_no_fault(tiny: Make) -> None:
    """They come from the offline phase's returns; where rewards have a large mean, exact ones lie far from them."""
    keys = {
        "objectives__reward": "tests.env.rewards.own_rewards:HighLevel",
        "train__reward_reference": "none",
        "train__generalisation": False,
        "guard__stability__check_interval": 1,
        "guard__stability__quiet": 0,
        "train__online_episodes": 8,
    }
    trainer = train_through(tiny(**keys))
    assert trainer._begin().state.watch.manager.rollback_count == 0


def test_more_decisions_ahead_than_there_are_data_are_refused_in_one_line(tiny: Make) -> None:
    trainer = FinFlowTrainer(tiny(bcell__expansion=1000, train__offline_training_epochs=1))
    trainer.train_iql()
    with pytest.raises(MarketError, match=r"bcell\.expansion \(1000\) decisions") as refused:
        trainer.finetune()
    assert "\n" not in str(refused.value)


def test_the_spread_is_of_the_whole_reward_where_risk_counts(tiny: Make) -> None:
    """A batch then carries what its rewards are in excess of; otherwise there is nothing to carry."""
    for measure in ("neutral", "wang"):
        trainer = FinFlowTrainer(tiny(bcell__risk_measure=measure))
        run, data = trainer._begin(), trainer._data()
        units = reward_units(run, data)
        bars = torch.from_numpy(data.bar[:5].astype(np.int64))
        if measure == "neutral":
            assert units.references(bars) is None
        else:
            torch.testing.assert_close(units.references(bars), units.reference[bars] / data.reward_scale)
            assert units.references(bars).abs().sum() > 0.0
