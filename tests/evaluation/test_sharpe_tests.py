"""PSR, MinTRL and DSR: the worked examples of the papers to the digits they print, and quantstats.

The papers, as their authors publish them (page numbers are those of these files):

- The Sharpe Ratio Efficient Frontier, https://www.davidhbailey.com/dhbpapers/sharpe-frontier.pdf (Journal of Risk 15,
  2012); its first example is also that of the authors' slides The Sharp Razor, SSRN 2150879, pages 16 and 17.
- The Deflated Sharpe Ratio, https://www.davidhbailey.com/dhbpapers/deflated-sharpe.pdf (Journal of Portfolio Management
  40, 2014).
"""

from __future__ import annotations

import json
import math
import multiprocessing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import quantstats.stats as qs
from arch.bootstrap import SPA, StepM

from finflow.errors import EvidenceError, OutputError
from finflow.evaluation.statistics.bootstrap import Resampling
from finflow.evaluation.statistics.significance_tests import (
    Reading,
    TrackRecord,
    Tries,
    expected_maximum,
    readings_of,
    record,
    superior_ability,
    superior_strategies,
    track_of,
    tries_of,
)

FUND = 1.585 / math.sqrt(12.0)  # a month


@pytest.mark.parametrize(
    ("months", "skewness", "kurtosis", "printed"),
    [(24, 0.0, 3.0, "0.982"), (24, -2.448, 10.164, "0.913"), (36, -2.448, 10.164, "0.953")],
    ids=["as if normal", "with the fund's moments", "with a third year of them"],
)
def test_psr_is_that_of_the_papers_hedge_fund(months: int, skewness: float, kurtosis: float, printed: str) -> None:
    """2012, page 10: a track record of two years, monthly, with a Sharpe ratio of 0.458 a month, 1.59 a year.

    The last printed digit needs the ratio before it was rounded, 1.585 a year.
    """
    assert f"{FUND:.3f}" == "0.458"
    assert f"{TrackRecord(FUND, months, skewness, kurtosis).psr():.3f}" == printed


def test_psr_and_dsr_are_those_of_pypbo_in_all_its_digits() -> None:
    assert TrackRecord(FUND, 24, -2.448, 10.164).psr() == pytest.approx(0.91323430688486018, rel=1e-12)
    strategist = TrackRecord(2.5 / math.sqrt(250.0), 1250, -3.0, 10.0)
    assert strategist.dsr(100, 0.5 / 250.0) == pytest.approx(0.90039683444939034, rel=1e-12)


@pytest.mark.parametrize(
    ("periods", "skewness", "kurtosis", "printed"),
    [(252, 0.0, 3.0, "2.73"), (52, 0.0, 3.0, "2.83"), (12, 0.0, 3.0, "3.24"), (12, -0.72, 5.78, "4.99")],
    ids=["daily", "weekly", "monthly", "monthly, with the moments of hedge funds"],
)
def test_the_minimum_track_record_is_the_papers(periods: int, skewness: float, kurtosis: float, printed: str) -> None:
    """2012, Figure 8 and the text after it: years to show, at 95 %, that an annual Sharpe ratio of 2 is more than 1.

    The moments are those that Brooks and Kat (2002) found for hedge funds.
    """
    track = TrackRecord(2.0 / math.sqrt(periods), 0, skewness, kurtosis)
    assert f"{track.minimum_length(1.0 / math.sqrt(periods)) / periods:.2f}" == printed


@pytest.mark.parametrize(
    ("tries", "skewness", "kurtosis", "printed"),
    [(100, -3.0, 10.0, "0.9004"), (46, -3.0, 10.0, "0.9505"), (88, 0.0, 3.0, "0.9505")],
    ids=["100 tries", "46 tries", "88 tries, as if normal"],
)
def test_dsr_is_that_of_the_papers_strategist(tries: int, skewness: float, kurtosis: float, printed: str) -> None:
    """2014, pages 9 and 10: 2.5 a year over 1250 days of 250 to a year, the tries' variance 1/2 a year."""
    track = TrackRecord(2.5 / math.sqrt(250.0), 1250, skewness, kurtosis)
    assert f"{track.dsr(tries, 0.5 / 250.0):.4f}" == printed


def test_the_expected_maximum_is_about_that_of_drawn_tries() -> None:
    assert f"{expected_maximum(100, 0.5 / 250.0):.4f}" == "0.1132", "as the paper of 2014 prints it"
    for tries in (5, 50, 500):
        drawn = np.random.default_rng(tries).normal(0.0, 0.02, (20_000, tries)).max(axis=1).mean()
        assert expected_maximum(tries, 0.02**2) == pytest.approx(drawn, rel=0.03)


