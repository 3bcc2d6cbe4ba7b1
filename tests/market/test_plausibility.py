"""Files of forty kinds: none is read wrongly without a finding, and no clean one is refused or warned of."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from finflow.cli.modes import main
from finflow.config import MarketConfig
from finflow.errors import MarketError
from finflow.market.panel import MarketPanel, split_panel
from finflow.market.plausibility.checks import find_implausible
from finflow.market.plausibility.finding import in_sentence, in_table
from finflow.market.plausibility.price_notes import opening_lines
from finflow.market.sources.panel_loader import load_panel
from tests.market.fuzzed_files import inspected, readers
from tests.market.made_price_files import FILES, STOCKS_AND_COIN, PriceFile, changed, closes, crypto, scaled
from tests.short_trainings import market_prices


def read(file: PriceFile, folder: Path) -> MarketPanel:
    path = folder / "prices.csv"
    path = file.write(file.right, path) or path
    return load_panel(MarketConfig(**{"source": "csv", "path": path, **file.settings}))


def panel_of(frame: object) -> MarketPanel:
    return MarketPanel(frame.index.to_numpy("M8[D]"), tuple(frame), frame.to_numpy())  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_right_or_what_is_wrong_is_said(name: str, tmp_path: Path) -> None:
    file = FILES[name]
    if file.outcome == "refused":
        with pytest.raises(MarketError, match=file.words) as caught:
            read(file, tmp_path)
        assert "\n" not in str(caught.value)
        return
    panel = read(file, tmp_path)
    assert panel.assets == tuple(file.right)
    np.testing.assert_array_equal(panel.dates, file.right.index.to_numpy("M8[D]"))
    np.testing.assert_allclose(panel.close, file.right.to_numpy(), rtol=1e-12)
    found = find_implausible(panel)
    if file.outcome == "clean":
        assert found == []
        return
    assert re.search(file.words, " ".join(found[0]))
    table = in_table(found)
    assert table[1].startswith(f"{found[0].check} ")
    assert f"{found[0].check}: {found[0].remedy}" in table


def test_there_are_forty_kinds_and_half_of_them_are_clean() -> None:
    assert Counter(file.outcome for file in FILES.values()) == {"clean": 20, "found": 14, "refused": 6}


@pytest.mark.parametrize("market", [MarketConfig(), MarketConfig(source="french"), MarketConfig(source="synthetic")])
def test_markets_that_finflow_brings_are_plausible(market: MarketConfig) -> None:
    assert [one for one in find_implausible(load_panel(market)) if one.check != "return"] == []


@pytest.mark.parametrize(("split", "words"), [(2.0, "2 for 1"), (1.5, "3 for 2"), (7.0, "7 for 1"), (0.1, "1 for 10")])
def test_a_split_that_prices_are_not_adjusted_for_is_named_with_its_ratio(split: float, words: str) -> None:
    prices = market_prices(bars=400)
    prices.iloc[250:, 2] /= split
    panel = panel_of(prices)
    (found,) = find_implausible(panel)
    assert (found.check, found.ticker, found.date) == ("split", "C", str(panel.dates[250]))
    assert f"as after a split of {words}" in found.value
    assert f"divide the prices before {panel.dates[250]} by {split:g}, or give an Adj Close" in found.remedy
    prices.iloc[:250, 2] /= split
    assert find_implausible(panel_of(prices)) == []
    assert find_implausible(panel, since=251) == []


def test_crashes_of_the_whole_market_and_wild_assets_are_no_splits() -> None:
    rng = np.random.default_rng(0)
    crash = market_prices(bars=400)
    crash.iloc[250:] /= 2.0
    wild = market_prices(bars=400)
    wild["A"] = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 0.15, 400)))
    for prices in (crash, wild, market_prices(bars=400)):
        assert find_implausible(panel_of(prices)) == []


def test_of_two_assets_one_may_split() -> None:
    """The move of the market is that of the others: with it, half of the split would count as the market's own."""
    panel = panel_of(changed(scaled(slice(150, None), 1, 0.01), names=("AAA", "BBB")))
    (found,) = find_implausible(panel)
    assert (found.check, found.ticker) == ("unit", "BBB")


def test_what_begins_a_run_names_the_market_its_windows_and_its_findings(tmp_path: Path) -> None:
    split = FILES["unadjusted split"]
    lines = opening_lines(read(split, tmp_path))
    assert lines[0].startswith(
        "3 assets, 300 bars of one day from 2015-01-05 to 2016-02-26, 252 a year; benchmark none"
    )
    assert lines[1].split() == ["prices", "to", "look", "at", "ticker", "date", "value"]
    assert lines[2].startswith("split              BBB     2015-08-03  price times 0.251, as after a split of 4 for 1")
    assert in_sentence(find_implausible(panel_of(split.right))).startswith(
        "prices to look at: split: BBB on 2015-08-03 ("
    )
    assert in_sentence([]) == ""
    assert len(opening_lines(panel_of(closes()))) == 1


