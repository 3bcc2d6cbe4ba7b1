"""Learning in worlds: what lies outside teaches nothing, later prices neither, and a stop changes no bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finflow.agent.batch import states_of
from finflow.agent.learners.soft_actor_critic import UpdatePoint
from finflow.config import Config
from finflow.env.episode_worlds import PURPOSE, restrict_to_assets
from finflow.errors import CheckpointError, ConfigError
from finflow.market.synthetic.block_bootstrap import draw_days
from finflow.offline.dataset import made_by
from finflow.strategies.behaviour import FAMILIES, family_tables
from finflow.training.checkpoints.checkpoint_reader import policy_of, read_checkpoint, read_newest
from finflow.training.data import training_worlds
from finflow.training.data.coverage_pool import CoveragePool
from finflow.training.data.offline_data import offline_data
from finflow.training.data.replay import MarketTensors, Transitions, make_batch
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.rollouts import RolloutMarket
from finflow.training.data.training_data import TrainingData, prepare
from finflow.training.off_policy.group_update import Material, draw
from finflow.training.off_policy.learners import with_mirrors
from finflow.training.phases.offline_store import offline_store
from finflow.training.phases.pretrain import Epochs, reward_units
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import Make, checkpoint_of, latest, train_through

CPU = torch.device("cpu")
ALL: dict[str, object] = {
    "worlds__assets": 3,
    "worlds__bootstraps": 2,
    "worlds__block_length": 20,
    "worlds__cost_low": 0.5,
    "worlds__cost_high": 2.0,
    "train__observation_noise": 0.05,
    "bcell__dropout": 0.1,
    "bcell__actor_weight_decay": 0.1,
    "bcell__critic_weight_decay": 0.2,
    "bcell__trade_rate_floor": 0.01,
    "bcell__trade_rate_ceiling": 0.5,
    "bcell__anchor__weight": 0.5,
    "bcell__anchor__final": 0.1,
    "bcell__anchor__updates": 30,
    "bcell__averaging__kind": "ema",
    "bcell__averaging__start": 0.3,
    "bcell__averaging__decay": 0.9,
    "offline__group_size": 4,
    "bcell__risk_measure": "cvar",
    "bcell__cql_mode": "lagrange",
    "bcell__calibration": "returns",
    "bcell__entropy_backup": "relative",
    "bcell__least_pull": 0.2,
    "bcell__gradient_checkpointing": True,
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, make_tiny: Callable[[Path], Make]) -> Make:
    """Makes tiny configurations of one market for all tests."""
    return make_tiny(tmp_path_factory.mktemp("market"))


@pytest.fixture(scope="module")
def whole(tiny: Make) -> FinFlowTrainer:
    """Trained once with all devices on, for tests that change nothing of it."""
    return train_through(tiny(**ALL))


@pytest.mark.parametrize("when", [5, 14 + 5 + 10])
def test_with_all_devices_on_a_stop_changes_no_bit(
    whole: FinFlowTrainer, tiny: Make, stop_training: Callable[[Config, int], FinFlowTrainer], when: int
) -> None:
    stopped = stop_training(tiny(**ALL), when)
    resumed = train_through(tiny(**ALL), resume=stopped.run_folder)
    for name in ("latest", "best"):
        assert checkpoint_of(resumed, name).read_bytes() == checkpoint_of(whole, name).read_bytes()
    rows = [(trainer.run_folder / "metrics.jsonl").read_bytes() for trainer in (resumed, whole)]
    assert rows[0] == rows[1]


def test_learners_see_the_assets_of_an_episode_and_no_others(whole: FinFlowTrainer) -> None:
    run, data = whole._begin(), whole.collect_offline_data()
    process, learners = run.training_data.learning.process, run.state.learners
    assert learners is not None
    assert process.inside is not None
    replay = learners.everyone[0].replay
    stored = {name: column.numpy()[: replay.occupied] for name, column in replay.columns.items()}
    assert len(set(stored["universe"].tolist())) > 1
    for columns in (data.arrays(), stored):
        rows = slice(0, len(columns["bar"]))
        outside = ~process.inside[columns["universe"][rows]]
        for name in ("action", "portfolio", "next_portfolio"):
            assert (columns[name][rows][:, :4][outside] == 0.0).all(), name
    market = MarketTensors.of(process, CPU)
    offline = Transitions.of(data, CPU, universes=True)
    rollouts = with_mirrors(RolloutMarket(process, market, reward_units(run, data)), learners, run.config)
    pool = CoveragePool(0, market.n_weights, CPU)
    whole_table = torch.ones(len(process.growth), dtype=torch.bool)
    material = Material(rollouts, [offline], [whole_table], pool, run.config)
    batch = draw(material, 0, learners.everyone[0], UpdatePoint(1, 2), actor=True).batch
    assert batch.choices is not None
    torch.testing.assert_close(batch.choices.actions.sum(dim=-1), torch.ones(batch.choices.rewards.shape))
    assert batch.both.assets.shape[1:] == (3, process.asset_features.shape[2])
    assert batch.actions.shape[1] == batch.choices.actions.shape[2] == 4
    torch.testing.assert_close(batch.actions.sum(dim=1), torch.ones(len(batch.actions)))
    torch.testing.assert_close(batch.both.weights.sum(dim=1), torch.ones(2 * len(batch.actions)))
    assert (batch.both.assets[..., -1] == 1.0).all()


def test_what_is_named_and_taken_from_rewards_is_of_the_episode_s_own_assets(tiny: Make) -> None:
    """What cloned experts come to, and what a risk measure adds to the spread, in a batch of sub-universes."""
    config = tiny(**ALL)
    training_data = prepare(config)
    process, data = training_data.learning.process, offline_data(config, training_data).dataset
    assert process.members is not None
    market = MarketTensors.of(process, CPU, with_families=True)
    store = Transitions.of(data, CPU, universes=True)
    units = RewardUnits.of(process, data.reward_scale, "equal-weight", CPU)._replace(whole_spread=True)
    epochs = Epochs(config, data)
    rows, group_size = epochs.rows(0), epochs.group_size
    columns = {name: column[rows].numpy() for name, column in store.columns.items()}
    assert group_size > 1
    batch = make_batch(store.rows(rows), market, units, group_size=group_size)
    inside = process.members[columns["universe"]]
    known = columns["bar"] - process.lag
    for number, family in enumerate(FAMILIES):
        table = np.concatenate([family_tables(panel, family).mean(axis=0) for panel in process.panels])
        expected = restrict_to_assets(table[known], inside)[::group_size]
        assert batch.named is not None
        np.testing.assert_allclose(batch.named[:, number].numpy(), expected, atol=1e-6)
    grown = np.take_along_axis(process.growth[columns["bar"] + 1], inside, axis=1)
    assert batch.references is not None
    np.testing.assert_allclose(
        batch.references.numpy(), np.log(grown.mean(axis=1)) / data.reward_scale, rtol=1e-3, atol=1e-5
    )
    raw = batch.with_reference(batch.rewards)
    np.testing.assert_allclose(raw.numpy(), columns["reward"] / data.reward_scale, rtol=1e-3, atol=1e-4)


def test_raw_returns_to_go_are_those_of_the_episode_s_own_assets(whole: FinFlowTrainer) -> None:
    """Discounted rewards to an episode's end and the fitted value there, in sub-universes."""
    run, data = whole._begin(), whole.collect_offline_data()
    state, process = run.state, run.training_data.learning.process
    assert state.bcell is not None
    assert state.learners is not None
    assert state.out_of_fold is not None
    assert process.members is not None
    bcell, market, units = state.bcell, MarketTensors.of(process, CPU), reward_units(run, data)
    rollouts = RolloutMarket(process, market, units)
    store = offline_store(run, data, state.learners.everyone[0], rollouts, units, 0, state.out_of_fold)
    own = np.flatnonzero(data.episode == data.episode[0])
    growth = process.growth[data.bar[own, None] + 1, process.members[data.universe[own]]]
    rewards = (data.reward[own] - np.log(growth.mean(axis=1))) / data.reward_scale
    last = torch.from_numpy(own[-1:])
    universe = store.columns["universe"][last]
    with torch.no_grad():
        end = market.states(store.columns["bar"][last] + 1, store.columns["next_portfolio"][last], universe=universe)
        value = 0.0 if data.terminated[own[-1]] else float(bcell.behaviour_value.of_behaviour(end))
    discounts = bcell.config.gamma ** np.arange(len(own))
    expected = float(rewards @ discounts) + bcell.config.gamma ** len(own) * value
    assert store.columns["calibration"][0].item() == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_what_lies_outside_cannot_change_a_decision(tiny: Make) -> None:
    training_data = prepare(tiny(**ALL))
    process = training_data.learning.process
    assert process.members is not None
    universe = np.arange(8) % len(process.members)
    market = MarketTensors.of(process, CPU)
    policy = FinFlowTrainer(tiny(**ALL)).policy
    bars = np.full(8, 400)
    portfolio = torch.zeros(8, 8)
    portfolio[:, 4] = 1.0
    narrow = market.states(torch.from_numpy(bars), portfolio, universe=torch.from_numpy(universe))
    assert process.inside is not None
    outside = np.broadcast_to(~process.inside[universe][..., None], (8, *process.asset_features.shape[1:]))
    seen = process.asset_features[bars - process.lag].copy()
    changed = np.where(outside, 99.0, seen).astype(np.float32)
    with torch.no_grad():
        expected = policy(narrow).distribution.centre()
        for features in (seen, changed):
            masked = np.where(outside, 0.0, features)
            states = states_of({"assets": masked, "market": narrow.market.numpy(), "portfolio": portfolio.numpy()}, CPU)
            centre = policy(states).distribution.centre()
            own = market.gather_assets(centre, torch.from_numpy(universe))
            torch.testing.assert_close(own, expected, atol=1e-5, rtol=1e-3)  # shown or left away, it is the same
        full = process.observe(process.start(bars))  # and with all assets it is another decision
        torch.testing.assert_close(torch.from_numpy(full["assets"][0, :, -1]), torch.ones(4))


