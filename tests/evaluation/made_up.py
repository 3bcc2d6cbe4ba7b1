"""Markets, strategies, backtests and reports that are made up."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from finflow.arrays import FloatArray
from finflow.config import EnvConfig, EvaluationConfig, ObjectivesConfig
from finflow.env.decision_process import DecisionProcess
from finflow.env.objective import Moments
from finflow.evaluation.backtest import Backtest, ComparisonContext, run_backtests, with_memos
from finflow.evaluation.page.section import Section
from finflow.evaluation.page.whole_page import Headline, Page
from finflow.evaluation.report.results import ReportData
from finflow.evaluation.statistics.bootstrap import Resampling
from finflow.market.features.feature_set import Features
from finflow.market.panel import MarketPanel
from finflow.strategies.classical import named_strategy
from finflow.strategies.strategy import Information

STRATEGIES = ("buy-and-hold", "equal-weight", "risk-parity")
DAYS = 400


def backtest_of(name: str, steps: int = DAYS, seed: int = 0, *, explained: bool = False) -> Backtest:
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


def returns_of(name: str, returns: FloatArray, start: str = "2010-01-01", cash: float = 0.0) -> Backtest:
    """A backtest of these returns, weekday after weekday, with half in A and half in cash, without trades or costs."""
    days = len(returns)
    dates, nothing = pd.bdate_range(start, periods=days).to_numpy().astype("datetime64[D]"), np.zeros(days)
    return Backtest(name, dates, returns, nothing + cash, nothing, nothing, np.full((days, 2), 0.5), ("A", "cash"))


def section_html(section: Section) -> str:
    """The section as its page has it."""
    page = Page("", "", Headline("", ""), [section]).html()
    return page[page.index("<section id") : page.rindex("</section>") + len("</section>")]


def make_training() -> pd.DataFrame:
    """A training record as `metrics.jsonl` gives it: columns that only some rows fill."""
    offline = [{"phase": "offline", "update": u, "v_loss": 1.0 / (1 + u)} for u in range(0, 50, 5)]
    online = [{"phase": "online", "update": 50 + u, "episode": u, "actor_loss": -u / 50.0} for u in range(0, 100, 5)]
    online[0]["validation_sharpe"] = 0.5
    online[10]["validation_sharpe"] = 0.75
    return pd.DataFrame([*offline, *online])


def report_data(**changes: object) -> ReportData:
    """A report with everything in it; `changes` replace fields."""
    data = ReportData(
        title="Agent & <script>alert(1)</script>",
        agent=backtest_of("agent", seed=1, explained=True),
        strategies=tuple(backtest_of(name, seed=2 + i) for i, name in enumerate(STRATEGIES)),
        resampling=Resampling(200, 21, 7),
        cvar_alpha=0.05,
        training=make_training(),
        facts={"data_source": "<made up>", "costs": {"commission": "10 bp"}, "seeds": [0, 1], "adjusted": True},
        notes=("Survivorship: only <survivors> are here.",),
    )
    return dataclasses.replace(data, **changes)


def process_of(
    bars: int = 700, assets: int = 5, seed: int = 0, start: str = "2007-01-01", **env: Any
) -> DecisionProcess:
    """Random walks with volume, an index and cash that earns; features that say nothing."""
    rng = np.random.default_rng(seed)
    moves = rng.normal(4e-4, 0.01, size=(bars, assets)) + rng.normal(0.0, 0.006, size=(bars, 1))
    close = 50.0 * np.exp(np.cumsum(moves, axis=0))
    panel = MarketPanel(
        dates=pd.bdate_range(start, periods=bars).to_numpy().astype("datetime64[D]"),
        assets=tuple("ABCDEFGH"[:assets]),
        close=close,
        cash_returns=np.append(0.0, np.full(bars - 1, 5e-5)),
        volume=np.full(close.shape, 1e5),
        benchmark=close.mean(axis=1),
        benchmark_name="INDEX",
    )
    return process_on(panel, **env)


def context_of(process: DecisionProcess, window: range, *names: str, **settings: Any) -> ComparisonContext:
    """These named strategies, judged over the window; the first is the one that is judged."""
    config = EvaluationConfig(lookback=20, **settings)
    makers = with_memos({name: partial(named_strategy, name, config) for name in names})
    return ComparisonContext(
        process, window, makers, run_backtests(process, window, [make() for make in makers.values()])
    )


def process_on(panel: MarketPanel, **env: Any) -> DecisionProcess:
    """The process on a panel; ``env`` are keys of the environment's section."""
    features = Features(
        assets=np.zeros((panel.n_bars, panel.n_assets, 1), dtype=np.float32),
        market=np.zeros((panel.n_bars, 1), dtype=np.float32),
        asset_names=("none",),
        market_names=("none",),
        lenses={},
        first_bar=0,
    )
    return DecisionProcess(panel, features, EnvConfig(**env), ObjectivesConfig(), Moments(4e-4, 1e-4))


class Planned:
    """Names these weights, one decision after the other."""

    name = "planned"

    def __init__(self, weights: list[list[float]]) -> None:
        self.weights = np.array(weights)

    def decide(self, information: Information) -> FloatArray:
        return self.weights[information.step]


class Wandering:
    """A new portfolio every day."""

    name = "wandering"

    def __init__(self) -> None:
        self._rng = np.random.default_rng(1)

    def decide(self, information: Information) -> FloatArray:
        return self._rng.dirichlet(np.ones(len(information.portfolio)))
