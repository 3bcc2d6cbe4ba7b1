"""Monthly bars from the prices to the report: an agent is trained, judged and refused on days."""

from __future__ import annotations

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
from finflow.training.checkpoints.checkpoint_reader import check_same_features, read_checkpoint
from finflow.training.trainer import FinFlowTrainer

MONTHS = {
    "market__train_end": "1995-12-31",
    "market__validation_end": "2000-12-31",
    "env__execution_lag": 0,
    "evaluation__rebalance_every": 1,
    "evaluation__lookback": 36,
    "evaluation__block_length": 6,
}


@pytest.fixture
def monthly(tiny: Callable[..., Config], tmp_path: Path) -> Callable[..., Config]:
    """Makes tiny configurations over 480 months of four assets."""
    rng = np.random.default_rng(0)
    dates = pd.date_range("1970-01-31", periods=480, freq="ME", name="Date")
    returns = 0.008 + 0.04 * rng.standard_normal((480, 1)) + 0.03 * rng.standard_normal((480, 4))
    path = tmp_path / "monthly.csv"
    pd.DataFrame(np.cumprod(1.0 + returns, axis=0), index=dates, columns=list("ABCD")).to_csv(path)
    return lambda **keys: tiny(market__path=str(path), **MONTHS, **keys)


@pytest.mark.usefixtures("quick_reports")
def test_an_agent_of_months_is_trained_and_judged_by_the_year(
    monthly: Callable[..., Config], tiny: Callable[..., Config]
) -> None:
    trainer = FinFlowTrainer(monthly())
    outcome = trainer.train()
    data = trainer.training_data
    assert {"momentum_12_1", "volatility_36"} <= set(data.features.asset_names)
    assert data.features.first_bar == 36
    found = json.loads((outcome.report.parent / "metrics.json").read_text("utf-8"))
    closes = load_panel(trainer.config.market).close[data.split.validation_end :]
    equal = (closes[1:] / closes[:-1] - 1.0).mean(axis=1)
    assert found["strategies"]["equal-weight"]["annual_volatility"] == pytest.approx(
        math.sqrt(12) * equal.std(ddof=1), rel=0.1
    )
    page = outcome.report.read_text("utf-8")
    assert "months, all figures net of costs" in page
    assert "Prices are monthly" in page
    saved = read_checkpoint(trainer.run_folder / "models" / "checkpoint_latest.safetensors")
    check_same_features(saved, data.features)
    with pytest.raises(CheckpointError, match="lacks return_2, return_3"):
        check_same_features(saved, compute_features(load_panel(tiny().market), 500))


def test_an_agent_of_months_has_evidence_out_of_fold(monthly: Callable[..., Config]) -> None:
    """The inverse-volatility reference reads the monthly feature."""
    trainer = FinFlowTrainer(monthly(out_of_fold__blocks=2, out_of_fold__looks=1))
    trainer.train_iql()
    trainer.finetune()
    state = trainer._begin().state.out_of_fold
    assert state is not None
    assert state.evidence is not None
    names = trainer.training_data.features.asset_names
    assert trainer.agent.blend is not None
    assert names[int(trainer.agent.blend[2])] == "volatility_36"
