"""Backtests of made-up strategies on random walks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from finflow.evaluation.backtest import Backtest
from finflow.evaluation.results import ReportData

STRATEGIES = ("buy-and-hold", "equal-weight", "risk-parity")
DAYS = 400


def make_backtest(name: str, steps: int = DAYS, seed: int = 0, *, explained: bool = False) -> Backtest:
    """A backtest of three assets and cash with a market that strategies share."""
    market = np.random.default_rng(99).normal(4e-4, 0.01, steps)
    generator = np.random.default_rng(seed)
    dates = pd.bdate_range("2016-01-04", periods=steps).to_numpy().astype("datetime64[D]")
    turnover = np.abs(generator.normal(0.0, 0.02, steps))
    explanation = None
    if explained:
        explanation = {
            "gate": generator.dirichlet(np.ones(5), steps),
            "experts": generator.dirichlet(np.ones(4), (steps, 5)),
            "trade_rate": generator.uniform(size=steps),
        }
    return Backtest(
        name=name,
        dates=dates,
        returns=market + generator.normal(0.0, 0.003, steps) - 0.0015 * turnover,
        cash_returns=np.full(steps, 4e-5),
        costs=0.0015 * turnover,
        turnover=turnover,
        weights=generator.dirichlet(np.ones(4), steps),
        assets=("AAA", "BBB", "<CCC>", "cash"),
        explanation=explanation,
    )


def make_training() -> pd.DataFrame:
    """A training record as `metrics.jsonl` gives it: columns that only some rows fill."""
    offline = [{"phase": "offline", "update": u, "v_loss": 1.0 / (1 + u)} for u in range(0, 50, 5)]
    online = [{"phase": "online", "update": u, "episode": u, "actor_loss": -u / 50.0} for u in range(0, 100, 5)]
    online[0]["validation_sharpe"] = 0.5
    online[10]["validation_sharpe"] = 0.75
    return pd.DataFrame([*offline, *online])


def make_data(**changes: object) -> ReportData:
    """A report with everything in it; `changes` replace fields."""
    data = ReportData(
        title="Agent & <script>alert(1)</script>",
        agent=make_backtest("agent", seed=1, explained=True),
        strategies=tuple(make_backtest(name, seed=2 + i) for i, name in enumerate(STRATEGIES)),
        bootstrap_samples=200,
        confidence=0.95,
        block_length=21,
        seed=7,
        cvar_alpha=0.05,
        training=make_training(),
        facts={"data_source": "<made up>", "costs": {"commission": "10 bp"}, "seeds": [0, 1], "adjusted": True},
        notes=("Survivorship: only <survivors> are here.",),
    )
    return dataclasses.replace(data, **changes)


@pytest.fixture(scope="session")
def backtest() -> Callable[..., Backtest]:
    return make_backtest


@pytest.fixture(scope="session")
def report_data() -> Callable[..., ReportData]:
    return make_data
