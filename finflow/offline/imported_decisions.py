"""Decisions from a user's file, dates and weights in CSV, priced by the ledger like any other behaviour.

A row dated d was decided with what was known at the close of d, and fills ``env.execution_lag`` bars later: the same
information set as everywhere. Between two rows the portfolio is held and drifts.
"""

from __future__ import annotations

import csv
import datetime as dt
import difflib
import hashlib
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finflow.env.coverage import smooth
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState
from finflow.errors import ConfigError, first_few
from finflow.ledger.accounting import drift
from finflow.market.panel import MarketPanel
from finflow.offline.dataset import Recorder, Rows

SUM_TOLERANCE = 1e-3  # twenty weights written with four digits may miss one by that much
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}")
_CASH = "cash"


@dataclass(frozen=True)
class ImportedDecisions:
    """Decisions of a file up to the end of the training window.

    Attributes
    ----------
    bar : int array, (n,)
        The last bar known at each decision, ascending.
    weights : float array, (n, K)
        On the simplex, cash last.
    later, earlier : int
        Rows dated after the training window, of which only the dates were read, and before the first bar.
    """

    file: str
    bar: NDArray[np.int64]
    weights: NDArray[np.float64]
    later: int
    earlier: int

    @property
    def sha256(self) -> str:
        """Hash of what decides the transitions; rows that are not read do not enter."""
        return hashlib.sha256(self.bar.astype("<i8").tobytes() + self.weights.astype("<f8").tobytes()).hexdigest()


def read_decisions(path: Path, panel: MarketPanel, end: int) -> ImportedDecisions:
    """Read a CSV file of dates and weights up to a training window that ends at ``end``; of later rows only the date.

    The first column is ``date`` (YYYY-MM-DD), then one an asset by its name, and ``cash`` if wanted; an asset without a
    column has weight 0, and cash without one is the remainder. A date that is not a bar counts as the bar before it.
    Nothing is guessed or repaired, but a sum within 0.001 of one is divided out. A ConfigError for the first mistake,
    with its line.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, strict=True)
            table = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(cells)]
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path} (offline.decisions)") from None
    except OSError as error:
        raise ConfigError(f"{path} (offline.decisions) cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} is not a CSV file of UTF-8 text ({error})") from None
    if not table:
        raise ConfigError(f"{path} is empty; expected a header line with date and one column an asset")
    columns = _columns(path, table[0][1], panel.assets)
    dates: list[dt.date] = []
    for line, cells in table[1:]:
        if len(cells) != len(columns) + 1:
            raise ConfigError(f"{path}, line {line}: {len(cells)} cells under {len(columns) + 1} columns")
        dates.append(_date(path, line, cells[0], dates[-1] if dates else None))
    known = np.searchsorted(panel.dates, np.array(dates, dtype="datetime64[D]"), side="right") - 1
    late = np.array(dates, dtype="datetime64[D]") > panel.dates[end - 1]
    used = np.flatnonzero(~late & (known >= 0))
    weights = np.zeros((len(used), panel.n_assets + 1))
    for row, place in enumerate(used):
        line, cells = table[place + 1]
        where = f"{path}, line {line}"
        if row and known[used[row - 1]] == known[place]:
            raise ConfigError(
                f"{where}: {cells[0]} is not a bar and counts as {panel.dates[known[place]]}, for which the row before "
                "decides already; leave one of them out"
            )
        weights[row] = _weights(where, columns, cells[1:], panel, int(known[place]))
    return ImportedDecisions(path.name, known[used].astype(np.int64), weights, int(late.sum()), int((known < 0).sum()))


def price_decisions(
    process: DecisionProcess, window: range, decisions: ImportedDecisions, episode_length: int, source: int
) -> Rows:
    """Price decisions by the ledger, in episodes that follow one another without a gap.

    Every stated portfolio is smoothed into the interior, as all behaviour is. Between rows the target is the observed
    portfolio, which trades nothing. An episode starts with ``env.initial_capital``, from what the one before held;
    the first from cash, or from the latest portfolio decided before the first bar that has features. ``source`` is the
    family of the transitions. A ConfigError if no row fills at a bar of the window.
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

    def decide(state: PortfolioState) -> NDArray[np.float64]:
        bar = int(state.bar[0])
        weights: NDArray[np.float64] = process.observed_portfolio(state)[:, :n_weights]
        return table[bar][None] if bar in table else weights

    recorder = Recorder(process)
    family = np.full(1, source)
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
            family=family,
            cost=outcome.cost,
            turnover=outcome.turnover,
        )
        state = outcome.state
        if over:
            state, age, episode = process.start(np.array([bar + 1]), outcome.filled), 0, episode + 1
    return recorder.rows()


