"""The offline phase: the order of an epoch, fitted Q evaluation, and its end where validation gains nothing more."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from finflow.config import load_config
from finflow.training.data.replay import MarketTensors, Transitions
from finflow.training.data.reward_normalizer import RewardNormalizer, RewardNormalizerConfig
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.rollouts import RolloutMarket
from finflow.training.phases import pretrain as pretraining
from finflow.training.phases.pretrain import (
    Epochs,
    OfflineLearning,
    behaviour_values,
    epoch_order,
    fitted_q_value,
    group_size,
)
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import Make, Stop, check_same_files, rows_of, train_through

#: The policy stays as it is, so that no validation is better than the first, after 3 of 14 updates.
UNCHANGING: dict[str, object] = {"bcell__actor_lr": 1e-300, "train__validation_updates": 3, "offline__patience": 6}


# --- groups of transitions of one bar


@given(
    bars=st.lists(st.integers(0, 12), min_size=1, max_size=200),
    size=st.sampled_from([1, 2, 4, 8]),
    seed=st.integers(0, 99),
)
def test_groups_share_their_bar_and_no_row_comes_twice(bars: list[int], size: int, seed: int) -> None:
    held = torch.tensor(bars)
    order = epoch_order(held, size, torch.Generator().manual_seed(seed))
    assert order.shape == (int((torch.bincount(held) // size).sum()), size)
    assert len(order.flatten().unique()) == order.numel()
    assert (held[order] == held[order][:, :1]).all()
    left_over = torch.bincount(held) - torch.bincount(held[order].flatten(), minlength=int(held.max()) + 1)
    assert bool((left_over < size).all())


@pytest.mark.parametrize(
    ("each", "wanted", "batch", "expected"), [(24, 4, 512, 4), (5, 4, 512, 1), (6, 4, 512, 2), (64, 8, 2, 2)]
)
def test_groups_shrink_where_bars_or_batches_have_few_transitions(
    each: int, wanted: int, batch: int, expected: int
) -> None:
    # of 5 rows a group of 4 leaves one over (80 % kept), two groups of 2 as many; of 6, groups of 2 keep all
    bars = torch.arange(50).repeat_interleave(each)
    assert group_size(bars, wanted, batch) == expected


def test_every_epoch_has_an_order_of_its_own_after_a_rollback_too() -> None:
    keys = {"train.offline_batch_size": 8, "train.offline_training_epochs": 50, "offline.group_size": 1}
    epochs = Epochs(load_config(None, keys, environ={}), np.repeat(np.arange(4), 8))
    assert (epochs.updates, epochs.total) == (4, 200)
    drawn = {str(epochs.rows(epoch, rollbacks).tolist()) for epoch in range(5) for rollbacks in range(3)}
    assert len(drawn) == 15
    assert torch.equal(epochs.rows(3, 0), epochs.rows(3, 0))


# --- fitted Q evaluation


@pytest.mark.parametrize(("gamma", "normalised"), [(0.1, False), (0.5, False), (0.5, True)])
def test_a_constant_reward_is_worth_itself(shared: Make, gamma: float, normalised: bool) -> None:
    """(1 - gamma) Q is the reward of every decision, whatever the policy does; targets are followed to within 1 %."""
    keys = {"bcell__tau": 0.05, "bcell__critic_lr": 0.01, "bcell__gamma": gamma, "bcell__mirrored__weight": 0.0}
    config = shared(**keys, offline__evaluation_updates=300)
    trainer = FinFlowTrainer(config)
    run = trainer._begin()
    dataset = dataclasses.replace(trainer._data(), reward=np.full(len(trainer._data()), 0.004, dtype=np.float32))
    process, learner = run.training_data.process, run.state.learner
    assert learner is not None
    units = RewardUnits.of(process, 0.002, "none", run.device)
    if normalised:  # in units of rewards whose mean is 1.5 and whose deviation is 3
        units = units._replace(normalizer=RewardNormalizer(RewardNormalizerConfig(warmup=2)))
        units.normalizer.update([-1.5, 4.5])
    market = RolloutMarket(process, MarketTensors.of(process, run.device), units)
    learning = OfflineLearning(learner, dataset, market, config, [], torch.zeros(len(dataset)))
    assert fitted_q_value(learning) == pytest.approx(0.004, rel=0.02)  # seen: within 0.5 %


def test_portfolios_are_valued_alike_together_and_alone(shared: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    # portfolios of a bar are valued together, bars with few of them beside bars with many
    trainer = FinFlowTrainer(shared())
    learner, cpu = trainer._begin().state.learner, torch.device("cpu")
    assert learner is not None
    store = Transitions.of(trainer.collect_offline_data(), cpu)
    market = MarketTensors.of(trainer.training_data.learning, cpu)
    assert len(torch.unique(torch.bincount(store.columns["bar"]))) > 2
    monkeypatch.setattr(pretraining, "VALUE_ROWS", 200)
    for after, portfolio in ((False, "portfolio"), (True, "next_portfolio")):
        values = behaviour_values(store, learner.value, market, after)
        states = market.states(store.columns["bar"] + int(after), store.columns[portfolio])
        with torch.no_grad():
            alone = learner.value.of_behaviour(states)
        torch.testing.assert_close(values, alone, rtol=0.0, atol=1e-6)  # single precision, values of about one


# --- patience


# Six updates follow the first validation, which is the best; or every epoch is made.
@pytest.mark.parametrize(("patience", "at"), [(6, [3, 6, 9]), (0, [3, 6, 9, 12, 14])])
def test_the_offline_phase_ends_when_no_validation_is_better(
    patience: int, at: list[int], shared: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = FinFlowTrainer(shared(**UNCHANGING | {"offline__patience": patience}))
    result = trainer.train_iql()
    rows = rows_of(trainer)
    assert [row["update"] for row in rows if "validation_value" in row] == at
    assert result["fitted_q_value"] == rows[-1]["fitted_q_value"]
    said = "ends after 9 updates: no better validation for 6 (offline.patience)" in capsys.readouterr().out
    assert said == (patience > 0)


@pytest.fixture(scope="module")
def whole(shared: Make) -> FinFlowTrainer:
    """A training that was never stopped."""
    return train_through(shared(**UNCHANGING, train__online_episodes=4))


@pytest.mark.parametrize("when", [7, 9, 9 + 25])  # before the end, at it, and online, past 20 steps of warm-up
def test_a_phase_that_ended_early_is_resumed_bit_for_bit(
    whole: FinFlowTrainer, shared: Make, stop_training: Stop, when: int
) -> None:
    config = shared(**UNCHANGING, train__online_episodes=4)
    stopped = stop_training(config, when)
    resumed = train_through(config, resume=stopped.run_folder)
    check_same_files(resumed, whole)
