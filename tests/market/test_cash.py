"""What cash earns is known when it is agreed: a rate counts from its date on, and never before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from finflow.config import Config, MarketConfig, dump_config, load_config
from finflow.errors import ConfigError, MarketError
from finflow.market.panel import MarketPanel
from finflow.market.sources.cash import treasury_bills
from finflow.market.sources.panel_loader import load_panel
from finflow.training.judging.held_out import cash_rate

DAYS = pd.DatetimeIndex(pd.bdate_range("2020-01-01", periods=8), name="Date")
RATES = "Date,rate\n2019-12-15,0.05\n2020-01-03,0.02\n2020-01-04,\n2020-01-05,-0.01\n2020-01-09,0.1\n"


def daily(rate: float) -> float:
    return float((1.0 + rate) ** (1.0 / 252.0) - 1.0)


def load(folder: Path, rates: str | Path | float, days: pd.DatetimeIndex = DAYS, **settings: Any) -> MarketPanel:
    prices = pd.DataFrame(np.arange(2.0 * len(days)).reshape(-1, 2) + 5.0, index=days, columns=["A", "B"])
    prices.to_csv(folder / "prices.csv")
    if isinstance(rates, str) and rates != "treasury-bills":
        (folder / "rates.csv").write_text(rates)
        rates = folder / "rates.csv"
    values = {"source": "csv", "path": folder / "prices.csv", "cash_rate": rates, **settings}
    return load_panel(MarketConfig.model_validate(values))


def test_a_bar_earns_the_rate_in_force_at_the_bar_before(tmp_path: Path) -> None:
    """Bars: 1 January 2020 (Wednesday), 2, 3, 6, 7, 8, 9, 10. The rate of the 3rd is earned from the 3rd to the 6th."""
    panel = load(tmp_path, RATES)
    expected = [0.0, daily(0.05), daily(0.05), daily(0.02), daily(-0.01), daily(-0.01), daily(-0.01), daily(0.1)]
    assert panel.cash_returns.tolist() == expected
    assert panel.provenance["cash_rate"] == "series of rates.csv, in force from each date on, the last one 2020-01-09"
    assert len(panel.provenance["cash_sha256"]) == 64


@pytest.mark.parametrize("bars", [2, 4, 7])
def test_later_rates_and_later_bars_change_nothing_before(tmp_path: Path, bars: int) -> None:
    """What was earned up to a bar is the same if the rates from its date on, and the bars after it, are others."""
    whole = load(tmp_path, RATES).cash_returns
    lines = RATES.splitlines()
    kept = [lines[0], *(line for line in lines[1:] if line[:10] < str(DAYS[bars - 1].date()))]
    cut = load(tmp_path, "\n".join([*kept, f"{DAYS[bars - 1].date()},0.9"]), DAYS[:bars]).cash_returns
    assert cut.tolist() == whole[:bars].tolist()


def test_a_series_of_one_value_is_that_rate(tmp_path: Path) -> None:
    series = load(tmp_path, "day,r\n2000-01-01,0.03\n")
    number = load(tmp_path, 0.03)
    assert series.sha256 == number.sha256
    assert number.provenance["cash_rate"] == 0.03


def test_parquet_and_csv_are_read_alike(tmp_path: Path) -> None:
    frame = pd.DataFrame({"rate": [0.05, 0.02]}, index=pd.DatetimeIndex(["2019-12-15", "2020-01-03"], name="Date"))
    frame.to_parquet(tmp_path / "rates.parquet")
    text = "Date,rate\n2019-12-15,0.05\n2020-01-03,0.02\n"
    assert load(tmp_path, tmp_path / "rates.parquet").sha256 == load(tmp_path, text).sha256


BAD = {
    "too late": (
        RATES.replace("2019-12-15", "2020-01-02"),
        ["rates.csv", "begin on 2020-01-02", "2020-01-01", "start"],
    ),
    "percent": (RATES.replace("0.05", "5.25"), ["rates.csv, line 2", "5.25", "fractions, 0.0525"]),
    "minus everything": (RATES.replace("0.05", "-1"), ["rates.csv, line 2", "above -1"]),
    "text": (RATES.replace("0.05", "five"), ["rates.csv, line 2", "'rate'", "'five'"]),
    "unsorted": (RATES.replace("2019-12-15", "2020-01-08"), ["line 3", "follows 2020-01-08", "sort"]),
    "twice": (RATES.replace("2020-01-05", "2020-01-04"), ["line 5", "2020-01-04 appears twice"]),
    "no rates": ("Date,rate\n2020-01-01,\n", ["has no rates"]),
    "no rows": ("Date,rate\n", ["has no rates"]),
    "no rate column": ("Date\n2020-01-01\n", ["one column only"]),
    "many columns": ("Date,a,b\n2020-01-01,0.1,0.1\n", ["two columns", "a, b"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_series_is_one_clear_line(tmp_path: Path, case: str) -> None:
    text, words = BAD[case]
    with pytest.raises(MarketError) as caught:
        load(tmp_path, text)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_rate_is_a_number_or_a_path_and_nothing_between() -> None:
    assert load_config(overrides={"market.cash_rate": "0.03"}, environ={}).market.cash_rate == 0.03
    for wrong in ("2", "-1", '"0.03"', "true", "[1]"):
        with pytest.raises(ConfigError, match=r"a number above -1 and at most 1 or a path"):
            load_config(overrides={"market.cash_rate": wrong}, environ={})


@pytest.mark.parametrize("rate", [Path("rates.csv"), "treasury-bills"])
def test_a_configuration_with_a_series_survives_its_file(tmp_path: Path, rate: Path | str) -> None:
    config = load_config(overrides={"market.cash_rate": str(rate)}, environ={})
    assert config.market.cash_rate == rate
    (tmp_path / "config.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "config.yaml", environ={}) == config
    assert Config.model_validate_json(config.model_dump_json()) == config


def test_the_report_says_what_cash_earned(tmp_path: Path) -> None:
    assert cash_rate(load(tmp_path, 0.03)) == "3.00% a year"
    assert cash_rate(load(tmp_path, 0.0)) == "0.00% a year"
    assert cash_rate(load(tmp_path, RATES)).startswith("-1.00% to 10.00% a year, ")


def test_the_bars_before_the_start_do_not_ask_for_rates(tmp_path: Path) -> None:
    later = {"train_end": "2030-01-01", "validation_end": "2031-01-01"}
    panel = load(tmp_path, RATES.replace("2019-12-15", "2020-01-02"), start="2020-01-02", **later)
    assert panel.cash_returns[1] == daily(0.05)


def test_treasury_bills_by_name_earn_what_their_month_returned(tmp_path: Path) -> None:
    """Monthly bars: the return of each month is that of the data library, known when the month begins."""
    days = pd.DatetimeIndex(pd.date_range("2007-12-31", periods=6, freq="ME"), name="Date")
    settings = {"train_end": "2008-02-29", "validation_end": "2008-03-31"}
    panel = load(tmp_path, "treasury-bills", days, **settings)
    np.testing.assert_allclose(panel.cash_returns[1:], [0.0021, 0.0013, 0.0017, 0.0018, 0.0018], atol=1e-12)
    assert panel.provenance["cash_rate"].startswith("series of treasury-bills, in force")
    assert len(panel.provenance["cash_sha256"]) == 64


def test_daily_bars_earn_the_rate_that_was_known_the_day_before(tmp_path: Path) -> None:
    days = pd.DatetimeIndex(pd.bdate_range("2008-01-28", periods=8), name="Date")
    panel = load(tmp_path, "treasury-bills", days)
    january, february = (daily((1.0 + month) ** 12 - 1.0) for month in (0.0021, 0.0013))
    expected = [0.0, january, january, january, february, february, february, february]
    np.testing.assert_allclose(panel.cash_returns, expected, atol=1e-15)


def test_prices_beyond_the_bills_are_refused_unless_they_are_unused(tmp_path: Path) -> None:
    days = pd.DatetimeIndex(pd.bdate_range("2018-06-01", periods=250), name="Date")
    with pytest.raises(MarketError, match="ends on 2018-11-30, and the prices that are used on 2019-05-16"):
        load(tmp_path, "treasury-bills", days)
    windows = {"train_end": "2018-08-31", "validation_end": "2018-10-31", "test_end": "2018-11-30"}
    assert load(tmp_path, "treasury-bills", days, **windows).n_bars == 250
    early = pd.DatetimeIndex(pd.bdate_range("1926-01-04", periods=20), name="Date")
    with pytest.raises(MarketError, match="begin on 1926-06-30, after the first bar"):
        load(tmp_path, "treasury-bills", early)


def test_treasury_bills_agree_with_the_other_package_that_ships_them() -> None:
    french = pytest.importorskip("finflow.market.sources.shipped_prices")
    pytest.importorskip("linearmodels")
    other, bills = french.french_portfolios(), treasury_bills()
    assert other.cash is not None
    months = other.tables["close"].index[1:]
    ends = pd.DatetimeIndex(bills.dates) + pd.offsets.MonthEnd(1)
    own = pd.Series((1.0 + bills.rates) ** (1.0 / 12.0) - 1.0, ends)[months]
    np.testing.assert_allclose(own, other.cash[1:], atol=2e-4)  # either has been corrected since, by .01 % a month
