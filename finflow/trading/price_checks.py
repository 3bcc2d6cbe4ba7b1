"""Checks of the newest prices, those that refuse a decision and those that warn, and the sessions of their exchange."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from finflow.arrays import DateArray
from finflow.config import Config
from finflow.errors import ConfigError, MarketError, first_few, refuse
from finflow.market.bar_frequency import BARS_PER_YEAR, CALENDAR, WEEKLY, bars_per_year
from finflow.market.panel import MarketPanel
from finflow.market.plausibility.checks import DATED, find_implausible
from finflow.market.plausibility.price_moves import in_words, split_of
from finflow.market.plausibility.price_notes import describe_halts
from finflow.trading.decision_page import Check
from finflow.trading.live_market import LiveMarket

_EXCHANGES = ("XNYS", "XLON", "XPAR", "XETR", "XSWX", "XTSE", "XTKS", "XHKG", "XASX")
"""Exchanges whose sessions prices are compared with, in this order."""
_MATCH = 0.995  # of all days that are a session or have a bar, on which prices must agree with an exchange
_CLOSED = (0.01, 0.09)  # share of the weekdays without a bar, within which prices are compared with exchanges at all
_YEARS = 5  # latest years in each of which a day without a bar is a holiday
_COMMON = 0.5  # of the usual number of bars, that a weekday must have to count as a day of trading
_DAY = dt.timedelta(days=1)


class WeekdayCalendar:
    """Weekdays of past prices (bars,), less the days of the year that had no bar in any of the latest five years."""

    def __init__(self, dates: DateArray) -> None:
        days = [day.astype(dt.date) for day in dates]
        counts = np.bincount([day.weekday() for day in days], minlength=7)
        self._weekdays = frozenset(int(day) for day in np.flatnonzero(counts > _COMMON * np.sort(counts)[-3]))
        self.name = "every day" if len(self._weekdays) == 7 else "the weekdays of the prices, less their holidays"
        begin = (pd.Timestamp(days[-1]) - pd.DateOffset(years=_YEARS)).date()
        known = frozenset((day.month, day.day) for day in days if day > begin)
        self._open = known | {(2, 29)} if days[0] <= begin else None  # None: too young for holidays

    def sessions(self, after: dt.date, until: dt.date) -> list[dt.date]:
        days = (after + number * _DAY for number in range(1, (until - after).days + 1))
        days = (day for day in days if day.weekday() in self._weekdays)
        return [day for day in days if self._open is None or (day.month, day.day) in self._open]


class ExchangeCalendar:
    """Sessions of an exchange by exchange_calendars: from a day on, if it is as old, to a year from today.

    Raises ConfigError if the package does not know the exchange.
    """

    def __init__(self, name: str, first: dt.date) -> None:
        from exchange_calendars import get_calendar  # an import of 1.5 s
        from exchange_calendars.errors import CalendarError

        self.name = name
        try:
            with warnings.catch_warnings(action="ignore"):  # of its own use of pandas
                try:
                    self._calendar = get_calendar(name, start=pd.Timestamp(first))
                except ValueError:  # it has no sessions so far back
                    self._calendar = get_calendar(name)
        except CalendarError as error:
            raise ConfigError(f"trading.calendar {name!r} is not an exchange that exchange_calendars knows") from error

    def sessions(self, after: dt.date, until: dt.date) -> list[dt.date]:
        known = self._calendar.sessions
        return [session.date() for session in known[(known > pd.Timestamp(after)) & (known <= pd.Timestamp(until))]]


class PeriodCalendar:
    """Ends of the periods that bars stand for: weeks, which end on Sunday, months, quarters or years.

    The bar of a period may be dated on any day of it: on its last session, its last day or its first.
    """

    def __init__(self, per_year: int) -> None:
        known = {WEEKLY: ("W-SUN", "the weeks"), 6: ("Q", "the quarters"), 4: ("Q", "the quarters")}
        known |= {2: ("Y", "the years"), 1: ("Y", "the years")}
        self._frequency, self.name = known.get(per_year, ("M", "the months"))

    def sessions(self, after: dt.date, until: dt.date) -> list[dt.date]:
        """Ends of the periods after that of one day, up to and including another day."""
        periods = pd.period_range(self.period(after) + 1, self.period(until), freq=self._frequency)
        return [end for period in periods if (end := period.end_time.date()) <= until]

    def period(self, day: dt.date) -> pd.Period:
        return pd.Period(day, freq=self._frequency)


TradingCalendar = WeekdayCalendar | ExchangeCalendar | PeriodCalendar


def calendar_of(name: str | None, dates: DateArray) -> TradingCalendar:
    """The calendar of a configuration (`trading.calendar`); without a name, of the exchange that the dates fit.

    Weekly and monthly bars have that of their periods: a bar is not old because the exchange has opened again.
    """
    named = None if name is None else ExchangeCalendar(name, dates[0].astype(dt.date))
    per_year = bars_per_year(dates)
    if per_year not in (BARS_PER_YEAR, CALENDAR):
        return PeriodCalendar(per_year)
    return named or _fitting_exchange(dates) or WeekdayCalendar(dates)


def _fitting_exchange(dates: DateArray) -> ExchangeCalendar | None:
    """The first exchange whose sessions are the dates of the prices, but for one day in 200."""
    days = {day.astype(dt.date) for day in dates}
    first, last = min(days), max(days)
    weekdays = np.busday_count(first, last + _DAY)  # half a second an exchange is saved for prices that fit none
    if not _CLOSED[0] <= 1.0 - len(days) / max(int(weekdays), 1) <= _CLOSED[1]:
        return None
    for name in _EXCHANGES:
        exchange = ExchangeCalendar(name, first)
        sessions = exchange.sessions(first - _DAY, last)
        if len(days.intersection(sessions)) >= _MATCH * len(days.union(sessions)):
            return exchange
    return None


LATELY = 21  # bars that are checked for gaps and jumps, at least
JUMP = 12.0  # move of a bar that is pointed out, in training deviations of the asset
RESTATED = 1e-6  # relative change of a stored price that counts as one
_SPLIT_TOLERANCE = 0.1  # log return of the day itself that a jump may hold besides a split
_SHOWN = 5


def check_age(panel: MarketPanel, today: dt.date, calendar: TradingCalendar, config: Config) -> Check:
    """Hold the newest bar to the calendar.

    Raises MarketError if more sessions than `trading.max_age` have passed since.
    """
    newest = panel.dates[-1].astype(dt.date)
    missed = calendar.sessions(newest, today)
    limit = config.trading.max_age
    remedy = {
        "yfinance": "run it again when Yahoo has them",
        "csv": "bring market.path up to date",
        "parquet": "bring market.path up to date",
    }.get(config.market.source, "train on a source that goes on")
    sessions = "session has" if len(missed) == 1 else "sessions have"
    refuse(
        len(missed) > limit,
        f"the newest prices are of {newest}, and {len(missed)} {sessions} passed until {today} (trading.max_age = "
        f"{limit}): {remedy}, or decide as of then with --date {newest}",
        MarketError,
    )
    age = {0: "", 1: ", one session old"}.get(len(missed), f", {len(missed)} sessions old")
    return Check("age", True, f"the newest bar is of {newest}{age}; sessions are those of {calendar.name}")


def check_tickers(panel: MarketPanel, expected: Sequence[str], since: int, named: bool) -> Check:
    """Hold the universe to the tickers of the run's data, where they are known, unless the command names its own.

    A ticker that ended before the bar ``since`` was part of the run's history. Raises MarketError for the first one
    that has no price any more.
    """
    left_out = [name for name in expected if name not in panel.assets]
    gone = {name: "is not in the data any more" for name in left_out if not named}
    priced = panel.listed if panel.halted is None else panel.listed & ~panel.halted
    lasts = panel.n_bars - 1 - np.argmax(panel.listed[::-1], axis=0)
    for name, last in zip(panel.assets, lasts.tolist(), strict=True):
        if since <= last < panel.n_bars - 1:
            real = np.flatnonzero(priced[:, panel.assets.index(name)])[-1]
            gone[name] = f"has had no price since {panel.dates[real]}"
    if gone:
        name, what = next(iter(gone.items()))
        others = f" (and {len(gone) - 1} more)" if len(gone) > 1 else ""
        raise MarketError(
            f"{name}{others} {what}: bring the prices up to date, or, if it was delisted, sell it and name the others "
            "with --tickers"
        )
    new = [name for name in panel.assets if expected and name not in expected]
    said = f"{', '.join(new[:_SHOWN])} were not in the data of the run" if new else f"all {panel.n_assets} have a price"
    remembered = f"; decided without {first_few(left_out, _SHOWN)}, until --tickers names it again" if left_out else ""
    return Check("tickers", not new, said + remembered)


def check_drift(market: LiveMarket, config: Config, accepted: bool) -> Check:
    """Hold the features that the decision reads to their range in training.

    Raises MarketError if one lies further outside than `trading.drift_limit`, unless that is accepted.
    """
    features, ranges, limit = market.features, market.ranges, config.trading.drift_limit
    values = [
        (f"{asset}:{feature}", value, *seen)
        for feature, row, seen in zip(features.asset_names, ranges.assets, ranges.assets_seen, strict=True)
        for asset, value in zip(market.panel.assets, row, strict=True)
    ]
    values += [
        (feature, value, *seen)
        for feature, value, seen in zip(features.market_names, ranges.market, ranges.market_seen, strict=True)
    ]
    outside = [(max(low - value, value - high), name, value, low, high) for name, value, low, high in values]
    outside = [one for one in outside if one[0] > 0.0]
    if not outside:
        return Check("features", True, "every feature lies in its range in training")
    distance, name, value, low, high = max(outside, key=lambda one: one[0])
    finding = (
        f"{name} is {value:+.1f}, {distance:.1f} training deviations outside its range in training ({low:+.1f} to "
        f"{high:+.1f})"
    )
    refuse(
        distance > limit and not accepted,
        f"{finding}, beyond trading.drift_limit = {limit:g}: check the prices, or go on with --accept-drift",
        MarketError,
    )
    others = f"; {len(outside) - 1} more lie outside, by less" if len(outside) > 1 else ""
    return Check("features", bool(distance <= limit), finding + others)


def check_gaps(panel: MarketPanel, since: int, calendar: TradingCalendar) -> Check:
    """Sessions of the latest bars that have none, and bars at which an asset was held at its last price."""
    first = max(0, min(since, panel.n_bars - 1 - LATELY))
    days = {day.astype(dt.date) for day in panel.dates[first:]}
    expected = calendar.sessions(min(days), max(days))
    if isinstance(calendar, PeriodCalendar):  # the bar of a period may be dated on any day of it
        periods = {calendar.period(day) for day in days}
        missing = [str(end) for end in expected if calendar.period(end) not in periods]
    else:
        missing = [str(day) for day in expected if day not in days]
    findings = [f"no bar on {first_few(missing, _SHOWN)}, which the calendar has as sessions"] if missing else []
    if halts := describe_halts(panel, first):
        findings.append(halts)
    return Check("gaps", not findings, "; ".join(findings) or f"no session is missing since {min(days)}")


def check_jumps(panel: MarketPanel, since: int, train_end: int) -> Check:
    """Moves of the latest bars far beyond those of training."""
    with np.errstate(invalid="ignore"):
        moves = np.diff(np.log(panel.close), axis=0)
    usual = np.nanstd(moves[: max(train_end - 1, 2)], axis=0)
    first = max(0, min(since, panel.n_bars - 1 - LATELY))
    far = np.abs(moves[first:]) > JUMP * np.where(usual > 0.0, usual, np.inf)
    findings = []
    for row, column in np.argwhere(far):
        ratio = float(np.exp(moves[first + row, column]))
        split = split_of(float(moves[first + row, column]), _SPLIT_TOLERANCE)
        hint = "" if split is None else f", as after a split of {in_words(split)} (if so, adjust the older prices)"
        findings.append(f"{panel.assets[column]} {ratio - 1.0:+.0%} on {panel.dates[first + row + 1]}{hint}")
    usual_moves = f"no move beyond {JUMP:g} training deviations since {panel.dates[first]}"
    return Check("jumps", not findings, first_few(findings, _SHOWN) if findings else usual_moves)


def check_plausibility(panel: MarketPanel, since: int) -> Check:
    """Findings of the checks of plausibility that are dated on the latest bars, beside jumps."""
    first = max(0, min(since, panel.n_bars - 1 - LATELY))
    found = [one for one in find_implausible(panel, first) if one.check in DATED]
    named = [f"{one.check}: {one.ticker} on {one.date}, {one.value}" for one in found]
    return Check("prices", not found, "; ".join(named[:_SHOWN]) or "nothing implausible")


def check_history(panel: MarketPanel, entries: Sequence[Mapping[str, Any]], data: Mapping[str, Any]) -> Check:
    """Compare the prices with those of the run (``data`` of its manifest) and of earlier decisions of the log."""
    findings, assets = [], data.get("assets", panel.assets)
    left_out = [name for name in assets if name not in panel.assets]
    last = np.datetime64(data.get("last_date", "NaT"), "D")
    compared = bool(panel.dates[0] <= last <= panel.dates[-1]) and not left_out
    if compared and panel.until(last).of(assets).sha256 != data.get("panel_sha256"):
        findings.append(f"up to {last} they are not those of the run, bit for bit (restated, or other fields)")
    if fetched := panel.provenance.get("restated"):
        findings.append(f"Yahoo has restated {fetched}, and their history was fetched anew")
    for asset, factors in restatements(panel, entries).items():
        low, high, changed = min(factors.values()), max(factors.values()), sorted(factors)
        even = high / low - 1.0 <= RESTATED
        by = f"by a factor of {high:.6g}" if even else f"unevenly, by factors of {low:.6g} to {high:.6g}"
        known = sorted({entry["date"] for entry in entries if asset in entry["prices"]})
        adjusted = even and changed == known[: len(changed)]
        when = f"up to {changed[-1]}, as by a split or a dividend" if adjusted else f"on {first_few(changed, _SHOWN)}"
        findings.append(f"{asset} was restated {by}, {when}")
    unchanged = "the prices of the run and of earlier decisions are unchanged"
    if not compared:  # the run's hash is of all its prices together
        lacking = f"before their last bar, {last}" if data else "without its manifest"
        lacking = f"without {first_few(left_out, _SHOWN)}" if left_out else lacking
        unchanged = f"the prices of the run cannot be compared {lacking}"
        unchanged += "; those at earlier decisions are unchanged" if entries else ""
    return Check("history", not findings, "; ".join(findings[:_SHOWN]) or unchanged)


def restatements(panel: MarketPanel, entries: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Assets whose prices at earlier decisions are others now: by asset, by date, price now over price then."""
    factors: dict[str, dict[str, float]] = {}
    for entry in entries:
        bar = panel.bars_until(entry["date"]) - 1
        if bar < 0 or str(panel.dates[bar]) != entry["date"]:
            continue
        for number, asset in enumerate(panel.assets):
            then = entry["prices"].get(asset)
            factor = float(panel.share_closes[bar, number]) / then if then else np.nan
            if abs(factor - 1.0) > RESTATED:
                factors.setdefault(asset, {})[entry["date"]] = factor
    return factors
