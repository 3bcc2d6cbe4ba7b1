"""Decisions from a user's file, dates and weights in CSV, priced by the ledger like any other behaviour.

A row dated d was decided with what was known at the close of d, and fills ``env.execution_lag`` bars later: the same
information set as everywhere. Between two rows the portfolio is held and drifts.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from finflow.arrays import BoolArray, FloatArray, IntArray
from finflow.env.coverage import smooth
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState
from finflow.errors import ConfigError, first_few, refuse
from finflow.files import read_text_input
from finflow.ledger.accounting import drift
from finflow.market.panel import MarketPanel
from finflow.offline.dataset import DECISIONS, Recorder, Rows

SUM_TOLERANCE = 1e-3  # twenty weights written with four digits may miss one by that much
_CASH = "cash"


@dataclass(frozen=True)
class ImportedDecisions:
    """Decisions of a file up to the end of the training window."""

    file: str
    bar: IntArray  # (n,), the last bar known at each decision, ascending
    weights: FloatArray  # (n, K), on the simplex, cash last
    later: int  # rows dated after the training window, of which only the dates were read
    earlier: int  # rows dated before the first bar

    @property
    def sha256(self) -> str:
        """Hash of what decides the transitions; rows that are not read do not enter."""
        return hashlib.sha256(self.bar.astype("<i8").tobytes() + self.weights.astype("<f8").tobytes()).hexdigest()


def read_decisions(path: Path, panel: MarketPanel, end: int) -> ImportedDecisions:
    """Read a CSV file of dates and weights up to a training window that ends at ``end``; of later rows only the date.

    The columns are those of docs/reference/offline.md, Decisions of your own. Nothing is guessed or repaired, but a sum
    within 0.001 of one is divided out. A ConfigError for a mistake, with its line.
    """
    text = read_text_input(path, "offline.decisions", ConfigError, "a CSV file")
    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        table = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(cells)]
    except csv.Error as error:
        raise ConfigError(f"{path} is not a CSV file ({error})") from None
    refuse(not table, f"{path} is empty; expected a header line with date and one column an asset", ConfigError)
    places, names = _places(path, table[0][1], panel.assets), (*panel.assets, _CASH)
    lines, rows = [line for line, _ in table[1:]], [cells for _, cells in table[1:]]

    def refuse_row(wrong: BoolArray, say: Callable[..., str]) -> None:
        """Raise an error if a row is wrong, and say what the first one has, by its number and the column's."""
        if wrong.any():
            row, *column = np.argwhere(wrong)[0].tolist()
            raise ConfigError(f"{path}, line {lines[row]}: {say(row, *column)}")

    width = len(places) + 1
    uneven = np.array([len(cells) != width for cells in rows])
    refuse_row(uneven, lambda row: f"{len(rows[row])} cells under {width} columns")
    texts = pd.Series([cells[0] for cells in rows], dtype=object)
    formed = texts.where(texts.str.fullmatch(r"\d{4}-\d{2}-\d{2}"))
    days = pd.to_datetime(formed, format="%Y-%m-%d", errors="coerce").to_numpy("datetime64[D]")
    refuse_row(np.isnat(days), lambda row: f"{texts[row][:40]!r} is not a date of the form YYYY-MM-DD")
    refuse_row(np.append(False, days[1:] == days[:-1]), lambda row: f"{days[row]} appears twice")
    refuse_row(
        np.append(False, days[1:] < days[:-1]),
        lambda row: f"{days[row]} follows {days[row - 1]}: sort the rows by date",
    )
    known = np.searchsorted(panel.dates, days, side="right") - 1
    late = days > panel.dates[end - 1]
    used = ~late & (known >= 0)
    refuse_row(
        used & (np.diff(known, prepend=-1) == 0),
        lambda row: (
            f"{texts[row]} is not a bar and counts as {panel.dates[known[row]]}, for which the row before "
            "decides already; leave one of them out"
        ),
    )
    stated, weights = np.zeros((len(rows), len(places))), np.zeros((len(rows), len(names)))
    for row in np.flatnonzero(used):
        stated[row] = [_number(cell) for cell in rows[row][1:]]
    weights[:, places] = stated
    said = "the weight of {} is {}, not {}".format
    refuse_row(~np.isfinite(stated), lambda row, at: said(names[places[at]], repr(rows[row][at + 1][:40]), "a number"))
    refuse_row(
        (stated < 0.0) | (stated > 1.0 + SUM_TOLERANCE),
        lambda row, at: said(names[places[at]], rows[row][at + 1][:40], "between 0 and 1"),
    )
    refuse_row(
        (weights[:, :-1] > 0.0) & ~panel.listed[known],
        lambda row, asset: f"{names[asset]} has no price on {panel.dates[known[row]]}, so it cannot be held then",
    )
    totals = weights.sum(axis=1)
    wrong = used & (np.abs(totals - 1.0) > SUM_TOLERANCE)
    if len(panel.assets) not in places:
        weights[:, -1] = np.maximum(1.0 - totals, 0.0)
        wrong &= totals >= 1.0
    refuse_row(wrong, lambda row: f"the weights sum to {totals[row]:g}, not to 1")
    portfolios = weights[used] / weights[used].sum(axis=1, keepdims=True)
    later, earlier = int(late.sum()), int((known < 0).sum())
    return ImportedDecisions(path.name, known[used].astype(np.int64), portfolios, later, earlier)


