"""Portfolios in progress: they stay within their bars, the ruined begin anew, and all of them is saved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from finflow.env.decision_process import DecisionProcess
from finflow.errors import MarketError
from finflow.training.data.training_data import prepare
from finflow.training.off_policy.learners import Portfolios
from tests.training.whole_trainings import Make

HORIZON, COUNT = 4, 64


@pytest.fixture(scope="module")
def process(shared: Make) -> DecisionProcess:
    return prepare(shared()).learning


def make(process: DecisionProcess, restart: float = 0.0, seed: int = 0) -> Portfolios:
    first = process.first_bar
    segments = [range(first, first + 40), range(first + 60, first + 63), range(first + 80, first + 100)]
    return Portfolios(process, segments, HORIZON, COUNT, restart, (seed,))


def moved(portfolios: Portfolios, decisions: int = HORIZON) -> None:
    """Hold for some decisions."""
    state = portfolios.state
    for _ in range(decisions):
        state = portfolios.process.step(state, state.weights).state
    portfolios.move_on(state)


def test_steps_begin_where_a_whole_one_fits_into_a_segment(process: DecisionProcess) -> None:
    """The segment of three bars has none; the last one of forty begins at its fifth to last bar but one."""
    portfolios, first = make(process), process.first_bar
    assert portfolios.starts.tolist() == [*range(first, first + 37), *range(first + 80, first + 97)]
    for _ in range(30):
        assert np.isin(portfolios.state.bar, portfolios.starts).all()
        moved(portfolios)


def test_portfolios_go_on_until_their_segment_ends(process: DecisionProcess) -> None:
    """Those with room for another step keep weights, wealth and the reward's state; the others begin with capital."""
    portfolios = make(process)
    before = portfolios.state
    after = process.step(before, before.weights).state
    portfolios.move_on(after)
    stays = np.isin(after.bar, portfolios.starts)
    assert 0 < stays.sum() < COUNT
    for name, value in vars(after).items():
        assert np.array_equal(getattr(portfolios.state, name)[stays], value[stays]), name
    assert (portfolios.state.wealth[~stays] == process.env.initial_capital).all()


def test_ruined_portfolios_begin_anew(process: DecisionProcess) -> None:
    portfolios = make(process)
    after = process.step(portfolios.state, portfolios.state.weights).state
    going_on = np.isin(after.bar, portfolios.starts)
    ruined = np.flatnonzero(going_on)[:5]
    wealth = after.wealth.copy()
    wealth[ruined] = [0.0, -1.0, np.nan, 0.5, -1e9]  # of a million; at one the account is over
    portfolios.move_on(replace(after, wealth=wealth))
    assert (portfolios.state.wealth[ruined] == process.env.initial_capital).all()


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


def test_a_restored_copy_goes_on_with_the_same_bits(process: DecisionProcess) -> None:
    first, second = make(process, 0.3), make(process, 0.3, seed=1)
    moved(first)
    tensors, facts = first.capture()
    second.restore(tensors, facts)
    for portfolios in (first, second):
        for _ in range(3):
            moved(portfolios)
    for name, value in vars(first.state).items():
        assert np.array_equal(getattr(second.state, name), value), name
    assert first.rng.bit_generator.state == second.rng.bit_generator.state
    fresh = make(process, 0.3, seed=1)
    assert not np.array_equal(fresh.state.weights, second.state.weights)


@pytest.mark.parametrize("change", ["bar", "shape", "generator"])
def test_a_file_of_other_portfolios_is_refused(process: DecisionProcess, change: str) -> None:
    portfolios = make(process)
    tensors, facts = portfolios.capture()
    if change == "bar":
        tensors["bar"] = tensors["bar"] + 10**6
    elif change == "shape":
        tensors["weights"] = tensors["weights"][:-1]
    else:
        facts = {"generator": {"bit_generator": "os"}}
    with pytest.raises((ValueError, KeyError, TypeError, RuntimeError)):
        make(process).restore(tensors, facts)