def learning_tables(training_data: TrainingData) -> list[np.ndarray]:
    process = training_data.learning.process
    return [process.growth, process.asset_features, process.market_features]


def test_prices_after_the_training_window_are_in_no_world(
    tiny: Make, make_prices: Callable[..., Path], tmp_path: Path
) -> None:
    other = make_prices(tmp_path / "other.csv", changed_after="2011-09-30")
    changes = {"worlds__bootstraps": 2, "worlds__block_length": 20}
    calm, crash = (prepare(tiny(**changes, **path)) for path in ({}, {"market__path": str(other)}))
    assert not np.array_equal(calm.process.growth, crash.process.growth)
    for mine, theirs in zip(learning_tables(calm), learning_tables(crash), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_the_real_bars_keep_their_numbers_and_every_episode_stays_in_one_history(tiny: Make) -> None:
    training_data = prepare(tiny(worlds__bootstraps=2, worlds__block_length=20, offline__group_size=1))
    learning, stop = training_data.learning, training_data.split.train_end
    assert len(learning.process.growth) == 3 * stop
    np.testing.assert_array_equal(learning.process.asset_features[:stop], training_data.process.asset_features[:stop])
    np.testing.assert_array_equal(learning.process.growth[:stop], training_data.process.growth[:stop])
    data = offline_data(training_data.config, training_data).dataset
    history = data.bar // stop
    assert set(history.tolist()) == {0, 1, 2}
    for episode in range(12):
        own = data.episode == episode
        assert len(set(history[own].tolist())) == 1
        assert ((data.bar[own] + 1) // stop == history[own]).all()
        assert (np.diff(data.bar[own]) == 1).all()
    returns = np.log(learning.process.growth[stop + 1 : 2 * stop, 0])
    real = np.log(training_data.process.growth[1:stop, 0])
    assert np.abs(returns[:, None] - real[None, :]).min(axis=1).max() < 1e-12


def test_episodes_that_see_one_market_share_it_in_a_batch(tiny: Make) -> None:
    config = tiny(**ALL)
    training_data = prepare(config)
    data = offline_data(config, training_data).dataset
    epochs = Epochs(config, data)
    assert epochs.group_size == 4
    rows = epochs.rows(0).view(-1, 4)
    for column in (data.bar, data.universe):
        shared = torch.from_numpy(column.astype(np.int64))[rows]
        assert (shared == shared[:, :1]).all()
    assert len(set(data.universe.tolist())) > 1


def test_the_reference_is_equal_weight_of_the_episode_s_own_assets(tiny: Make) -> None:
    training_data = prepare(tiny(worlds__assets=2))
    process = training_data.learning.process
    assert process.members is not None
    units = RewardUnits.of(process, 2.0, "equal-weight", CPU)
    bars, universe = torch.tensor([300, 301, 302]), torch.tensor([0, 5, 9])
    expected = [
        np.log(process.growth[bar + 1, process.members[drawn]].mean())
        for bar, drawn in zip(bars.tolist(), universe.tolist(), strict=True)
    ]
    np.testing.assert_allclose(units.earned(bars, universe).numpy(), expected, atol=1e-6)
    scaled = units.scaled(torch.tensor([0.01, 0.02, 0.03]), bars, universe)
    np.testing.assert_allclose(scaled.numpy(), (np.array([0.01, 0.02, 0.03]) - expected) / 2.0, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"worlds__assets": 3},
        {"worlds__bootstraps": 1},
        {"worlds__bootstraps": 1, "worlds__block_length": 5},
        {"worlds__cost_high": 2.0},
        {"worlds__bootstraps": 1, "worlds__phases": "offline"},
    ],
)
def test_a_dataset_knows_the_worlds_that_it_was_played_in(tiny: Make, changes: dict[str, object]) -> None:
    plain, other = prepare(tiny()), prepare(tiny(**changes))
    hashes = [made_by(one.config, one.learning.process, one.windows("offline")) for one in (plain, other)]
    assert hashes[0] != hashes[1]
    assert hashes[0]["worlds"] == "none"


