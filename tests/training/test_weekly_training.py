"""Weekly bars from the prices to the report and to a paper account: all of them count 52 to a year."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from finflow.config import Config
from finflow.errors import CheckpointError
from finflow.market.features.feature_set import compute_features
from finflow.market.sources.panel_loader import load_panel
from finflow.trading.deciding import Request
from finflow.trading.paper.expectation import Expectation
from finflow.trading.paper.paper_trading import trade_on_paper
from finflow.training.checkpoints.checkpoint_reader import check_same_features, read_checkpoint
from finflow.training.trainer import FinFlowTrainer

WEEKS = {
    "market__train_end": "2009-12-31",
    "market__validation_end": "2011-12-31",
    "env__execution_lag": 1,
    "evaluation__rebalance_every": 4,
    "evaluation__lookback": 52,
    "evaluation__block_length": 8,
}


@pytest.fixture
def weekly(tiny: Callable[..., Config], tmp_path: Path) -> Config:
    """A tiny configuration over 780 weeks of four assets."""
    rng = np.random.default_rng(0)
    dates = pd.date_range("2000-01-07", periods=780, freq="W-FRI", name="Date")
    returns = 0.002 + 0.02 * rng.standard_normal((780, 1)) + 0.015 * rng.standard_normal((780, 4))
    path = tmp_path / "weekly.csv"
    pd.DataFrame(np.cumprod(1.0 + returns, axis=0), index=dates, columns=list("ABCD")).to_csv(path)
    return tiny(market__path=str(path), **WEEKS)


@pytest.mark.usefixtures("quick_reports")
def test_an_agent_of_weeks_is_trained_judged_and_traded_by_the_year(
    weekly: Config, tiny: Callable[..., Config]
) -> None:
    trainer = FinFlowTrainer(weekly)
    outcome = trainer.train()
    features = trainer.training_data.features
    assert {"momentum_12_1", "volatility_104"} <= set(features.asset_names)
    assert features.first_bar == 104
    reports = outcome.report.parent
    found = json.loads((reports / "metrics.json").read_text("utf-8"))
    closes = load_panel(weekly.market).close[trainer.training_data.split.validation_end :]
    equal = (closes[1:] / closes[:-1] - 1.0).mean(axis=1)
    assert found["strategies"]["equal-weight"]["annual_volatility"] == pytest.approx(
        math.sqrt(52) * equal.std(ddof=1), rel=0.1
    )
    page = outcome.report.read_text("utf-8")
    assert "weeks, all figures net of costs" in page
    assert "mean block 8 weeks" in page
    assert "Prices are weekly" in page
    saved = read_checkpoint(trainer.run_folder / "models" / "checkpoint_latest.safetensors")
    check_same_features(saved, features)
    with pytest.raises(CheckpointError, match="lacks return_2, return_4"):
        check_same_features(saved, compute_features(load_panel(tiny().market), 500))

    account = trade_on_paper(Request((trainer.run_folder,), first=dt.date(2014, 1, 3))).numbers
    returns = pd.read_csv(reports / "returns.csv", index_col="date")[found["agent"]]
    before = returns[returns.index < "2014-01-03"].to_numpy(dtype=np.float64)
    expected = Expectation.of(before, 52)
    assert expected is not None
    lived = [day for day in account.days if not math.isnan(day.simple_return)]
    low, high = expected.band(np.array([lived[0].simple_return]))
    capital = weekly.env.initial_capital
    assert (lived[0].low, lived[0].high) == pytest.approx((capital * low[0], capital * high[0]))
