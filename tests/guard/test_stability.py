"""Alarms come for what is broken, soon, and not for what learning looks like."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from finflow.config import Config, load_config
from finflow.guard.checkpoint_folder import capture, restore
from finflow.guard.signals import (
    ALARM,
    WARNING,
    Event,
    PolicyProbe,
    RewardHackingMonitor,
    RobustWindow,
    ScoredValidation,
    parameter_norms,
    policy_figures,
)
from finflow.guard.stability import ENTROPY_LIMIT, GATE_LIMIT, HEALTHY_SHARE, SKIP_LIMIT, GuardState, StabilityMonitor

HEALTHY = {"q": 0.5, "q_largest": 2.0, "q_loss": 2.0, "actor_loss": 1.5, "critic_gradient": 12.0}


def settled() -> StabilityMonitor:
    """A monitor that has seen healthy, noisy updates."""
    monitor, rng = StabilityMonitor(), np.random.default_rng(0)
    monitor.begin_phase("online", 0)
    for update in range(1, 101):
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
    assert monitor.levels[signal] == ALARM


def levels(*looks: list[Event]) -> list[str]:
    return [event.level for events in looks for event in events]


def test_one_spike_is_a_warning_and_nothing_more() -> None:
    monitor = settled()
    for update in (101, 110):
        assert levels(monitor.observe(update, HEALTHY | {"q_loss": 1e6})) == [WARNING]
        assert alarmed(monitor, HEALTHY, 8, start=update + 1) is None


def test_gradients_may_grow_thirtyfold() -> None:
    monitor = settled()
    assert monitor.observe(101, HEALTHY | {"critic_gradient": 12.0 * 25.0}) == []
    assert levels(monitor.observe(102, HEALTHY | {"critic_gradient": 12.0 * 40.0})) == [WARNING]


def test_a_loss_that_has_always_been_over_the_limit_is_no_alarm() -> None:
    monitor = StabilityMonitor()
    monitor.begin_phase("offline", 0)
    looks = [monitor.observe(n, HEALTHY | {"q_loss": 30.0 + n % 7}) for n in range(1, 300)]
    assert levels(*looks) == [WARNING]  # said once


def test_a_loss_that_grows_slowly_is_followed() -> None:
    monitor = settled()
    growth = [monitor.observe(101 + n, HEALTHY | {"q_loss": 2.0 * 1.005**n}) for n in range(800)]
    assert set(levels(*growth)) == {WARNING}


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
    assert (
        levels(StabilityMonitor().check_q_values([math.nan]), StabilityMonitor().check_entropy(math.nan)) == [ALARM] * 2
    )
    assert StabilityMonitor(load_config(None, {"bcell.gamma": 0.9}, {})).q_limit == pytest.approx(10.0)


def test_outliers_among_rewards_are_found_without_being_spoiled_by_them() -> None:
    monitor, rng = StabilityMonitor(), np.random.default_rng(1)
    for _ in range(50):
        assert monitor.check_rewards(rng.standard_t(3, size=16)) == []
    (event,) = monitor.check_rewards([0.1, 1e30, -500.0, 8.0])
    assert (event.level, event.value) == (WARNING, 1e30)
    assert "rewards is 1e+30, the limit is " in event.message
    assert levels(monitor.check_rewards([0.1]), monitor.check_rewards([math.nan, 0.1])) == [WARNING]
    monitor.check_rewards([0.1])
    assert levels(monitor.check_rewards([900.0, 0.1])) == [WARNING]
    # they may be the market's own: never an alarm, however long they last, and said again after they were over
    assert levels(*(monitor.check_rewards([900.0, 0.1]) for _ in range(20))) == []
    assert levels(*(monitor.check_rewards(one) for one in ([0.1], [900.0], [0.1], [-900.0]))) == [WARNING, WARNING]


@pytest.mark.parametrize(("seen", "outlier", "within"), [(0, 150.0, 90.0), (30, 50.0, 5.0)])
def test_the_first_outlier_among_rewards_is_told(seen: int, outlier: float, within: float) -> None:
    """By an absolute limit before thirty rewards are there, and by what is usual from then on."""
    for value, expected in ((outlier, [WARNING]), (-outlier, [WARNING]), (within, [])):
        monitor = StabilityMonitor()
        assert monitor.check_rewards(np.random.default_rng(1).normal(size=seen)) == []
        assert levels(monitor.check_rewards([value])) == expected


def test_the_promised_bands_are_those_of_the_monitor() -> None:
    """The table of signals: nothing is said within the healthy band, and a warning at the value of its last column."""
    for check, healthy, warned in (
        (lambda monitor, value: monitor.check_q_values([value]), (-10.0, 10.0, 99.0), (100.1, -100.1)),
        (lambda monitor, value: monitor.check_entropy(concentration=value), (0.1, 1.0), (0.0099,)),
        (lambda monitor, value: monitor.check_entropy(policy=value), (0.1, 1.0), (0.0099,)),
        (lambda monitor, value: monitor.observe(1, {"actor_loss": value}), (0.0, 10.0), (50.1,)),
        (lambda monitor, value: monitor.observe(1, {"critic_loss": value}), (0.0, 5.0), (20.1,)),
        (lambda monitor, value: monitor.observe(1, {"value_loss": value}), (0.0, 5.0), (20.1,)),
        (lambda monitor, value: monitor.check_sharpe(value), (0.0, 2.0), (-0.51,)),
    ):
        assert [check(StabilityMonitor(), value) for value in healthy] == [[]] * len(healthy)
        assert [levels(check(StabilityMonitor(), value)) for value in warned] == [[WARNING]] * len(warned)


@pytest.mark.parametrize(("share", "expected"), [(1.0, [WARNING]), (1.01, [WARNING, ALARM])])
def test_a_sudden_collapse_onto_one_asset_is_an_alarm_and_a_slow_one_is_not(share: float, expected: list[str]) -> None:
    monitor, reference = settled(), share * HEALTHY_SHARE * ENTROPY_LIMIT
    looks = [monitor.check_entropy(concentration=0.001, reference=reference) for _ in range(9)]
    assert levels(*looks) == expected


FIGURES = {"concentration": 0.8, "policy_entropy": 0.2, "gate": 0.3, "turnover": 0.05, "kl": 0.0}


@pytest.mark.parametrize(
    ("broken", "signal", "within"),
    [
        ({"gate": GATE_LIMIT + 1e-6}, "gate", {"gate": GATE_LIMIT}),
        ({"turnover": 0.41}, "turnover", {"turnover": 0.39}),
        ({"turnover": 0.5e-3 * 0.05}, "frozen", {"turnover": 1.5e-3 * 0.05}),
        ({"concentration": 0.0}, "concentration", {}),
    ],
)
def test_a_policy_that_breaks_is_an_alarm_at_the_second_look(
    broken: dict[str, float], signal: str, within: dict[str, float]
) -> None:
    monitor = settled()
    assert [monitor.check_policy(FIGURES | within, FIGURES) for _ in range(9)] == [[]] * 9
    events = [event for _ in range(2) for event in monitor.check_policy(FIGURES | broken, FIGURES)]
    assert [(event.signal, event.level) for event in events] == [(signal, WARNING), (signal, ALARM)]


def test_a_policy_of_no_numbers_is_an_alarm_and_one_that_always_was_so_or_has_no_past_is_not() -> None:
    assert levels(settled().check_policy(FIGURES | {"kl": math.nan}, FIGURES)) == [ALARM]
    for broken, before in (({"gate": 0.999}, FIGURES | {"gate": 0.98}), ({"concentration": 0.0}, {"turnover": 0.05})):
        monitor = settled()
        assert levels(*(monitor.check_policy(FIGURES | broken, before) for _ in range(9))) == [WARNING]


def test_parameters_that_leap_or_are_no_numbers_are_an_alarm_at_once() -> None:
    monitor = settled()
    assert monitor.check_parameters({"policy": 10.5}, {"policy": 10.0}) == []
    assert levels(monitor.check_parameters({"policy": 50.0}, {"policy": 10.0})) == [ALARM]
    assert parameter_norms({"a": [torch.full((4,), 2.0), torch.zeros(3)]}) == {"a": 4.0}
    broken = parameter_norms({"a": [torch.ones(2), torch.tensor([1.0, math.nan])], "b": [torch.ones(1)]})
    assert levels(monitor.check_parameters(broken, {})) == [ALARM]


def test_a_validation_sharpe_that_falls_far_is_an_alarm_and_a_low_one_is_not() -> None:
    low = settled()
    assert levels(*(low.check_sharpe(-1.3) for _ in range(6))) == [WARNING]
    fallen = settled()
    assert levels(*(fallen.check_sharpe(sharpe) for sharpe in (1.0, 1.0, 1.0, -0.8, -0.8))) == [WARNING, ALARM]


def test_a_monitor_goes_on_from_its_saved_state() -> None:
    monitor, other = settled(), StabilityMonitor()
    for update in range(101, 104):
        monitor.observe(update, HEALTHY | {"q_loss": 1e4})
    restore(other, {}, json.loads(json.dumps(capture(monitor)[1])))
    for update in range(104, 108):
        metrics = HEALTHY | {"q_loss": 1e4, "q": 3.0}
        assert monitor.observe(update, metrics) == other.observe(update, metrics)
    assert capture(monitor) == capture(other)


def test_a_window_is_robust_and_follows() -> None:
    window, rng = RobustWindow(100, 20), np.random.default_rng(2)
    for value in rng.normal(5.0, 1.0, size=200):
        window.add(float(value))
    assert window.centre == pytest.approx(5.0, abs=0.4)
    assert window.spread == pytest.approx(1.0, abs=0.35)
    for _ in range(10):
        window.add(1e30)
        window.add(math.nan)
    assert window.is_over(8.0, 1.5)
    for value in rng.normal(9.0, 1.0, size=300):
        window.add(float(value))
    assert window.centre == pytest.approx(9.0, abs=0.4)


def test_figures_of_a_policy_are_those_worked_out_by_hand() -> None:
    weights, held = torch.tensor([[0.25, 0.25, 0.25, 0.25]]), torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    probe = PolicyProbe(torch.zeros(1, 3), torch.full((1, 3), -1.0), weights, held, torch.tensor([[0.1, 0.7, 0.2]]))
    figures = policy_figures(probe, torch.tensor(0.5))
    assert figures["concentration"] == pytest.approx(1.0)
    assert figures["gate"] == pytest.approx(0.7)
    assert figures["turnover"] == pytest.approx(0.75)
    assert (figures["kl"], policy_figures(probe)["kl"]) == (0.5, 0.0)
    entropy = 3 * (0.5 * math.log(2 * math.pi * math.e) - 1.0) + 4 * math.log(0.25)
    assert figures["policy_entropy"] == pytest.approx(math.exp((entropy + math.lgamma(4)) / 3), rel=1e-5)
    unlisted = torch.nn.functional.pad(weights, (1, 0))  # an asset that is not listed counts nowhere
    wider = PolicyProbe(torch.zeros(1, 4), torch.full((1, 4), -1.0), unlisted, unlisted, probe.gate)
    for name in ("concentration", "policy_entropy"):
        assert policy_figures(wider)[name] == pytest.approx(figures[name], rel=1e-5)


def test_an_event_names_its_limit_and_is_json_also_where_its_value_is_not() -> None:
    (event,) = StabilityMonitor().check_q_values([250.0])
    assert event.message == "q is 250, the limit is 100"
    row = Event(3, "online", ALARM, "q", "words", math.nan, 1.0).row()
    assert json.loads(json.dumps(row, allow_nan=False))["value"] == "nan"


def test_an_update_without_figures_was_skipped_and_losses_are_meant_over_the_others() -> None:
    state = GuardState(Config())
    (event,) = state.check_update(7, {})
    assert (event.update, event.signal) == (7, "non_finite")
    assert state.check_update(8, {"q_loss": 2.0, "q": 0.5}) == []
    assert state.monitor.skipped == 0
    assert (state.collect(), state.collect()) == ({"critic": 2.0}, {})
    for update, loss in enumerate((2.0, 3.0), start=9):  # that of a likelihood is counted for a mean weight of one
        state.check_update(update, {"policy_loss": loss, "mean_weight": 0.5})
    assert state.collect()["actor"] == pytest.approx(5.0)
    assert state.monitor.windows["actor_loss"].values == pytest.approx([4.0, 6.0])  # the monitor judges the same


# --- reward hacking: a score that rises while the truth falls

START = ScoredValidation(score=0.0, sharpe=1.0, utility=0.5, turnover=4.0, concentration=0.3)


def at(step: float, sharpe: float, utility: float | None = None) -> ScoredValidation:
    """A validation with a score, and net measures that move together by default."""
    return ScoredValidation(step, sharpe, sharpe / 2 if utility is None else utility, 4.0, 0.3)


def reasons(*validations: ScoredValidation) -> list[list[str]]:
    watch = RewardHackingMonitor()
    return [watch.check(one) for one in validations]


def test_a_rising_score_with_falling_truth_stops_after_three_validations() -> None:
    path = [START, at(1.0, 0.9), at(2.0, 0.8), at(3.0, 0.6)]
    *before, last = reasons(*path)
    assert before == [[], [], []]
    (reason,) = last
    assert "score rose from 0 to 3 while the Sharpe ratio fell from 1.00 to 0.60" in reason


@pytest.mark.parametrize(
    "path",
    [
        [START, at(1.0, 0.9), at(2.0, 0.8), at(1.5, 0.7)],  # the score fell
        [START, at(1.0, 0.9), at(2.0, 0.95), at(3.0, 0.6), at(4.0, 0.5)],  # the truth rose between
        [START, at(1.0, 0.9), at(2.0, 0.8), at(3.0, 0.7, utility=0.9)],  # the built-in reward rose
        [START, at(1.0, 0.9, 0.5), at(2.0, 0.8, 0.5), at(3.0, 0.6, 0.5)],  # the built-in reward stayed
        [START, at(1.0, 0.99), at(2.0, 0.98), at(3.0, 0.97)],  # by too little
        [START, at(1.0, 0.9), at(2.0, math.nan), at(3.0, 0.5), at(4.0, 0.4)],  # held cash alone
    ],
)
def test_nothing_else_stops(path: list[ScoredValidation]) -> None:
    assert not any(reasons(*path))


def test_turnover_and_concentration_beyond_twice_the_reference_stop() -> None:
    traded = ScoredValidation(0.0, 1.0, 0.5, 8.1, 0.3)
    assert reasons(START, traded) == [[], ["the turnover is 8.1, over 2 times the reference's 4"]]
    assert reasons(START, ScoredValidation(0.0, 1.0, 0.5, 7.9, 0.61))[1] == [
        "the concentration is 0.61, over 2 times the reference's 0.3"
    ]
    still = ScoredValidation(0.0, 1.0, 0.5, 0.01, 0.3)  # hardly trades: counts as trading once a year
    assert reasons(still, ScoredValidation(0.0, 1.0, 0.5, 1.9, 0.3)) == [[], []]


def test_the_correlation_is_pearsons_over_the_validations() -> None:
    watch = RewardHackingMonitor()
    for one in (at(0.0, 1.0), at(1.0, 0.9)):
        watch.check(one)
    assert math.isnan(watch.correlation)
    watch.check(at(2.0, math.nan))
    watch.check(at(2.0, 0.8))
    assert watch.correlation == pytest.approx(-1.0)
