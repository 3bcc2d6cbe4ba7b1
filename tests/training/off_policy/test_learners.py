"""Learners side by side: how long they learn, what each has of its own, and their portfolios in progress."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from finflow.config import load_config
from finflow.env.decision_process import DecisionProcess
from finflow.errors import MarketError
from finflow.training.data.rollouts import Portfolios
from finflow.training.data.training_data import prepare
from finflow.training.off_policy.learners import online_updates, vector_steps
from tests.training.off_policy.small_learners import Desk, desk_of
from tests.training.whole_trainings import Make


@pytest.fixture
def desk(tiny: Make) -> Desk:
    """Learners with a block each for two."""
    return desk_of(tiny(out_of_fold__blocks=2, bcell__mirrored__weight=0.0))


def test_the_phase_is_as_many_updates_as_its_decisions_allow() -> None:
    """1000 episodes of 252 decisions by 16 portfolios, 16 decisions a vector step; none ahead: one a step."""
    default = load_config(None, {}, environ={})
    assert online_updates(default) == 985
    assert vector_steps(default, 16) == 16
    alone = load_config(None, {"bcell.expansion": 0, "train.updates_per_vector_step": 2}, environ={})
    assert online_updates(alone) == 2 * 15_750
    assert vector_steps(alone, 1) == 16  # rounded up


def test_every_learner_has_weights_random_numbers_and_a_part_of_the_replay_of_its_own(desk: Desk) -> None:
    """Of a capacity of 150 a third; after a rollback other random numbers, and the same ones again for its number."""
    everyone = desk.learners.everyone

    def states() -> list[tuple[str, str]]:
        return [(str(one.noise.get_state().tolist()), str(one.portfolios.rng.bit_generator.state)) for one in everyone]

    assert [one.replay.capacity for one in everyone] == [50, 50, 50]
    assert not torch.equal(everyone[1].agent.policy.gate.weight, everyone[2].agent.policy.gate.weight)
    before = states()
    desk.learners.reseed(0, 900_010)
    after = states()
    assert all(one != other for pair in zip(before, after, strict=True) for one, other in zip(*pair, strict=True))
    assert len({rng for _, rng in after}) == 3
    desk.learners.reseed(0, 900_010)
    assert states() == after


# --- portfolios


HORIZON, COUNT = 4, 64


@pytest.fixture(scope="module")
def process(shared: Make) -> DecisionProcess:
    return prepare(shared()).learning


def make(process: DecisionProcess, restart: float = 0.0) -> Portfolios:
    first = process.first_bar
    segments = [range(first, first + 40), range(first + 60, first + 63), range(first + 80, first + 100)]
    return Portfolios(process, segments, HORIZON, COUNT, restart, (0,))


def test_steps_begin_where_a_whole_one_fits_into_a_segment(process: DecisionProcess) -> None:
    """The segment of three bars has none; the last one of forty begins at its fifth to last bar but one."""
    portfolios, first = make(process), process.first_bar
    assert portfolios.starts.tolist() == [*range(first, first + 37), *range(first + 80, first + 97)]
    for _ in range(30):
        assert np.isin(portfolios.state.bar, portfolios.starts).all()
        state = portfolios.state
        for _ in range(HORIZON):
            state = process.step(state, state.weights).state
        portfolios.move_on(state)


def test_portfolios_go_on_until_their_segment_ends_or_they_are_ruined(process: DecisionProcess) -> None:
    """Those with room for another step keep weights, wealth and the reward's state; the others begin with capital."""
    portfolios = make(process)
    after = process.step(portfolios.state, portfolios.state.weights).state
    stays = np.isin(after.bar, portfolios.starts)
    ruined, wealth = np.flatnonzero(stays)[:5], after.wealth.copy()
    wealth[ruined] = [0.0, -1.0, np.nan, 0.5, -1e9]  # of a million; at one the account is over
    portfolios.move_on(replace(after, wealth=wealth))
    stays[ruined] = False
    assert 0 < stays.sum() < COUNT - 5
    for name, value in vars(after).items():
        assert np.array_equal(getattr(portfolios.state, name)[stays], value[stays]), name
    assert (portfolios.state.wealth[~stays] == process.env.initial_capital).all()


def test_an_episode_ends_by_chance_after_its_length_on_average(process: DecisionProcess) -> None:
    """A quarter of those with room begin anew: of some 1700 moves the share's deviation is .01, four of which pass."""
    portfolios, anew, room = make(process, restart=0.25), 0, 0
    for _ in range(30):
        after = process.step(portfolios.state, portfolios.state.weights).state
        stays = np.isin(after.bar, portfolios.starts)
        portfolios.move_on(after)
        room += int(stays.sum())
        anew += int((portfolios.state.wealth[stays] != after.wealth[stays]).sum())
    assert room > 1500
    assert anew / room == pytest.approx(0.25, abs=0.045)


def test_without_room_for_a_step_the_message_names_the_key(process: DecisionProcess) -> None:
    with pytest.raises(MarketError, match=r"room for bcell\.expansion \(5000\) decisions; use more data") as refused:
        Portfolios(process, [range(process.first_bar, process.first_bar + 99)], 5000, 4, 0.0, (0,))
    assert "\n" not in str(refused.value)