def _number(text: str) -> float:
    """The number that a cell holds; NaN where it holds none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _places(path: Path, header: list[str], assets: tuple[str, ...]) -> list[int]:
    """Place in the portfolio of each column after the first."""
    first, *others = header
    refuse(first.lower() != "date", f"{path}, line 1: the first column is {first[:40]!r}; it must be date", ConfigError)
    known = {_CASH: len(assets)} | {asset: place for place, asset in enumerate(assets)}
    places: list[int] = []
    for name in others:
        place = known.get(_CASH if name.lower() == _CASH and name not in known else name)
        if place is None:
            near = difflib.get_close_matches(name, [*assets, _CASH], n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; the assets are {first_few(assets, 5)}"
            raise ConfigError(f"{path}, line 1: {name[:40]!r} is not an asset of this market{hint}")
        refuse(place in places, f"{path}, line 1: column {name!r} appears more than once", ConfigError)
        places.append(place)
    refuse(
        not any(place < len(assets) for place in places),
        f"{path}, line 1: no column names an asset; the assets are {first_few(assets, 5)}",
        ConfigError,
    )
    return places


def price_decisions(process: DecisionProcess, window: range, decisions: ImportedDecisions, episode_length: int) -> Rows:
    """Price decisions by the ledger, in episodes that follow one another without a gap.

    Every stated portfolio is smoothed into the interior, as all behaviour is. Between rows the target is the observed
    portfolio, which trades nothing. An episode starts with ``env.initial_capital``, from what the one before held;
    the first from cash, or from the latest portfolio decided before the first bar that has features. A ConfigError if
    no row fills at a bar of the window.
    """
    bars, n_weights = process.decision_bars(window), process.n_weights
    fills = decisions.bar + process.lag
    stated = smooth(decisions.weights, listed=process.asset_features[decisions.bar, :, -1] > 0.0)
    table = dict(zip(fills.tolist(), stated, strict=True))
    inside = fills[(fills >= bars.start) & (fills < bars.stop)]
    if not inside.size:
        dates = process.panel.dates
        raise ConfigError(
            f"{decisions.file} (offline.decisions) has no decision that can be priced: they have to fall between "
            f"{dates[bars.start - process.lag]} and {dates[bars.stop - 1 - process.lag]}, the part of the training "
            "window that has features"
        )
    before = np.flatnonzero(fills < bars.start)
    first = bars.start if before.size else int(inside[0])
    held = _held(process, stated[before[-1]], int(fills[before[-1]]), first) if before.size else None

    def decide(state: PortfolioState) -> FloatArray:
        bar = int(state.bar[0])
        weights: FloatArray = process.observed_portfolio(state)[:, :n_weights]
        return table[bar][None] if bar in table else weights

    recorder = Recorder(process)
    state, age, episode = process.start(np.array([first]), held), 0, 0
    for bar in range(first, bars.stop):
        action = decide(state)
        outcome = process.step(state, action)
        age += 1
        over = bool(outcome.terminated[0]) or age == episode_length or bar + 1 == bars.stop
        recorder.add(
            before=state,
            action=action,
            reward=outcome.reward,
            after=outcome.state,
            next_action=decide(outcome.state),
            terminated=outcome.terminated,
            truncated=np.array([over]) & ~outcome.terminated,
            episode=np.array([episode]),
            family=np.array([DECISIONS]),
            cost=outcome.cost,
            turnover=outcome.turnover,
        )
        state = outcome.state
        if over:
            state, age, episode = process.start(np.array([bar + 1]), outcome.filled), 0, episode + 1
    return recorder.rows()


def _held(process: DecisionProcess, target: FloatArray, fill: int, bar: int) -> FloatArray:
    """Weights at the bar before ``bar`` of a target that has drifted since, without another trade; (1, K)."""
    stated_at = fill - min(process.lag, 1)
    if process.dividends is None:
        value = target * process.growth[stated_at + 1 : bar].prod(axis=0)
        return np.asarray((value / value.sum())[None], dtype=np.float64)
    held: FloatArray = target[None]
    for passed in range(stated_at + 1, bar):
        held = drift(held, process.growth[passed], process.dividends[passed])
    return held