def test_files_with_random_faults_are_read_or_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten thousand of each are read by `make evidence`."""
    outcomes = Counter(outcome for seed in range(300) for outcome in readers(tmp_path, seed))
    outcomes.update(inspected(tmp_path, seed) for seed in range(1000, 1150))
    assert set(outcomes) == {"read", "refused"}
    assert min(outcomes.values()) > 20
    assert "fault in finflow" not in capsys.readouterr().err


def coin_beside_stocks(folder: Path, **settings: object) -> MarketPanel:
    STOCKS_AND_COIN.to_csv(folder / "prices.csv")
    return load_panel(MarketConfig(**{"source": "csv", "path": folder / "prices.csv", **settings}))  # type: ignore[arg-type]


def test_dates_that_count_are_those_of_all_of_any_or_of_one(tmp_path: Path) -> None:
    """A week of stocks has five bars; a return of the coin over a weekend is that of the whole weekend."""
    union = coin_beside_stocks(tmp_path, max_gap=3)
    both = coin_beside_stocks(tmp_path, align="intersection")
    one = coin_beside_stocks(tmp_path, align="AAA")
    assert (union.bars_per_year, both.bars_per_year, one.bars_per_year) == (365, 252, 252)
    assert (union.n_bars, both.n_bars) == (398, 285)
    assert both.sha256 == one.sha256
    np.testing.assert_array_equal(both.close, STOCKS_AND_COIN.dropna().to_numpy())
    assert [finding.check for finding in find_implausible(union)] == ["calendars"]
    assert find_implausible(both) == []
    with pytest.raises(MarketError, match=r"market.align, union, intersection or a ticker, 'AAB' is not in .*'AAA'"):
        coin_beside_stocks(tmp_path, align="AAB")


def test_a_dividend_on_a_date_that_does_not_count_is_paid_at_the_next(tmp_path: Path) -> None:
    frame = STOCKS_AND_COIN[["AAA", "COIN"]]
    frame.to_csv(tmp_path / "close.csv")
    saturday = frame.index[5]
    assert np.isnan(frame.loc[saturday, "AAA"])
    paid = frame * 0.0
    paid.loc[saturday, "COIN"] = 1.5
    paid.fillna(0.0).to_csv(tmp_path / "dividends.csv")
    panel = load_panel(MarketConfig(source="csv", path=tmp_path, align="AAA", dividends="cash"))
    money = np.asarray(panel.dividends) * panel.share_closes
    assert money[panel.dates == np.datetime64("2015-01-12"), 1] == pytest.approx(1.5)
    assert money.sum() == pytest.approx(1.5)


def test_assets_that_end_together_before_the_last_row_are_named(tmp_path: Path) -> None:
    """Today's row before the close has prices of what trades already: the others would count as delisted."""
    frame = closes()
    frame.iloc[-1, :2] = np.nan
    (found,) = find_implausible(panel_of(frame))
    assert (found.check, found.ticker, found.date) == ("end", "AAA, BBB", "2016-02-25")


def test_windows_that_hardly_suit_the_prices_are_said_with_better_ones() -> None:
    """Prices from 2010 on under the default windows have two years to learn from."""
    panel = panel_of(closes(bars=4000).set_axis(pd.bdate_range("2010-01-04", periods=4000), axis=0))
    lines = opening_lines(panel, split_panel(panel, MarketConfig()))
    assert "; training 520 bars to 2011-12-30; validation 1,044 bars to 2015-12-31; test 2,436 bars" in lines[0]
    assert lines[1].startswith(
        "warning: most bars are in the test window, and 520 are left to learn from; windows that"
    )
    assert "--set market.train_end=2019-03-15 --set market.validation_end=2022-04-08" in lines[1]
    better = MarketConfig(train_end=dt.date(2019, 3, 15), validation_end=dt.date(2022, 4, 8))
    assert len(opening_lines(panel, split_panel(panel, better))) == 1


