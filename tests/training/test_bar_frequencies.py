"""Weekly and monthly bars from the prices to the report and a paper account: all count the bars of their year."""

from __future__ import annotations

import datetime as dt
import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from finflow.config import Config
from finflow.errors import CheckpointError
from finflow.market.features.feature_set import compute_features
from finflow.market.sources.panel_loader import load_panel
from finflow.trading.decide_mode import Request
from finflow.trading.paper_page import Expectation
from finflow.trading.paper_trading import trade_on_paper
from finflow.training.checkpoints.checkpoint_reader import check_same_features, read_checkpoint
from finflow.training.data.training_data import prepare
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import Make, latest, train_through


class Rhythm(NamedTuple):
    """Bars of a frequency: their dates and drift, the keys, and what is said of them."""

    dates: pd.DatetimeIndex
    drift: float
    keys: dict[str, object]
    year: int
    volatility: str
    words: tuple[str, ...]


WEEKLY = Rhythm(
    pd.date_range("2000-01-07", periods=780, freq="W-FRI", name="Date"),
    0.002,
    {
        **{"market__train_end": "2011-06-30", "market__validation_end": "2011-12-31", "env__execution_lag": 1},
        **{"evaluation__rebalance_every": 4, "evaluation__lookback": 52, "evaluation__block_length": 8},
    },
    52,
    "volatility_104",
    ("weeks, all figures net of costs", "mean block 8 weeks", "Prices are weekly"),
)
MONTHLY = Rhythm(
    pd.date_range("1970-01-31", periods=480, freq="ME", name="Date"),
    0.008,
    {
        **{"market__train_end": "1999-12-31", "market__validation_end": "2000-12-31", "env__execution_lag": 0},
        **{"evaluation__rebalance_every": 1, "evaluation__lookback": 36, "evaluation__block_length": 6},
    },
    12,
    "volatility_36",
    ("months, all figures net of costs", "Prices are monthly"),
)


def configured(rhythm: Rhythm, tiny: Make, folder: Path, **keys: object) -> Config:
    """A tiny configuration over bars of four assets."""
    rng, count = np.random.default_rng(0), len(rhythm.dates)
    size = 10.0 * rhythm.drift if rhythm is WEEKLY else 5.0 * rhythm.drift
    returns = rhythm.drift + size * (rng.standard_normal((count, 1)) + 0.75 * rng.standard_normal((count, 4)))
    path = folder / "prices_of_bars.csv"
    pd.DataFrame(np.cumprod(1.0 + returns, axis=0), index=rhythm.dates, columns=list("ABCD")).to_csv(path)
    return tiny(market__path=str(path), **rhythm.keys, **keys)


@pytest.mark.usefixtures("quick_reports")
@pytest.mark.parametrize("rhythm", [WEEKLY, MONTHLY], ids=["weekly", "monthly"])
def test_an_agent_is_trained_judged_and_traded_by_the_year(rhythm: Rhythm, tiny: Make, tmp_path: Path) -> None:
    trainer = FinFlowTrainer(configured(rhythm, tiny, tmp_path))
    outcome = trainer.train()
    data, config = trainer.training_data, trainer.config
    assert {"momentum_12_1", rhythm.volatility} <= set(data.features.asset_names)
    assert data.features.first_bar == int(rhythm.volatility.rpartition("_")[2])
    reports = outcome.report.parent
    found = json.loads((reports / "metrics.json").read_text("utf-8"))
    closes = load_panel(config.market).close[data.split.validation_end :]
    equal = (closes[1:] / closes[:-1] - 1.0).mean(axis=1)
    assert found["strategies"]["equal-weight"]["annual_volatility"] == pytest.approx(
        math.sqrt(rhythm.year) * equal.std(ddof=1), rel=0.1
    )
    page = outcome.report.read_text("utf-8")
    assert [words for words in rhythm.words if words not in page] == []
    saved = read_checkpoint(latest(trainer))
    check_same_features(saved, data.features)
    with pytest.raises(CheckpointError, match="lacks return_2, return_"):
        check_same_features(saved, compute_features(load_panel(tiny().market), 500))
    if rhythm is WEEKLY:
        account = trade_on_paper(Request((trainer.run_folder,), first=dt.date(2014, 1, 3))).numbers
        returns = pd.read_csv(reports / "returns.csv", index_col="date")[found["agent"]]
        expected = Expectation.of(returns[returns.index < "2014-01-03"].to_numpy(dtype=np.float64), 52)
        assert expected is not None
        lived = [day for day in account.days if not math.isnan(day.simple_return)]
        low, high = expected.band(np.array([lived[0].simple_return]))
        capital = config.env.initial_capital
        assert (lived[0].low, lived[0].high) == pytest.approx((capital * low[0], capital * high[0]))


def test_an_agent_of_months_has_evidence_out_of_fold(tiny: Make, tmp_path: Path) -> None:
    """The inverse-volatility reference reads the monthly feature."""
    trainer = train_through(configured(MONTHLY, tiny, tmp_path, out_of_fold__blocks=2, out_of_fold__looks=1))
    state = trainer._begin().state.out_of_fold
    assert state is not None
    assert state.evidence is not None
    assert trainer.agent.blend is not None
    assert trainer.training_data.features.asset_names[int(trainer.agent.blend[2])] == "volatility_36"


def test_the_reference_of_quarters_reads_their_longest_volatility(tiny: Make, tmp_path: Path) -> None:
    quarters = pd.date_range("1900-03-31", periods=400, freq="QE", name="Date")
    keys = {**MONTHLY.keys, "market__train_end": "1979-12-31", "market__validation_end": "1984-12-31"}
    quarterly = MONTHLY._replace(dates=quarters, keys=keys, year=4)
    data = prepare(configured(quarterly, tiny, tmp_path))
    column, deviation = data.log_volatility
    volatilities = [name for name in data.features.asset_names if name.removeprefix("volatility_").isdigit()]
    assert len(volatilities) > 1
    assert data.features.asset_names[column] == max(volatilities, key=lambda name: int(name.partition("_")[2]))
    assert deviation > 0.0
