"""Stored prices of Yahoo are extended by the new bars alone, and what Yahoo has restated since is found and said."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from finflow.errors import MarketError, OutputError
from finflow.market.panel import MarketPanel
from finflow.market.sources.yahoo_cache import OVERLAP, PriceStore
from finflow.trading.live_market import load_prices
from tests.market.conftest import DAYS, FIELDS, Load, Server
from tests.short_trainings import config_in
from tests.trading.conftest import KEYS


@pytest.fixture
def load(load: Load) -> Load:
    """As elsewhere, with the key that extends."""
    return lambda *arguments, **settings: load(*arguments, **{"extend_cache": True, **settings})


def whole(server: Server, load: Load) -> MarketPanel:
    """A download of everything by somebody who has nothing stored."""
    asked = server.asked.copy()
    panel = load(folder="other", use_cache=False)
    server.asked[:] = asked
    return panel


def test_only_new_bars_are_asked_for_day_after_day(server: Server, load: Load) -> None:
    first = load()
    assert str(first.dates[-1]) == str(DAYS[59].date())
    for day in (61, 62):
        server.today = DAYS[day]
        server.asked.clear()
        panel = load()
        begin = str(DAYS[day - OVERLAP - 1].date())
        assert sorted(server.asked) == [(name, begin) for name in ("AAA", "BBB", "CCC")]
        assert panel.sha256 == whole(server, load).sha256
        assert panel.until(first.n_bars).sha256 == first.sha256
        assert "restated" not in panel.provenance


def test_several_days_at_once_and_none_at_all(server: Server, load: Load) -> None:
    load()
    server.asked.clear()
    assert load().n_bars == 60
    assert not server.asked  # no bar has ended since
    server.today = DAYS[75]
    assert load(extend_cache=False).n_bars == 60
    assert not server.asked  # nor without the key
    panel = load()
    assert panel.n_bars == 75
    assert panel.provenance["extended"] == f"15 bars after {DAYS[59].date()}"
    assert panel.sha256 == whole(server, load).sha256


@pytest.mark.parametrize(("factor", "shown"), [(0.5, "0.5"), (0.9953, "0.9953")])
def test_a_restated_ticker_is_fetched_anew_and_named(server: Server, load: Load, factor: float, shown: str) -> None:
    """A split (all prices), and a dividend (the adjusted ones): the whole history of that ticker, and of no other."""
    before = load()
    server.today = DAYS[65]
    table = server.charts["BBB"]
    if factor == 0.5:
        table[list(FIELDS[:4])] *= factor
        table["volume"] /= factor
        table["adjusted"] *= factor
    else:
        table.loc[: DAYS[61], "adjusted"] *= factor
    server.asked.clear()
    panel = load()
    begin = str(DAYS[60 - OVERLAP].date())
    assert {one for one in server.asked if one[1] != begin} == {("BBB", "1900-01-01")}
    assert panel.provenance["restated"] == f"BBB by {shown} ({DAYS[64].date()})"
    assert panel.sha256 == whole(server, load).sha256  # so that no return at the join is one that nobody earned
    np.testing.assert_array_equal(panel.close[:60, 0], before.close[:, 0])
    np.testing.assert_allclose(panel.close[:60, 1], before.close[:, 1] * factor, rtol=1e-12)
    server.today = DAYS[70]
    assert load().provenance["restated"] == f"BBB by {shown} ({DAYS[64].date()})"  # it stays known


def test_noise_of_single_precision_is_no_restatement(server: Server, load: Load) -> None:
    first = load()
    server.today = DAYS[65]
    server.charts["AAA"]["adjusted"] = server.charts["AAA"]["adjusted"].astype(np.float32).astype(float)
    panel = load()
    assert "restated" not in panel.provenance
    assert panel.until(60).sha256 == first.sha256


def test_a_ticker_that_ended_long_ago_is_not_asked_for(server: Server, load: Load) -> None:
    server.put("OLD", 7, DAYS[:30])
    load()
    server.today = DAYS[66]
    server.asked.clear()
    panel = load()
    assert "OLD" not in {name for name, _ in server.asked}
    assert panel.listed.sum(axis=0).tolist() == [66, 66, 66, 30]
    assert panel.sha256 == whole(server, load).sha256


def test_a_holiday_of_one_exchange_is_left_out_and_counted_once(server: Server, load: Load) -> None:
    server.charts["CCC"] = server.charts["CCC"].drop([DAYS[55], DAYS[62]])
    assert load().provenance["dates_dropped"] == 1
    server.today = DAYS[70]
    panel = load()
    assert panel.provenance["dates_dropped"] == 2
    assert panel.n_bars == 68
    assert panel.sha256 == whole(server, load).sha256


def test_without_a_network_the_reason_is_said_and_nothing_is_lost(server: Server, load: Load) -> None:
    first = load()
    server.today = DAYS[65]
    server.fail(ConnectionError("Could not resolve host: query2.finance.yahoo.com"))
    with pytest.raises(MarketError, match="check the network"):
        load()
    assert load(extend_cache=False).sha256 == first.sha256


def test_todays_prices_of_a_run_are_the_extended_ones(server: Server, load: Load, tmp_path: Path) -> None:
    """As `--mode decide` asks: the configuration of a run, which does not extend by itself."""
    keys = {**KEYS, "market.source": "yfinance", "market.tickers": ["AAA", "BBB", "CCC"], "market.test_end": None}
    config = config_in(tmp_path, {**keys, "market.cache_dir": str(tmp_path / "store")})
    assert load_prices(config).n_bars == 60
    server.today = DAYS[65]
    assert load_prices(config).n_bars == 60
    server.asked.clear()
    assert load_prices(config, fresh=True).n_bars == 65
    assert {first for _, first in server.asked} == {str(DAYS[60 - OVERLAP].date())}


REQUEST = {"source": "test", "tickers": ["A"], "start": None}
FRAME = pd.DataFrame({"close/A": [1.0, 2.0]}, index=pd.DatetimeIndex(["2020-01-01", "2020-01-02"], name="Date"))


@pytest.mark.parametrize("damage", ["flip", "empty", "facts", "swapped"])
def test_damage_is_noticed_and_never_returned(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    store = PriceStore(tmp_path)
    store.put(REQUEST, FRAME, {"adjusted": "yes"})
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    store.put({**REQUEST, "start": "2019-01-01"}, FRAME * 2.0, {})
    (other,) = set(tmp_path.iterdir()) - {file}
    changes = {"flip": content[:400] + bytes([content[400] ^ 1]) + content[401:], "empty": b"\xff\xff"}
    changes |= {"facts": content.replace(b'"yes"', b'"yea"'), "swapped": other.read_bytes()}
    file.write_bytes(changes[damage])
    with caplog.at_level(logging.WARNING, "finflow"):
        assert store.get(REQUEST) is None
    assert "damaged" in caplog.text
    store.put(REQUEST, FRAME, {})
    assert store.get(REQUEST) is not None


def test_a_stop_while_prices_are_stored_leaves_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PriceStore(tmp_path)
    store.put(REQUEST, FRAME, {})
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.put(REQUEST, FRAME * 2.0, {})
    assert store.get(REQUEST).frame["close/A"].tolist() == [1.0, 2.0]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match=r"market\.cache_dir"):
        PriceStore(tmp_path / "file").put(REQUEST, FRAME, {})
