"""Prices against those of the run and of earlier decisions: what has changed is named, and nothing else is."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from tests.commands import refusal
from tests.trading.conftest import NEXT, Trained

FIRST, UNTIL = "2011-11-10", "2011-12-30"


def test_only_changed_prices_count_as_changed_history(decided: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing changed by a ticker left out or beside, another order or whole bars; a revised close is named."""

    def history(table: pd.DataFrame, *options: str) -> str:
        table.to_csv(decided.prices)
        capsys.readouterr()
        assert decided.decide(*options, "--accept-drift", "--dry-run") == 0
        return re.search(r"^history: (.*)$", capsys.readouterr().out, re.MULTILINE)[1]

    whole = decided.price_table()
    assert decided.decide("--date", NEXT) == 0
    (early,) = [one["said"] for one in decided.decision(NEXT)["checks"] if one["name"] == "history"]
    compared = "the prices of the run cannot be compared"
    assert early == f"{compared} before their last bar, 2011-12-30; those at earlier decisions are unchanged"
    last = ("--date", "2012-01-04")
    for same in (whole, whole[list("DBCA")], whole.assign(E=whole["A"] ** 0.5)):
        assert history(same, *last) == "the prices of the run and of earlier decisions are unchanged"
    held = decided.run / "held.csv"
    held.write_text("ticker,shares\nA,10\ncash,15000\n", "utf-8")
    left = (*last, "--tickers", *"ABD", "--holdings", str(held))
    unchanged = f"{compared} without C; those at earlier decisions are unchanged"
    for table in (whole, whole.drop(columns="C"), whole.assign(C=whole["C"] * 2.0)):
        assert history(table, *left) == unchanged
    revised, split = whole.copy(), whole.copy()
    revised.loc[NEXT, "A"] *= 1.01
    split.loc[:NEXT, "A"] *= 0.5
    for options in (last, left):
        said = history(revised, *options)
        assert f"A was restated by a factor of 1.01, on {NEXT}" in said
        assert ("up to 2011-12-30 they are not those of the run" in said) == (options == last)
        said = history(split, *options)
        assert f"A was restated by a factor of 0.5, up to {NEXT}, as by a split or a dividend" in said


def test_an_account_keeps_its_tickers_and_names_changed_prices(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights are kept by place: another order would give each ticker the money of another."""
    table = trained.price_table()
    assert trained.paper("--from", FIRST, "--until", UNTIL) == 0
    assert "history" not in capsys.readouterr().out
    begun = trained.log.read_bytes()
    for other, said in ((table[list("DBCA")], "the same in another order"), (table.drop(columns="B"), "(B)")):
        other.to_csv(trained.prices)
        refused = refusal(capsys, *trained.options("paper"), "--from", FIRST)
        assert "has other tickers than the prices" in refused
        assert said in refused
        assert trained.log.read_bytes() == begun
    table.loc[UNTIL, "A"] *= 1.01
    table.loc["2012-01-16":, "B"] = np.nan
    table.to_csv(trained.prices)
    assert trained.paper("--from", FIRST) == 0
    assert trained.entries()[-1]["filled"][1] == 0.0, "sold when its prices ended"
    assert "warning: history: up to 2011-12-30 they are not those of the run" in capsys.readouterr().out
