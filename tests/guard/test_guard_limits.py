"""Limits and figures of the guard at their edges, each worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from finflow.config import RollbackConfig
from finflow.guard.rollback_triggers import RollbackTriggers
from finflow.guard.signals import ADVICE, ALARM, WARNING, Event, PolicyProbe, RobustWindow, measure, stop_report
from finflow.guard.stability import ENTROPY_LIMIT, GATE_LIMIT, HEALTHY_SHARE, StabilityMonitor

FIGURES = {"concentration": 0.8, "policy_entropy": 0.2, "gate": 0.3, "turnover": 0.05, "kl": 0.0}
HEALTHY = {"q": 0.5, "q_loss": 2.0, "critic_gradient": 12.0}


def settled() -> StabilityMonitor:
    """A monitor that has seen the same healthy figures for long."""
    monitor = StabilityMonitor()
    monitor.begin_phase("online", 0)
    for update in range(1, 101):
        assert monitor.observe(update, HEALTHY) == []
    return monitor


def levels(events: list[Event]) -> list[str]:
    return [event.level for event in events]


def test_a_window_is_renewed_every_few_values() -> None:
    window = RobustWindow(20, 5, renew=10)
    for value in (1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 5.0, 5.0, 5.0):
        window.add(value)
    assert window.centre == 3.0
    window.add(5.0)
    assert window.centre == 5.0
    assert RobustWindow(20, 5).deviations(1e9) == 0.0  # until it is ready
    assert window.deviations(7.0) > 0.0
    window.clear()
    assert window.state() == RobustWindow(20, 5, renew=10).state()
    window = RobustWindow(20, 5)
    for _ in range(5):
        window.add(0.0)
    assert window.deviation == 1e-9


def probe_of(*weights: float) -> PolicyProbe:
    centre = torch.tensor([weights], dtype=torch.float64)
    free = torch.full((1, len(weights) - 1), -1.0, dtype=torch.float64)
    return PolicyProbe(torch.zeros_like(free), free, centre, centre, torch.ones(1, 1, dtype=torch.float64))


def test_an_even_policy_over_one_asset_and_cash_has_a_concentration_of_one() -> None:
    figures = measure(probe_of(0.5, 0.5))
    assert figures["concentration"] == pytest.approx(1.0)
    entropy = 0.5 * math.log(2 * math.pi * math.e) - 1.0 + 2 * math.log(0.5)
    assert figures["policy_entropy"] == pytest.approx(math.exp(entropy))


def test_an_asset_that_is_not_listed_counts_nowhere() -> None:
    figures, listed = measure(probe_of(0.5, 0.0, 0.5)), measure(probe_of(0.5, 0.5))
    assert figures["concentration"] == pytest.approx(listed["concentration"])
    assert figures["policy_entropy"] == pytest.approx(listed["policy_entropy"])


def test_gradients_may_grow_thirtyfold() -> None:
    monitor = settled()
    assert monitor.observe(101, HEALTHY | {"critic_gradient": 12.0 * 25.0}) == []
    assert levels(monitor.observe(102, HEALTHY | {"critic_gradient": 12.0 * 40.0})) == [WARNING]


def test_a_signal_that_was_back_within_its_limit_is_announced_again() -> None:
    monitor = settled()
    for update in (101, 103):
        assert levels(monitor.observe(update, HEALTHY | {"q_loss": 1e6})) == [WARNING]
        assert monitor.observe(update + 1, HEALTHY) == []


def test_the_first_skipped_update_of_a_new_monitor_is_a_warning() -> None:
    (event,) = StabilityMonitor().check_skip("a batch")
    assert (event.update, event.level, event.signal) == (0, WARNING, "non_finite")
    assert "a batch not finite" in event.message


def test_a_policy_is_frozen_at_a_thousandth_of_its_turnover() -> None:
    usual = FIGURES["turnover"]
    assert settled().check_policy(FIGURES | {"turnover": 1.5e-3 * usual}, FIGURES) == []
    (event,) = settled().check_policy(FIGURES | {"turnover": 0.5e-3 * usual}, FIGURES)
    assert event.limit == pytest.approx(1e-3 * usual)


def test_a_collapse_is_sudden_where_the_policy_was_more_than_ten_times_over_the_limit() -> None:
    limit = ENTROPY_LIMIT
    for reference, expected in ((HEALTHY_SHARE * limit, [WARNING]), (1.01 * HEALTHY_SHARE * limit, [WARNING, ALARM])):
        monitor = settled()
        looks = [monitor.check_entropy(concentration=0.001, reference=reference) for _ in range(2)]
        assert [level for events in looks for level in levels(events)] == expected


def test_without_a_healthy_policy_a_concentrated_one_is_a_warning_alone() -> None:
    monitor = settled()
    looks = [monitor.check_policy(FIGURES | {"concentration": 0.0}, {"turnover": 0.05}) for _ in range(4)]
    assert [level for events in looks for level in levels(events)] == [WARNING]


def test_a_reward_is_an_outlier_beyond_its_distance_from_the_last_five_hundred_and_not_at_it() -> None:
    monitor = StabilityMonitor()
    monitor.check_rewards([0.0] * 600)
    assert len(monitor.history.windows["rewards"].values) == 500
    far = monitor.config.reward_outlier * monitor.history.windows["rewards"].deviation
    assert monitor.check_rewards([far, -far, 1.01 * far]).tolist() == [False, False, True]


def test_an_event_names_its_limit_where_it_has_one_and_outliers_are_never_an_alarm() -> None:
    """Outlying rewards may be the market's own: the learner is warned and goes on, however long they last."""
    (event,) = StabilityMonitor().check_q_values([250.0])
    assert event.message == "q is 250, the limit is 100"
    monitor, outliers = StabilityMonitor(), np.array([True, False])
    looks = [monitor.report_rewards(outliers, ~outliers & False) for _ in range(20)]
    assert [(event.level, event.message) for events in looks for event in events] == [(WARNING, "rewards is 1")]


def test_a_report_on_a_stop_says_what_the_best_checkpoint_was_chosen_by() -> None:
    usual, hacked = (stop_report("It stopped", [ADVICE[name]], {}) for name in ("q", "hacking"))
    assert "Best and latest checkpoint are of healthy states" in usual
    assert "chosen by net returns" in hacked
    assert "chosen by net returns" not in usual


def test_triggers_follow_every_value_that_they_see() -> None:
    """The centre of KL divergences is the median of those in the window after each one, not after every other one."""
    config = RollbackConfig()
    window = RollbackTriggers(config).windows["kl"]
    for number in range(config.metric_window_size + 3):
        window.add(float(number))
        if window.ready:
            assert window.centre == np.median(window.values)


def test_a_gate_at_its_limit_is_within_it() -> None:
    monitor = settled()
    limit = GATE_LIMIT
    assert [monitor.check_policy(FIGURES | {"gate": limit}, FIGURES) for _ in range(9)] == [[]] * 9
    assert any(monitor.check_policy(FIGURES | {"gate": limit + 1e-6}, FIGURES) for _ in range(9))
