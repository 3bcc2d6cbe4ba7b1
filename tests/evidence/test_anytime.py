"""Calibration of the sequential test in small: its nulls are nulls, its tests are those it names, and it is kept."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from finflow.market.panel import MarketPanel
from finflow.trading.paper.expectation import ALPHA
from scripts.evidence import anytime
from scripts.evidence.anytime import AnytimeStudy, anytime_page, first_answers, garch, in_blocks, measure, permuted

SMALL = AnytimeStudy(paths=60, backtest=400, account=252, shifts=(6.0,))


def test_blocks_keep_what_hangs_together_and_lose_the_mean() -> None:
    days = np.arange(1000.0)
    drawn = in_blocks(np.random.default_rng(0), 200, 300, days, 20)
    assert drawn.mean() == pytest.approx(0.0, abs=30.0)
    steps = np.diff(drawn, axis=1)
    assert np.mean(np.isclose(steps, 1.0) | np.isclose(steps, -999.0)) == pytest.approx(0.95, abs=0.01)


def test_portfolios_on_permuted_labels_have_the_mean_of_equal_weight() -> None:
    returns = np.random.default_rng(0).normal(np.linspace(-0.01, 0.01, 6), 0.01, (900, 6))
    drawn = permuted(np.random.default_rng(1), 200, 500, returns)
    assert abs(float(drawn.mean())) < 4.0 * float(drawn.std()) / math.sqrt(drawn.size)


def test_garch_has_unit_variance_and_fat_tails() -> None:
    drawn = garch(np.random.default_rng(0), 400, 1000)
    assert drawn.var() == pytest.approx(1.0, rel=0.15)
    assert stats.kurtosis(drawn.ravel()) > 0.5


def test_the_fixed_test_is_welchs_and_the_repeated_one_looks_from_the_21st_day() -> None:
    rng = np.random.default_rng(5)
    paths = np.expm1(rng.normal(0.0, 0.01, (80, SMALL.bars)))
    found = first_answers(paths, SMALL, shift=1.0)
    logs = np.log1p(paths)
    loss = float(logs.std()) / math.sqrt(252.0)
    ends = stats.ttest_ind(logs[:, SMALL.backtest :] - loss, logs[:, : SMALL.backtest], axis=1, equal_var=False)
    np.testing.assert_array_equal(np.isfinite(found["fixed"]), ends.pvalue < ALPHA)
    assert found["repeated"].min() >= 21.0
    assert (np.isfinite(found["repeated"]) >= np.isfinite(found["fixed"])).all()


def test_looking_every_day_misleads_the_t_test_and_not_the_sequential_one() -> None:
    closes = 100.0 * np.exp(np.cumsum(np.random.default_rng(0).normal(0.0, 0.01, (900, 6)), axis=0))
    dates = np.busday_offset("2015-01-01", np.arange(900), roll="forward")
    rules = {"equal weight": np.random.default_rng(0).standard_t(4, 800) * 0.007}
    result = measure(SMALL, MarketPanel(dates, tuple("ABCDEF"), closes), rules)
    answers = {name: sum(one["answers"][name] for one in result["nulls"]) for name in anytime.TESTS}
    paths = SMALL.paths * len(result["nulls"])
    assert answers["sequential"] / paths <= ALPHA + 0.02, "600 paths: 2 standard deviations of a share of 5 %"
    assert answers["repeated"] / paths > 0.15
    assert {one["law"] for one in result["power"]} == {"normal", "equal weight, blocks of 63 days"}
    for one in result["power"]:
        assert one["answers"]["sequential"] > 0.8 * SMALL.paths
        assert one["median_day"]["sequential"] < SMALL.account


def test_the_table_is_of_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"answers": {"sequential": 2, "repeated": 30, "fixed": 3}}
    days = {"median_day": {"sequential": None, "repeated": 41.0, "fixed": None}}
    monkeypatch.setattr(anytime, "load_panel", lambda market: None)
    monkeypatch.setattr(anytime, "real_days", lambda panel: {})
    made = {
        "nulls": [{"law": "normal", **counts, **days}],
        "power": [{"law": "normal", "shift": 0.5, **counts, **days}],
    }
    monkeypatch.setattr(anytime, "measure", lambda *given: made)
    page = anytime_page(tmp_path / "anytime.json", SMALL)
    assert "| normal | 3.3% (0.4% to 11.5%) | 50.0% (" in page, "2 of 60, Clopper and Pearson"
    assert "| normal | 0.5 | 3.3% | never | 5.0% | 50.0% | 41 |" in page
    monkeypatch.setattr(anytime, "measure", lambda *given: pytest.fail("measured again"))
    assert anytime_page(tmp_path / "anytime.json", SMALL) == page