@pytest.mark.parametrize("changes", [{"worlds__assets": 3}, {"worlds__bootstraps": 1}])
def test_data_played_in_bundles_of_another_size_are_other_data(tiny: Make, changes: dict[str, object]) -> None:
    small, large = (prepare(tiny(offline__group_size=size, **changes)) for size in (2, 4))
    first, second = (offline_data(one.config, one) for one in (small, large))
    assert not second.reused
    assert not np.array_equal(first.dataset.bar, second.dataset.bar)
    assert offline_data(large.config, large).reused


def test_where_nothing_is_bundled_the_data_do_not_depend_on_how_they_are_grouped_later(tiny: Make) -> None:
    small, large = (prepare(tiny(offline__group_size=size)) for size in (2, 4))
    assert not offline_data(small.config, small).reused
    assert offline_data(large.config, large).reused


def test_each_history_and_the_sub_universes_are_drawn_by_generators_of_their_own(
    tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(worlds__bootstraps=2, worlds__assets=3)
    pool = np.random.default_rng(np.random.SeedSequence([config.train.seed, PURPOSE]))
    seen = [str(pool.bit_generator.state)]

    def recorded(listed: Any, eligible: Any, length: float, rng: np.random.Generator) -> Any:
        seen.append(str(rng.bit_generator.state))
        return draw_days(listed, eligible, length, rng)

    monkeypatch.setattr(training_worlds, "draw_days", recorded)
    assert len(prepare(config).learning.resampled) == 2
    assert len(set(seen)) == len(seen) == 3


def test_a_phase_left_out_meets_the_real_history_alone(tiny: Make) -> None:
    training_data = prepare(tiny(worlds__bootstraps=2, worlds__cost_high=2.0, worlds__phases="offline"))
    online = training_data.windows("online")
    assert isinstance(online, range)
    assert online.stop <= training_data.split.train_end
    assert len(training_data.windows("offline")) == 3
    with pytest.raises(ConfigError, match=r"worlds\.phases"):
        tiny(worlds__assets=3, worlds__phases="offline")


def test_decisions_of_a_user_s_own_are_about_all_assets(tiny: Make) -> None:
    with pytest.raises(ConfigError, match=r"worlds\.assets"):
        tiny(worlds__assets=3, offline__decisions=["mine.csv"])


def test_nothing_changes_where_nothing_is_asked_for(tiny: Make) -> None:
    training_data = prepare(tiny())
    learning = training_data.learning
    assert learning.process.growth is training_data.process.growth
    assert training_data.windows("offline") == training_data.windows("online") == training_data.split.train
    data = offline_data(training_data.config, training_data).dataset
    assert not data.universe.any()
    market = MarketTensors.of(learning.process, CPU)
    store = Transitions.of(data, CPU)
    assert "universe" not in store.columns
    batch = make_batch(store.rows(torch.arange(4)), market, RewardUnits.of(learning.process, 1.0, "none", CPU))
    assert batch.actions.shape[1] == 5


def test_the_deployed_policy_is_the_average_within_its_trade_rates(whole: FinFlowTrainer) -> None:
    bcell = whole._begin().state.bcell
    assert bcell is not None
    assert bcell.average is not None
    assert bcell.average.count == 42  # 60 updates, from 0.3 of them on
    deployed = policy_of(read_checkpoint(latest(whole)), CPU)
    assert deployed.trade_range == (0.01, 0.5)
    own = bcell.average.policy.state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in deployed.state_dict().items())
    assert not torch.equal(deployed.gate.weight, bcell.policy.gate.weight)
    assert whole.policy is bcell.average.policy
    checkpoint = read_checkpoint(latest(whole))
    for wrong in ({"trade_rate_floor": "x"}, "x", {"trade_rate_floor": 0.9, "trade_rate_ceiling": 0.1}):
        with pytest.raises(CheckpointError, match="how its agent is configured"):
            policy_of(checkpoint._replace(facts={**checkpoint.facts, "bcell": wrong}), CPU)


def test_rows_of_metrics_say_how_the_training_generalises(whole: FinFlowTrainer) -> None:
    lines = (whole.run_folder / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "generalisation_train_value" in row]
    online = [row for row in rows if row["phase"] == "online"]
    assert len(rows) > len(online) > 2
    assert "generalisation_kl" not in rows[0]
    assert online[0]["generalisation_kl"] == 0.0
    assert online[-1]["generalisation_kl"] > 0.0
    for row in rows:
        value = {place: row[f"generalisation_{place}_value"] for place in ("worlds", "train", "validation")}
        assert np.isfinite(list(value.values())).all()
        assert row["generalisation_gap"] == pytest.approx(value["train"] - value["validation"])


def test_without_the_measurement_nothing_else_changes(tiny: Make) -> None:
    with_it, without = (train_through(tiny(train__generalisation=flag)) for flag in (True, False))
    assert "generalisation" not in (without.run_folder / "metrics.jsonl").read_text()
    found = [read_newest(latest(one))[1].tensors for one in (with_it, without)]
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())