def test_psr_of_a_series_is_that_of_quantstats() -> None:
    returns = np.random.default_rng(3).standard_t(4, 700) * 0.008 + 4e-4
    theirs = qs.probabilistic_sharpe_ratio(pd.Series(returns, pd.bdate_range("2016-01-04", periods=700)))
    assert track_of(returns).psr() == pytest.approx(float(theirs), rel=0, abs=1e-10)


@pytest.mark.parametrize(
    ("returns", "said"),
    [
        ([0.01, math.nan, 0.02, 0.01, math.inf], "the returns of mine have 2 gaps .the first at return 2 of 5."),
        ([0.01, math.nan, 0.02, 0.01], "have a gap"),
        ([0.01, 0.02, 0.01], "mine has 3 returns, and the test needs 4"),
        ([0.01] * 50, "the returns of mine do not vary"),
    ],
)
def test_returns_that_cannot_be_tested_are_refused_in_words(returns: list[float], said: str) -> None:
    with pytest.raises(EvidenceError, match=said):
        track_of(np.array(returns), "mine")


# --- sPA and StepM: arch's numbers, the right direction, and right about as often as they say


SETTINGS = Resampling(samples=400, block_length=5, seed=3)


def made(days: int = 300, count: int = 4, edge: float = 0.0, seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """A benchmark, and strategies around it; the first earns `edge` more a day."""
    rng = np.random.default_rng(seed)
    benchmark = rng.normal(4e-4, 0.01, days)
    others = {f"s{i}": benchmark + rng.normal(0.0, 0.003, days) for i in range(count)}
    others["s0"] = others["s0"] + edge
    return benchmark, others


def test_the_p_values_are_archs() -> None:
    benchmark, others = made(edge=3e-4)
    theirs = SPA(
        -benchmark, -np.column_stack(list(others.values())), block_size=5, reps=400, seed=np.random.default_rng(3)
    )
    theirs.compute()
    ours = superior_ability(benchmark, others, SETTINGS)
    assert [ours.p_lower, ours.p_consistent, ours.p_upper] == list(theirs.pvalues)
    assert ours.strategies == 4
    assert 0.0 < ours.p_consistent < 1.0


def test_the_strategies_named_are_archs_and_only_those_with_an_edge() -> None:
    benchmark, others = made(edge=2e-3)
    theirs = StepM(
        -benchmark,
        -np.column_stack(list(others.values())),
        size=0.05,
        block_size=5,
        reps=400,
        seed=np.random.default_rng(3),
    )
    theirs.compute()
    ours = superior_strategies(benchmark, others, SETTINGS)
    assert ours == tuple(f"s{i}" for i in theirs.superior_models) == ("s0",)
    assert superior_ability(benchmark, others, SETTINGS).p_consistent < 0.01
    assert superior_strategies(benchmark, {"worse": benchmark - 0.001}, SETTINGS) == ()


def test_where_every_strategy_is_superior_step_by_step_all_are_named() -> None:
    """A volatile one is found first; that it is out of the way lets the others be seen."""
    rng = np.random.default_rng(1)
    benchmark = rng.normal(3e-4, 0.01, 1000)
    strategies = {
        "steady": benchmark + 3e-4 + rng.normal(0.0, 0.003, 1000),
        "volatile": benchmark + 3e-3 + rng.normal(0.0, 0.02, 1000),
    }
    assert superior_strategies(benchmark, strategies, Resampling(400, 10, 0)) == ("steady", "volatile")


def test_without_an_edge_five_in_a_hundred_are_found() -> None:
    quick = Resampling(samples=200, block_length=5, seed=0)
    found = [superior_ability(*made(days=150, seed=seed), quick).p_consistent < 0.05 for seed in range(100)]
    assert np.mean(found) <= 0.10


def test_gaps_and_short_windows_are_refused_in_words() -> None:
    benchmark, others = made()
    with pytest.raises(EvidenceError, match="s1 has 24 returns, and the test needs 25"):
        superior_ability(benchmark, {"s1": others["s1"][:24]}, SETTINGS)
    others["s2"][9] = np.nan
    with pytest.raises(EvidenceError, match="returns of s2 have a gap"):
        superior_strategies(benchmark, others, SETTINGS)


# --- the ledger of readings only grows, counts strategies and not evaluations, and does not lose count


def reading(judged: str, panel: str = "p", active: float | None = 0.01) -> Reading:
    return Reading(
        panel=panel,
        judged=judged,
        name="finflow",
        compared=("equal-weight", "momentum"),
        configuration="c",
        configurations=1,
        window=("2016-01-04", "2022-12-28"),
        active_sharpe=active,
        run="logs/x",
        date="2026-01-31T12:00:00+00:00",
    )


def add_many(path: Path, judged: str) -> None:
    for _ in range(50):
        record(path, reading(judged))


def test_readings_come_back_in_order_and_apart_by_panel(tmp_path: Path) -> None:
    path = tmp_path / "new" / "readings.jsonl"
    assert readings_of(path, "p") == ()
    kept = [reading("a"), reading("b", panel="q"), reading("c", active=None), reading("a")]
    for one in kept:
        record(path, one)
    assert readings_of(path, "p") == (kept[0], kept[2], kept[3])
    assert readings_of(path, "q") == (kept[1],)
    assert len(path.read_text().splitlines()) == 4
    assert json.loads(path.read_text().splitlines()[1])["panel"] == "q"


def test_the_same_policy_judged_again_is_no_other_try() -> None:
    on_file = [
        reading("a", active=0.03),
        reading("b", active=0.02),
        reading("b", active=0.02),
        reading("c", active=None),
    ]
    assert tries_of(on_file, "a", 1) == Tries(configurations=1, others=2, sharpes=(0.02,), names=("finflow",))
    assert tries_of(on_file, "new", 5).total == 8
    assert tries_of([], "new", 1) == Tries()
    assert Tries().total == 1


def test_an_audited_leak_counts_and_does_not_widen_the_spread() -> None:
    """A strategy that saw tomorrow had 3.3 a bar: every later deflated ratio was 0.000, and no report named it."""
    honest = [replace(reading(f"rule {n}", active=0.01 * n), name=f"rule {n}") for n in range(4)]
    cheat = replace(reading("cheat", active=3.3), name="cheat")
    spoilt = tries_of([*honest, cheat], "new", 1)
    assert spoilt.total == 6
    assert spoilt.dominating(0.02) == ("cheat", 3.3)
    marked = tries_of([*honest, cheat, replace(cheat, active_sharpe=None, leak="row 3 of 2020-01-06")], "new", 1)
    assert marked.total == 6
    assert marked.leaks == ("cheat (row 3 of 2020-01-06)",)
    assert marked.dominating(0.02) is None
    assert marked.variance(0.02, 1000) == 1.0 / 999
    assert spoilt.variance(0.02, 1000) > 1.5
    assert tries_of([replace(cheat, leak="x")], "new", 1) == Tries()  # an audit alone is no try


def test_a_try_counts_at_least_as_much_as_luck_alone_would_move_it() -> None:
    assert Tries().variance(0.05, 101) == 0.01
    assert Tries(others=2, sharpes=(0.05, 0.05)).variance(0.05, 101) == 0.01
    assert Tries(others=1, sharpes=(0.5,)).variance(-0.5, 101) == pytest.approx(0.5)


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "readings.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=add_many, args=(path, name)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [sum(one.judged == name for one in readings_of(path, "p")) for name in "ab"] == [50, 50]


def test_a_line_that_a_crash_cut_short_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "readings.jsonl"
    record(path, reading("a"))
    path.write_text(path.read_text() + path.read_text()[:100])
    assert readings_of(path, "p") == (reading("a"),)
    record(path, reading("b"))
    assert readings_of(path, "p") == (reading("a"), reading("b"))


@pytest.mark.parametrize("damage", ["nonsense", '{"panel": "p"}', "[1]", "{}"])
def test_a_damaged_ledger_is_named_with_its_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "readings.jsonl"
    record(path, reading("a"))
    path.write_text(path.read_text() + damage + "\n")
    with pytest.raises(
        EvidenceError, match=r"line 2 of the ledger of test readings .*readings\.jsonl is damaged; repair it"
    ):
        readings_of(path, "p")


def test_a_ledger_that_cannot_be_kept_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="a file is in the way"):
        record(tmp_path / "file" / "readings.jsonl", reading("a"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(EvidenceError, match="cannot be read"):
        readings_of(tmp_path / "folder", "p")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(EvidenceError, match="cannot be read"):
        readings_of(tmp_path / "binary", "p")
