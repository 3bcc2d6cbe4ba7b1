"""The command: figures in the terminal, kept for the page, and one line where data are missing."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from finflow.cli.exit_status import run_safely
from finflow.market.panel import MarketPanel
from scripts.replicate import __main__ as command
from scripts.replicate import relative_sets
from scripts.replicate.trend_sign import clustered_t, compare_sign, signals
from tests.commands import refusal


def made_prices(drift: float, months: int = 300, assets: int = 5) -> pd.DataFrame:
    """Monthly prices whose expected return keeps its sign for two years."""
    rng = np.random.default_rng(2)
    regimes = np.repeat(rng.choice([-1.0, 1.0], size=(months // 24 + 1, assets)), 24, axis=0)[:months]
    returns = drift * regimes + 0.03 * rng.standard_normal((months, assets))
    dates = pd.date_range("1980-01-31", periods=months, freq="ME", name="Date")
    return pd.DataFrame(50.0 * np.cumprod(1.0 + returns, axis=0), index=dates, columns=list("ABCDE")[:assets])


def sign_of(prices: pd.DataFrame) -> list[float]:
    dates = prices.index.to_numpy(dtype="datetime64[D]")
    panel = MarketPanel(dates=dates, assets=tuple(prices.columns), close=prices.to_numpy())
    return [row.value for row in compare_sign(panel, "made")]


def test_trends_are_found_where_they_are_and_not_where_they_are_not() -> None:
    """At a drift of two thirds of the deviation t is far beyond luck; without one, 3 is luck of one in 300."""
    mean, t, _, pooled = sign_of(made_prices(0.02))
    assert mean > 0.0
    assert min(t, pooled) > 5.0
    _, t, _, pooled = sign_of(made_prices(0.0))
    assert max(abs(t), abs(pooled)) < 3.0


def test_a_signal_is_made_of_the_months_before_it() -> None:
    returns = np.random.default_rng(1).normal(0.01, 0.04, size=(60, 3))
    signs, scaled = signals(returns)
    t = 50
    past = np.prod(1.0 + returns[t - 12 : t], axis=0) - 1.0
    np.testing.assert_array_equal(signs[t - 36], np.where(past > 0.0, 1.0, -1.0))
    np.testing.assert_allclose(scaled[t - 36], returns[t] / returns[t - 36 : t].std(axis=0, ddof=1))
    later = returns.copy()
    later[t + 1 :] = 9.0
    np.testing.assert_array_equal(signals(later)[0][: t - 35], signs[: t - 35])


def test_a_repeated_asset_adds_no_evidence() -> None:
    """Errors clustered by month: five copies of one asset say no more than one."""
    returns = np.random.default_rng(1).normal(0.01, 0.04, size=(200, 1))
    one, five = (clustered_t(*signals(np.repeat(returns, count, axis=1))) for count in (1, 5))
    assert five == pytest.approx(one)


def test_figures_are_printed_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "KEPT", tmp_path / "replication.json")
    made_prices(0.02).to_csv(tmp_path / "monthly.csv")
    assert run_safely(command.main, ["tsmom", "--data", str(tmp_path / "monthly.csv"), "--save"]) == 0
    printed = capsys.readouterr().out
    kept = json.loads((tmp_path / "replication.json").read_text("utf-8"))["tsmom"]
    assert "positive, as in the paper" in printed
    values = {row["what"]: row["value"] for row in kept["rows"]}
    assert list(values) == ["mean a year", "t of the mean", "mean a year, always long", "t of the pooled regression"]
    assert values["mean a year"] > max(0.0, values["mean a year, always long"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "name a replication: demiguel, olmar, pamr, tsmom"),
        (["bollinger"], "name a replication"),
        (["olmar"], "pip download --no-deps universal-portfolios==0.4.17"),
        (["pamr", "--data", "away.whl"], "there is no away.whl"),
        (["demiguel", "--data", "a.csv"], "demiguel reads the factors that arch and linearmodels ship"),
    ],
)
def test_what_cannot_be_is_one_line(
    options: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(relative_sets, "_installed", lambda: None)
    assert words in refusal(capsys, *options, command=partial(run_safely, command.main))
