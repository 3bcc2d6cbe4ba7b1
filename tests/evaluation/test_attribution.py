"""Where a return came from: the lines sum to it, and each is what a hand computation says."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from finflow.evaluation.analysis.attribution import attribute, attribution_section, expert_shares, linked
from finflow.evaluation.backtest import ComparisonContext, run_backtests
from finflow.strategies.strategy import Information
from tests.evaluation.made_up import backtest_of, context_of, process_of, returns_of

EXPERTS = ("one", "two")
WINDOW = range(300, 700)


class Mixing:
    """Two experts with portfolios of their own, mixed and approached as the agent does, at other rates each day."""

    name = "mixing"

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)
        self.reasons: dict[str, list[np.ndarray]] = {name: [] for name in ("gate", "experts", "trade_rate", "held")}

    def decide(self, information: Information) -> np.ndarray:
        experts = self.rng.dirichlet(np.full(6, 0.5), size=2)
        gate, rate = self.rng.dirichlet(np.ones(2)), self.rng.uniform(0.0, 0.4)
        for name, value in zip(
            self.reasons, (gate, experts, np.array(rate), information.portfolio.copy()), strict=True
        ):
            self.reasons[name].append(value)
        return (1.0 - rate) * information.portfolio + rate * gate @ experts

    def explanation(self) -> dict[str, np.ndarray]:
        return {name: np.stack(values) for name, values in self.reasons.items()}


@pytest.mark.parametrize("settings", [{}, {"execution_lag": 0}, {"execution_lag": 2}, {"max_weight": 0.3}])
def test_every_day_and_the_whole_window_sum_to_the_return(settings: dict[str, float]) -> None:
    process = process_of(commission_bps=30.0, **settings)
    (run,) = run_backtests(process, WINDOW, [Mixing()])
    bars = process.decision_bars(WINDOW)
    earned, costs = attribute(run, process.growth[bars.start + 1 : bars.stop + 1])
    assert run.costs.min() > 0.0
    np.testing.assert_allclose(earned.sum(axis=1) + costs, run.returns, rtol=0.0, atol=1e-14)
    assert linked(run, earned).sum() + linked(run, costs) == pytest.approx(np.prod(1.0 + run.returns) - 1.0, abs=1e-10)
    shares = expert_shares(run)
    assert shares is not None
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=0.0, atol=1e-14)


def test_two_days_worked_by_hand() -> None:
    """Half in A, half cash, 1 % cost; A gains 10 %, then all of it held, A loses 20 %, for free."""
    run = dataclasses.replace(
        backtest_of("hand", steps=2),
        weights=np.array([[0.5, 0.5], [1.0, 0.0]]),
        costs=np.array([0.01, 0.0]),
        returns=np.array([0.99 * 1.05 - 1.0, -0.2]),
        assets=("A", "cash"),
    )
    earned, costs = attribute(run, np.array([[1.1, 1.0], [0.8, 1.0]]))
    assert linked(run, earned) == pytest.approx([0.05 - 0.2 * 1.0395, 0.0])
    assert float(linked(run, costs)) == pytest.approx(-0.01 * 1.05)


def test_a_holding_is_shared_by_those_who_built_it() -> None:
    """At rate 1/2 each day: first expert one names A, then expert two does; half of A stays with one, half is two's."""
    one = np.array([[1.0, 0.0], [0.0, 1.0]])
    reasons = {
        "gate": np.array([[1.0, 0.0], [0.0, 1.0]]),
        "experts": np.stack([one, np.array([[0.0, 1.0], [1.0, 0.0]])]),
        "trade_rate": np.array([0.5, 0.5]),
        "held": np.array([[0.0, 1.0], [0.5, 0.5]]),
    }
    weights = np.array([[0.5, 0.5], [0.75, 0.25]])
    run = dataclasses.replace(returns_of("x", np.zeros(2)), weights=weights, explanation=reasons)
    shares = expert_shares(run)
    assert shares is not None
    np.testing.assert_allclose(shares[0, :, 0], [1.0, 0.0, 0.0])
    np.testing.assert_allclose(shares[1, :, 0], [0.25 / 0.75, 0.5 / 0.75, 0.0])
    np.testing.assert_allclose(shares[:, :, 1], [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]], err_msg="cash was never aimed at")
    refused = expert_shares(dataclasses.replace(run, refused=np.array([False, True])))
    assert refused is not None
    np.testing.assert_allclose(refused[1], refused[0], err_msg="a refused trade changes no share")
    assert expert_shares(dataclasses.replace(run, explanation=None)) is None


def test_the_section_has_lines_that_sum_and_equal_weight_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finflow.evaluation.analysis.attribution.SHOWN", 2)
    process = process_of()
    made = attribution_section(context_of(process, WINDOW, "risk-parity", "equal-weight"), EXPERTS)
    assert len(made.tables[0].rows) == 4 + 3, "of many assets the best and the worst"
    for numbers in made.numbers.values():
        assert numbers["experts"] is None
        assert sum(numbers["assets"].values()) + numbers["cash"] + numbers["costs"] == pytest.approx(
            numbers["total"], abs=1e-10
        )
    assert [len(table.columns) for table in made.tables] == [3]
    context = ComparisonContext(process, WINDOW, {"mixing": Mixing}, run_backtests(process, WINDOW, [Mixing()]))
    agent = attribution_section(context, EXPERTS).numbers["mixing"]
    assert list(agent["experts"]) == ["one", "two", "none"]
    assert sum(agent["experts"].values()) == pytest.approx(agent["risky"], abs=1e-12)
    json.dumps(agent, allow_nan=False)
