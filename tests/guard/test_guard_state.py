"""The guard of a training: what it watches, and the figures that it keeps between two checks."""

from __future__ import annotations

import pytest

from finflow.config import Config
from finflow.guard.rollback import GuardState


def test_a_reward_model_is_watched_where_the_reward_is_one() -> None:
    plain = Config()
    assert GuardState(plain).hacking is None
    objectives = plain.objectives.model_copy(update={"reward": "preference"})
    learned = plain.model_copy(update={"objectives": objectives})
    assert GuardState(learned).hacking is not None
    off = plain.guard.model_copy(update={"hacking": plain.guard.hacking.model_copy(update={"enabled": False})})
    assert GuardState(learned.model_copy(update={"guard": off})).hacking is None


def test_an_update_without_figures_was_skipped() -> None:
    state = GuardState(Config())
    (event,) = state.check_update(7, {})
    assert (event.update, event.signal) == (7, "non_finite")
    assert state.check_update(8, {"q_loss": 2.0, "q": 0.5}) == []
    assert state.monitor.skipped == 0
    assert state.collect() == {"critic": 2.0}
    assert state.collect() == {}


def test_the_loss_of_a_likelihood_is_that_of_a_mean_weight_of_one() -> None:
    state = GuardState(Config())
    state.check_update(1, {"actor_loss": 2.0, "mean_weight": 0.5})
    state.check_update(2, {"actor_loss": 3.0, "mean_weight": 0.5})
    assert state.collect()["actor"] == pytest.approx(5.0)