def _held(process: DecisionProcess, target: NDArray[np.float64], fill: int, bar: int) -> NDArray[np.float64]:
    """Weights at the bar before ``bar`` of a target that has drifted since, without another trade; (1, K)."""
    stated_at = fill - min(process.lag, 1)
    if process.dividends is None:
        value = target * process.growth[stated_at + 1 : bar].prod(axis=0)
        return np.asarray((value / value.sum())[None], dtype=np.float64)
    held: NDArray[np.float64] = target[None]
    for passed in range(stated_at + 1, bar):
        held = drift(held, process.growth[passed], process.dividends[passed])
    return held


def _columns(path: Path, header: list[str], assets: tuple[str, ...]) -> list[int]:
    """Place in the portfolio of each column after the first."""
    if header[0].lower() != "date":
        raise ConfigError(f"{path}, line 1: the first column is {header[0][:40]!r}; it must be date")
    places: list[int] = []
    for name in header[1:]:
        if name in assets:
            place = assets.index(name)
        elif name.lower() == _CASH:
            place = len(assets)
        else:
            near = difflib.get_close_matches(name, [*assets, _CASH], n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; the assets are {first_few(assets, 5)}"
            raise ConfigError(f"{path}, line 1: {name[:40]!r} is not an asset of this market{hint}")
        if place in places:
            raise ConfigError(f"{path}, line 1: column {name!r} appears more than once")
        places.append(place)
    if not any(place < len(assets) for place in places):
        raise ConfigError(f"{path}, line 1: no column names an asset; the assets are {first_few(assets, 5)}")
    return places


def _date(path: Path, line: int, text: str, before: dt.date | None) -> dt.date:
    try:
        date = dt.date.fromisoformat(text) if _ISO.fullmatch(text) else None
    except ValueError:
        date = None
    if date is None:
        raise ConfigError(f"{path}, line {line}: {text[:40]!r} is not a date of the form YYYY-MM-DD")
    if before is not None and date <= before:
        wrong = "appears twice" if date == before else f"follows {before}: sort the rows by date"
        raise ConfigError(f"{path}, line {line}: {date} {wrong}")
    return date


def _weights(where: str, columns: list[int], cells: list[str], panel: MarketPanel, bar: int) -> NDArray[np.float64]:
    """A portfolio on the simplex, (K,)."""
    names = (*panel.assets, _CASH)
    weights = np.zeros(len(names))
    for place, cell in zip(columns, cells, strict=True):
        try:
            weight = float(cell)
        except ValueError:
            weight = math.nan
        if not math.isfinite(weight):
            raise ConfigError(f"{where}: the weight of {names[place]} is {cell[:40]!r}, not a number")
        if not 0.0 <= weight <= 1.0 + SUM_TOLERANCE:
            raise ConfigError(f"{where}: the weight of {names[place]} is {cell[:40]}, not between 0 and 1")
        if weight > 0.0 and place < panel.n_assets and not panel.listed[bar, place]:
            raise ConfigError(f"{where}: {names[place]} has no price on {panel.dates[bar]}, so it cannot be held then")
        weights[place] = weight
    total = float(weights.sum())
    if len(names) - 1 not in columns and total < 1.0:
        weights[-1] = 1.0 - total
    elif abs(total - 1.0) > SUM_TOLERANCE:
        raise ConfigError(f"{where}: the weights sum to {total:g}, not to 1")
    portfolio: NDArray[np.float64] = weights / weights.sum()
    return portfolio
