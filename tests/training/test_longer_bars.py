"""Monthly and weekly bars from the prices to the report: an agent is trained, judged by the year, refused on days."""

from __future__ import annotations

import datetime as dt
import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from finflow.errors import CheckpointError
from finflow.market.features.feature_set import compute_features
from finflow.market.sources.panel_loader import load_panel
from finflow.trading.paper.expectation import Expectation
from finflow.trading.paper.paper_trading import PaperRequest, trade_on_paper
from finflow.training.checkpoints.checkpoint_reader import check_same_features, read_checkpoint
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import Make, latest

pytestmark = pytest.mark.usefixtures("quick_reports")


class Bars(NamedTuple):
    """Prices of one frequency, how an agent is trained on them, and what is said of it."""

    first: str
    frequency: str
    count: int
    a_year: int
    drift: float
    common: float
    own: float
    keys: dict[str, object]
    features: set[str]
    first_bar: int
    said: tuple[str, ...]
    lacks: str


FEW: dict[str, object] = {"train__offline_training_epochs": 1, "train__online_episodes": 4}
MONTHS = Bars(
    *("1970-01-31", "ME", 480, 12, 0.008, 0.04, 0.03),
    {
        **FEW,
        "market__train_end": "1995-12-31",
        "market__validation_end": "2000-12-31",
        "env__execution_lag": 0,
        "evaluation__rebalance_every": 1,
        "evaluation__lookback": 36,
        "evaluation__block_length": 6,
        "out_of_fold__blocks": 2,
        "out_of_fold__looks": 1,
    },
    {"momentum_12_1", "volatility_36"},
    36,
    ("months, all figures net of costs", "Prices are monthly"),
    "lacks return_2, return_3",
)
WEEKS = Bars(
    *("2000-01-07", "W-FRI", 780, 52, 0.002, 0.02, 0.015),
    {
        **FEW,
        "market__train_end": "2009-12-31",
        "market__validation_end": "2011-12-31",
        "env__execution_lag": 1,
        "evaluation__rebalance_every": 4,
        "evaluation__lookback": 52,
        "evaluation__block_length": 8,
    },
    {"momentum_12_1", "volatility_104"},
    104,
    ("weeks, all figures net of costs", "mean block 8 weeks", "Prices are weekly"),
    "lacks return_2, return_4",
)


@pytest.mark.parametrize("bars", [MONTHS, WEEKS], ids=["months", "weeks"])
def test_an_agent_of_longer_bars_is_trained_and_judged_by_the_year(bars: Bars, tiny: Make, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    dates = pd.date_range(bars.first, periods=bars.count, freq=bars.frequency, name="Date")
    common, own = rng.standard_normal((bars.count, 1)), rng.standard_normal((bars.count, 4))
    growth = np.cumprod(1.0 + bars.drift + bars.common * common + bars.own * own, axis=0)
    pd.DataFrame(growth, index=dates, columns=list("ABCD")).to_csv(tmp_path / "long.csv")
    trainer = FinFlowTrainer(tiny(market__path=str(tmp_path / "long.csv"), **bars.keys))
    outcome = trainer.train()
    data, reports = trainer.training_data, outcome.report.parent
    assert bars.features <= set(data.features.asset_names)
    assert data.features.first_bar == bars.first_bar
    found = json.loads((reports / "metrics.json").read_text("utf-8"))
    closes = load_panel(trainer.config.market).close[data.split.validation_end :]
    equal = (closes[1:] / closes[:-1] - 1.0).mean(axis=1)
    volatility = math.sqrt(bars.a_year) * equal.std(ddof=1)
    assert found["strategies"]["equal-weight"]["annual_volatility"] == pytest.approx(volatility, rel=0.1)
    page = outcome.report.read_text("utf-8")
    assert [words for words in bars.said if words not in page] == []
    saved = read_checkpoint(latest(trainer))
    check_same_features(saved, data.features)
    with pytest.raises(CheckpointError, match=bars.lacks):
        check_same_features(saved, compute_features(load_panel(tiny().market), 500))
    if bars is WEEKS:
        check_paper_account(trainer, pd.read_csv(reports / "returns.csv", index_col="date")[found["agent"]])
    else:
        check_evidence(trainer)


def check_evidence(trainer: FinFlowTrainer) -> None:
    """The inverse-volatility reference reads the monthly feature."""
    state = trainer._begin().state.out_of_fold
    assert state is not None
    assert state.evidence is not None
    assert trainer.agent.blend is not None
    assert trainer.training_data.features.asset_names[int(trainer.agent.blend[2])] == "volatility_36"


def check_paper_account(trainer: FinFlowTrainer, returns: pd.Series) -> None:
    """The band around a paper account's days counts 52 to a year too."""
    account = trade_on_paper(PaperRequest((trainer.run_folder,), first=dt.date(2014, 1, 3))).numbers
    expected = Expectation.of(returns[returns.index < "2014-01-03"].to_numpy(dtype=np.float64), 52)
    assert expected is not None
    lived = [day for day in account.days if not math.isnan(day.simple_return)]
    low, high = expected.band(np.array([lived[0].simple_return]))
    capital = trainer.config.env.initial_capital
    assert (lived[0].low, lived[0].high) == pytest.approx((capital * low[0], capital * high[0]))
