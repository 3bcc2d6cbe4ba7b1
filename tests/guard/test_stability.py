"""Alarms come for what is broken, soon, and not for what learning looks like."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from finflow.config import StabilityConfig, load_config
from finflow.guard.signals import (
    ALARM,
    WARNING,
    Event,
    PolicyProbe,
    RobustWindow,
    measure,
    parameter_norms,
)
from finflow.guard.stability import SKIP_LIMIT, StabilityMonitor

HEALTHY = {"q": 0.5, "q_largest": 2.0, "q_loss": 2.0, "actor_loss": 1.5, "critic_gradient": 12.0}


def settled(config: StabilityConfig | None = None, updates: int = 100) -> StabilityMonitor:
    """A monitor that has seen healthy, noisy updates."""
    monitor, rng = StabilityMonitor(config), np.random.default_rng(0)
    monitor.begin_phase("online", 0)
    for update in range(1, updates + 1):
        metrics = {name: value * float(rng.lognormal(0.0, 0.3)) for name, value in HEALTHY.items()}
        assert monitor.observe(update, metrics) == []
    return monitor


def alarmed(monitor: StabilityMonitor, metrics: dict[str, float], updates: int = 20, start: int = 101) -> int | None:
    """Updates until the first alarm."""
    for number in range(updates):
        events = monitor.observe(start + number, metrics)
        if any(event.level == ALARM for event in events):
            return number + 1
    return None


@pytest.mark.parametrize(
    ("broken", "signal"),
    [
        ({"q_largest": 500.0}, "q"),
        ({"q_largest": -500.0}, "q"),
        ({"q_loss": 1e4}, "critic_loss"),
        ({"actor_loss": 900.0}, "actor_loss"),
        ({"critic_gradient": 1e5}, "critic_gradient"),
    ],
)
def test_a_signal_that_breaks_is_an_alarm_after_several_hits(broken: dict[str, float], signal: str) -> None:
    monitor = settled()
    assert alarmed(monitor, HEALTHY | broken) == monitor.config.hits
    assert monitor.history.levels[signal] == ALARM


def test_one_spike_is_a_warning_and_nothing_more() -> None:
    monitor = settled()
    events = monitor.observe(101, HEALTHY | {"q_loss": 1e6})
    assert [event.level for event in events] == [WARNING]
    assert alarmed(monitor, HEALTHY, start=102) is None


def test_a_loss_that_has_always_been_over_the_limit_is_no_alarm() -> None:
    monitor = StabilityMonitor()
    monitor.begin_phase("offline", 0)
    levels = [event.level for n in range(1, 300) for event in monitor.observe(n, HEALTHY | {"q_loss": 30.0 + n % 7})]
    assert levels == [WARNING]  # said once


def test_a_loss_that_grows_slowly_is_followed() -> None:
    monitor = settled()
    growth = [monitor.observe(101 + n, HEALTHY | {"q_loss": 2.0 * 1.005**n}) for n in range(800)]
    assert {event.level for events in growth for event in events} == {WARNING}


def test_there_is_no_alarm_while_a_restored_state_settles() -> None:
    monitor = settled()
    monitor.settle()
    assert alarmed(monitor, HEALTHY | {"q_loss": 1e4}, updates=monitor.config.quiet - 1) is None
    assert alarmed(monitor, HEALTHY | {"q_loss": 1e4}, start=100 + monitor.config.quiet) is not None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_updates_that_are_no_numbers_are_counted_and_then_an_alarm(value: float) -> None:
    monitor = settled()
    assert alarmed(monitor, HEALTHY | {"quantile_loss": value}) == SKIP_LIMIT
    monitor.observe(120, HEALTHY)
    assert monitor.skipped == 0


def test_the_limit_on_q_grows_with_the_horizon() -> None:
    values = torch.tensor([[-250.0, 3.0]])
    assert [event.signal for event in StabilityMonitor(gamma=0.99).check_q_values(values)] == ["q"]
    assert StabilityMonitor(gamma=0.999).check_q_values(values) == []
    assert [event.level for event in StabilityMonitor().check_q_values([math.nan])] == [ALARM]
    assert StabilityMonitor(load_config(None, {"bcell.gamma": 0.9}, {})).q_limit == pytest.approx(10.0)


def test_outliers_among_rewards_are_found_without_being_spoiled_by_them() -> None:
    monitor, rng = StabilityMonitor(), np.random.default_rng(1)
    for _ in range(50):
        assert not monitor.check_rewards(rng.standard_t(3, size=16)).any()
    assert monitor.check_rewards([0.1, 1e30, math.nan, -500.0, 8.0]).tolist() == [False, True, True, True, False]
    assert monitor.check_rewards([900.0]).all()


def test_a_sudden_collapse_onto_one_asset_is_an_alarm_and_a_slow_one_is_not() -> None:
    monitor = settled()
    looks = [monitor.check_entropy(concentration=0.001, reference=0.8) for _ in range(2)]
    assert [event.level for events in looks for event in events] == [WARNING, ALARM]
    slow = settled()
    looks = [slow.check_entropy(concentration=0.001, reference=0.02) for _ in range(9)]
    assert [event.level for events in looks for event in events] == [WARNING]


FIGURES = {"concentration": 0.8, "policy_entropy": 0.2, "gate": 0.3, "turnover": 0.05, "kl": 0.0}


@pytest.mark.parametrize(
    ("broken", "signal"),
    [
        ({"gate": 0.999}, "gate"),
        ({"turnover": 0.9}, "turnover"),
        ({"turnover": 1e-9}, "frozen"),
        ({"concentration": 0.0}, "concentration"),
    ],
)
def test_a_policy_that_breaks_is_an_alarm_at_the_second_look(broken: dict[str, float], signal: str) -> None:
    monitor = settled()
    events = [event for _ in range(2) for event in monitor.check_policy(FIGURES | broken, FIGURES)]
    assert [(event.signal, event.level) for event in events] == [(signal, WARNING), (signal, ALARM)]
    assert settled().check_policy(FIGURES, FIGURES) == []
    assert monitor.check_policy(FIGURES | {"kl": math.nan}, FIGURES)[0].level == ALARM
    other = settled()  # one expert all along is no alarm
    events = [e for _ in range(9) for e in other.check_policy(FIGURES | {"gate": 0.999}, FIGURES | {"gate": 0.98})]
    assert [event.level for event in events] == [WARNING]


def test_parameters_that_leap_or_are_no_numbers_are_an_alarm_at_once() -> None:
    monitor = settled()
    assert monitor.check_parameters({"policy": 10.5}, {"policy": 10.0}) == []
    assert [event.level for event in monitor.check_parameters({"policy": 50.0}, {"policy": 10.0})] == [ALARM]
    assert parameter_norms({"a": [torch.full((4,), 2.0), torch.zeros(3)]}) == {"a": 4.0}
    broken = parameter_norms({"a": [torch.ones(2), torch.tensor([1.0, math.nan])], "b": [torch.ones(1)]})
    assert [event.level for event in monitor.check_parameters(broken, {})] == [ALARM]


def test_a_validation_sharpe_that_falls_far_is_an_alarm_and_a_low_one_is_not() -> None:
    low = settled()
    assert [event.level for _ in range(6) for event in low.check_sharpe(-1.3)] == [WARNING]
    fallen = settled()
    for _ in range(3):
        assert fallen.check_sharpe(1.0) == []
    assert [event.level for _ in range(2) for event in fallen.check_sharpe(-0.8)] == [WARNING, ALARM]


def test_a_monitor_goes_on_from_its_saved_state() -> None:
    monitor, other = settled(), StabilityMonitor()
    for update in range(101, 104):
        monitor.observe(update, HEALTHY | {"q_loss": 1e4})
    other.load(json.loads(json.dumps(monitor.state())))
    for update in range(104, 108):
        metrics = HEALTHY | {"q_loss": 1e4, "q": 3.0}
        assert monitor.observe(update, metrics) == other.observe(update, metrics)
    assert monitor.state() == other.state()


def test_a_window_is_robust_and_follows() -> None:
    window, rng = RobustWindow(100, 20), np.random.default_rng(2)
    for value in rng.normal(5.0, 1.0, size=200):
        window.add(float(value))
    assert window.centre == pytest.approx(5.0, abs=0.4)
    assert window.spread == pytest.approx(1.0, abs=0.35)
    for _ in range(10):
        window.add(1e30)
        window.add(math.nan)
    assert window.deviations(8.0) > 1.5
    for value in rng.normal(9.0, 1.0, size=300):
        window.add(float(value))
    assert window.centre == pytest.approx(9.0, abs=0.4)


def test_figures_of_a_policy_are_those_worked_out_by_hand() -> None:
    weights, held = torch.tensor([[0.25, 0.25, 0.25, 0.25]]), torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    probe = PolicyProbe(torch.zeros(1, 3), torch.full((1, 3), -1.0), weights, held, torch.tensor([[0.1, 0.7, 0.2]]))
    figures = measure(probe, torch.tensor(0.5))
    assert figures["concentration"] == pytest.approx(1.0)
    assert figures["gate"] == pytest.approx(0.7)
    assert figures["turnover"] == pytest.approx(0.75)
    assert (figures["kl"], measure(probe)["kl"]) == (0.5, 0.0)
    entropy = 3 * (0.5 * math.log(2 * math.pi * math.e) - 1.0) + 4 * math.log(0.25)
    assert figures["policy_entropy"] == pytest.approx(math.exp((entropy + math.lgamma(4)) / 3), rel=1e-5)


def test_an_event_is_json_also_where_its_value_is_not() -> None:
    row = Event(3, "online", ALARM, "q", "words", math.nan, 1.0).row()
    assert json.loads(json.dumps(row, allow_nan=False))["value"] == "nan"
