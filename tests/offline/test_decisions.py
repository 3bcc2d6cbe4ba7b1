"""A user's own decisions are priced by the ledger, with the information set of every other, or refused by line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.config import LENSES
from finflow.env.coverage import smooth
from finflow.errors import ConfigError
from finflow.offline.collection import made_by
from finflow.offline.dataset import DECISIONS, OfflineDataset, card_lines, load_dataset, save_dataset
from finflow.offline.imported_decisions import read_decisions
from tests.market.conftest import assert_refused
from tests.offline.conftest import assert_priced, make_small

K, LENGTH = 6, 25
ROWS = """date,AAPL,JNJ,GE,cash
2007-08-01,0.5,0.5,0,0
2007-08-15,0.2,0.2,0.2,0.4
2008-01-02,0,1,0,0
"""
PRICES_ALONE: dict[str, object] = {
    "env__commission_bps": 0.0,
    "env__slippage_bps": 0.0,
    **{f"objectives__{name}": 0.0 for name in ("sharpe_beta", "lambda_turn", "lambda_cvar", "lambda_dd")},
}
LAGS = pytest.mark.parametrize("lag", [0, 1, 2])
Make = Callable[..., Any]


@pytest.fixture
def given(tmp_path: Path) -> Make:
    """The small world with a file of decisions, and few other episodes."""

    def make(text: str = ROWS, name: str = "mine.csv", **changes: object) -> Any:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return make_small(**{"offline__decisions": [str(tmp_path / name)], "train__offline_episodes": 6, **changes})

    return make


def own(data: OfflineDataset) -> OfflineDataset:
    """The transitions of the file alone."""
    rows = data.family == DECISIONS
    return OfflineDataset(**{name: column[rows] for name, column in data.arrays().items()}, meta=data.meta)


def bar_of(world: Any, date: str) -> int:
    return int(np.searchsorted(world.process.panel.dates, np.datetime64(date)))


def prices_of(world: Any, bar: int) -> NDArray[np.float64]:
    """Closing prices of the assets and cash, (K,)."""
    return np.append(world.process.panel.close[bar], 1.0)


@LAGS
def test_a_row_fills_a_lag_after_its_date_and_between_rows_the_portfolio_is_held(given: Make, lag: int) -> None:
    world = given(env__execution_lag=lag)
    data = own(world.collect())
    stated = {
        "2007-08-01": [0.5, 0, 0, 0.5, 0, 0],
        "2007-08-15": [0.2, 0, 0.2, 0.2, 0, 0.4],
        "2008-01-02": [0, 0, 0, 1, 0, 0],
    }
    fills = {bar_of(world, date) + lag: smooth(np.array([weights]))[0] for date, weights in stated.items()}
    assert data.bar[0] == min(fills)
    assert data.bar[-1] == world.process.decision_bars(world.window).stop - 1
    for row, bar in enumerate(data.bar):
        expected = fills.get(int(bar), data.portfolio[row, :K])
        np.testing.assert_allclose(data.action[row], expected, rtol=0, atol=1e-7)
    held = ~np.isin(data.bar, list(fills))
    np.testing.assert_array_equal(data.action[held], data.portfolio[held, :K])


@LAGS
def test_decisions_are_priced_by_the_ledger(given: Make, lag: int) -> None:
    world = given(env__execution_lag=lag)
    data = own(world.collect())
    starts = np.flatnonzero(np.diff(data.episode, prepend=-1))
    assert len(starts) > 3
    for first, stop in zip(starts, [*starts[1:], len(data)], strict=True):
        assert_priced(world, data, range(first, stop))


def test_what_was_bought_once_earns_what_the_prices_say(given: Make) -> None:
    """Free of costs and penalties, the rewards sum to the log growth of the shares bought, through every episode."""
    world = given("date,AAPL,JNJ\n2007-08-01,0.5,0.5\n", **PRICES_ALONE)
    data = own(world.collect())
    decided, fill, end = bar_of(world, "2007-08-01"), data.bar[0], data.bar[-1] + 1
    assert fill == decided + 1
    shares = smooth(np.array([[0.5, 0, 0, 0.5, 0, 0]]))[0] / prices_of(world, decided)
    growth = np.log(shares @ prices_of(world, end) / (shares @ prices_of(world, fill)))
    assert data.reward.sum(dtype=np.float64) == pytest.approx(growth, abs=1e-6)


def test_they_are_a_family_of_no_expert_beside_the_unchanged_behaviour(given: Make, dataset: OfflineDataset) -> None:
    data = given(train__offline_episodes=40).collect()
    assert len(LENSES) <= DECISIONS
    for name, column in dataset.arrays().items():
        np.testing.assert_array_equal(getattr(data, name)[: len(dataset)], column)
    assert (data.family[len(dataset) :] == DECISIONS).all()
    assert data.episode[len(dataset)] == dataset.episode.max() + 1
    (file,) = data.meta["card"]["decision_files"]
    assert (file["file"], file["rows_used"]) == ("mine.csv", 3)
    assert file["transitions"] == len(data) - len(dataset)
    assert data.meta["card"]["families"]["decisions"]["transitions"] == file["transitions"]


def test_the_last_portfolio_before_the_features_is_what_is_held_at_first(given: Make) -> None:
    world = given("date,AAPL,JNJ\n2006-06-01,1,0\n2007-08-01,0.5,0.5\n", **PRICES_ALONE)
    data, start = own(world.collect()), world.process.decision_bars(world.window).start
    assert data.bar[0] == start
    bought = smooth(np.array([[1.0, 0, 0, 0, 0, 0]]))[0]
    worth = bought / prices_of(world, bar_of(world, "2006-06-01")) * prices_of(world, start - 1)
    np.testing.assert_allclose(data.portfolio[0, :K], worth / worth.sum(), rtol=0, atol=1e-7)
    np.testing.assert_array_equal(data.action[0], data.portfolio[0, :K])


def test_rows_after_the_training_window_decide_nothing_and_are_told(given: Make) -> None:
    """Even what could never be a portfolio: of later rows only the date is read."""
    before, after = (given(ROWS + later) for later in ("", "2008-07-01,7,what,,0\n2010-01-04,1,0,0,0\n"))
    first, second = before.collect(), after.collect()
    for name, column in first.arrays().items():
        np.testing.assert_array_equal(getattr(second, name), column)
    assert first.meta["made_by"] == second.meta["made_by"]
    assert second.meta["card"]["decision_files"][0]["rows_after_the_training_window"] == 2
    assert any("left out: 2 after the training window" in line for line in card_lines(second.meta["card"]))


@LAGS
def test_prices_that_come_later_change_no_decision(given: Make, lag: int) -> None:
    world = given(env__execution_lag=lag)
    now, found = bar_of(world, "2008-01-02"), []
    for shock in (1.0, 1.5):
        close = world.process.panel.close.copy()
        close[now + 1 :, ::2] *= shock
        found.append(own(given(panel=replace(world.process.panel, close=close), env__execution_lag=lag).collect()))
    first, second = found
    known = first.bar <= now + min(lag, 1)
    np.testing.assert_array_equal(second.action[known], first.action[known])
    np.testing.assert_array_equal(second.portfolio[known, :K], first.portfolio[known, :K])
    assert not np.array_equal(second.reward, first.reward)


def test_a_dataset_made_with_other_decisions_is_refused_but_the_file_may_move(given: Make, tmp_path: Path) -> None:
    world = given()
    save_dataset(tmp_path / "data.npz", world.collect())
    moved = given(name="moved.csv")
    assert len(load_dataset(tmp_path / "data.npz", made_by(moved.config, moved.process, moved.window))) > 100
    for text in (ROWS.replace("2007-08-15", "2007-08-16"), ROWS.replace("0.5,0.5", "0.4,0.6")):
        other = given(text)
        with pytest.raises(ConfigError.__base__, match="collected with other decisions; "):
            load_dataset(tmp_path / "data.npz", made_by(other.config, other.process, other.window))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("day,AAPL\n", "line 1: the first column is 'day'; it must be date"),
        ("date,APPL\n", "line 1: 'APPL' is not an asset of this market; did you mean AAPL?"),
        ("date,XYZQ\n", "line 1: 'XYZQ' is not an asset of this market; the assets are AAPL, AMD"),
        ("date,AAPL,AAPL\n", "line 1: column 'AAPL' appears more than once"),
        ("date,cash\n", "line 1: no column names an asset"),
        ("date,AAPL\n2007-08-01\n", "line 2: 1 cells under 2 columns"),
        ("date,AAPL\n01/08/2007,1\n", "line 2: '01/08/2007' is not a date"),
        ("date,AAPL\n2007-08-01,1\n\n2007-08-01,1\n", "line 4: 2007-08-01 appears twice"),
        ("date,AAPL\n2007-08-02,1\n2007-08-01,1\n", "line 3: 2007-08-01 follows 2007-08-02: sort"),
        ("date,AAPL\n2007-08-03,1\n2007-08-04,1\n", "line 3: 2007-08-04 is not a bar and counts as 2007-08-03"),
        ("date,AAPL\n2007-08-01,\n", "line 2: the weight of AAPL is '', not a number"),
        ("date,AAPL,GE\n2007-08-01,1.5,-0.5\n", "line 2: the weight of AAPL is 1.5, not between 0 and 1"),
        ("date,AAPL,GE\n2007-08-01,0.7,0.7\n", "line 2: the weights sum to 1.4, not to 1"),
        ("date,AAPL,cash\n2007-08-01,0.5,0.4\n", "line 2: the weights sum to 0.9, not to 1"),
        ("date,AAPL\n2009-08-03,1\n", "has no decision that can be priced: they have to fall between 2007"),
        ('date,AAPL\n"2007-08-01,1\n', "is not a CSV file"),
    ],
)
def test_a_mistake_is_named_with_its_line(given: Make, text: str, words: str) -> None:
    assert_refused([words, "mine.csv"], lambda: given(text).collect(), ConfigError)


def test_nothing_can_be_held_before_it_has_a_price(tmp_path: Path, small: Any) -> None:
    close = small.process.panel.close.copy()
    close[:400, 1] = np.nan
    panel = replace(small.process.panel, close=close)
    path = tmp_path / "early.csv"
    path.write_text(f"date,AMD\n{panel.dates[399]},1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 2: AMD has no price on"):
        read_decisions(path, panel, small.window.stop)
    path.write_text(f"date,AMD\n{panel.dates[400]},1\n", encoding="utf-8")
    assert len(read_decisions(path, panel, small.window.stop).bar) == 1


def test_rounded_weights_are_divided_out_and_cash_takes_the_remainder(tmp_path: Path, small: Any) -> None:
    path = tmp_path / "rounded.csv"
    path.write_text("Date, AAPL, JNJ, GE\n2007-08-01,0.3333,0.3333,0.3333\n2007-08-02,0.3337,0.3337,0.333\n")
    weights = read_decisions(path, small.process.panel, small.window.stop).weights
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    assert weights[0, -1] == pytest.approx(0.0001, abs=1e-9)
    assert weights[1, -1] == 0.0