@pytest.mark.parametrize(
    ("stamps", "days"),
    [
        (["2024-03-04T00:00+09:00", "2024-03-05T00:00+09:00"], ["2024-03-04", "2024-03-05"]),
        (["2024-03-29 16:30:00+00:00", "2024-04-02 16:30:00+01:00"], ["2024-03-29", "2024-04-02"]),  # London's summer
        (["2024-03-04T05:00:00Z", "2024-03-05T05:00:00Z"], ["2024-03-04", "2024-03-05"]),  # New York's midnight
        (["20240304", "20240305"], ["2024-03-04", "2024-03-05"]),
    ],
)
def test_the_day_of_a_time_stamp_is_that_of_the_exchange(stamps: list[str], days: list[str], tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text("Date,A,B\n" + "".join(f"{stamp},1,2\n" for stamp in stamps))
    panel = load_panel(MarketConfig(source="csv", path=tmp_path / "prices.csv"))
    assert [str(day) for day in panel.dates] == days


@pytest.mark.parametrize(
    ("cells", "close"),
    [
        ("1.234.567;99,5", (1234567.0, 99.5)),
        ("1.234,50;1.000", (1234.5, 1000.0)),
        ('"1,234.50";"2,000"', (1234.5, 2000.0)),
        ("0.123;9", (0.123, 9.0)),
        ("109.123;0.5", None),
        ("1.234.567;1.5", None),
    ],
)
def test_marks_of_numbers_are_read_or_refused(cells: str, close: tuple[float, float] | None, tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text(f"Date;A;B\n2024-03-04;{cells}\n2024-03-05;{cells}\n")
    market = MarketConfig(source="csv", path=tmp_path / "prices.csv")
    if close is None:
        with pytest.raises(MarketError, match=r"line 2: .*(thousands|could be 109123 or 109.123; write)"):
            load_panel(market)
    else:
        assert tuple(load_panel(market).close[0]) == close


@pytest.mark.parametrize("command", ["inspect", "backtest"])
def test_findings_are_on_the_terminal(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finflow.training.judging.held_out.sections_of", lambda *_: ())  # sweeps take their time
    path = tmp_path / "prices.csv"
    changed(scaled(slice(700, None), 1, 0.25), bars=1000).to_csv(path)
    windows = {"source": "csv", "path": path, "train_end": "2016-12-31", "validation_end": "2017-03-20"}
    sets = [part for key, value in windows.items() for part in ("--set", f"market.{key}={value}")]
    logs = ["--set", f"output.logs_dir={tmp_path}", "--set", "evaluation.bootstrap_samples=100"]
    last = [str(path)] if command == "inspect" else ["--strategy", "equal-weight", *sets, *logs]
    assert main(["--mode", command, *last]) == 0
    shown = capsys.readouterr().out
    assert "split              BBB     2017-09-11  price times 0.249, as after a split of 4 for 1\n" in shown
    assert "divide the prices before 2017-09-11 by 4, or give an Adj Close" in shown
    if command == "inspect":
        assert "prices.csv: one column an asset; separated by commas, decimal points\n" in shown
        assert "  BBB  2015-01-05 to 2018-11-02   1,000 bars, 91.52 to " in shown
    else:
        (report,) = tmp_path.rglob("report.html")
        assert "as after a split of 4 for 1" in report.read_text("utf-8")
        assert "dividends and splits count only if its prices are adjusted" in report.read_text("utf-8")


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (changed(lambda values: np.multiply(values[150:], 100.0, out=values[150:])), "unit AAA .* 1e\\+02"),
        (closes().assign(No=[*np.arange(1.0, 300.0), np.nan]), "row numbers No"),
        (crypto().assign(DAI=1.0 + np.random.default_rng(0).normal(0.0, 0.008, 400)), "level DAI .* gross returns"),
        (closes().assign(NEW=[np.nan] * 250 + [1234.0] * 50), "constant NEW|stale NEW"),
    ],
)
def test_kinds_that_a_second_reader_found_are_said(frame: pd.DataFrame, words: str, tmp_path: Path) -> None:
    frame.to_csv(tmp_path / "prices.csv")
    panel = load_panel(MarketConfig(source="csv", path=tmp_path / "prices.csv"))
    assert re.search(words, " ".join(" ".join(finding) for finding in find_implausible(panel)))


def test_marks_after_the_first_lines_count(tmp_path: Path) -> None:
    """An asset that lists late has its first number after hundreds of lines."""
    frame = closes().map(lambda value: f"{value:.2f}".replace(".", ","))
    late = frame.assign(NEW=[""] * 250 + ["1.981"] * 50)
    late.to_csv(tmp_path / "prices.csv", sep=";")
    market = MarketConfig(source="csv", path=tmp_path / "prices.csv")
    with pytest.raises(MarketError, match=r"line 252: 1.981 could be 1981 or 1.981; write"):
        load_panel(market)
    frame.assign(NEW=[""] * 250 + ["1.981,50"] * 50).to_csv(tmp_path / "prices.csv", sep=";")
    assert load_panel(market).close[-1, 3] == 1981.5


def test_the_dates_of_a_ticker_that_is_not_held_may_count(tmp_path: Path) -> None:
    stocks = STOCKS_AND_COIN.assign(COIN2=STOCKS_AND_COIN["COIN"] * 1.1)
    stocks.to_csv(tmp_path / "prices.csv")
    given = {"source": "csv", "path": tmp_path / "prices.csv", "tickers": ("COIN", "COIN2")}
    assert load_panel(MarketConfig(**given, align="AAA")).n_bars == 285
    assert load_panel(MarketConfig(**given, align="intersection", benchmark="AAA")).n_bars == 285
