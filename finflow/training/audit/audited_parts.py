"""Parts of an audit that are more than tables: the source of the prices, the decision process, and strategies."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from finflow.arrays import FloatArray
from finflow.config import MarketConfig
from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import DecisionProcess
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.errors import MarketError
from finflow.evaluation.backtest import run_backtests
from finflow.market.panel import MarketPanel
from finflow.market.price_adjustments import as_traded
from finflow.market.sources import panel_loader
from finflow.market.sources.price_files import FILE_A_FIELD, FILE_AN_ASSET, LONG, WIDE
from finflow.market.sources.yahoo import Download
from finflow.market.sources.yahoo_cache import download_prices
from finflow.strategies.strategy import Information, Strategy
from finflow.training.audit.look_ahead import Answer, Rows
from finflow.training.data.replay import MarketTensors, Transitions, make_batch
from finflow.training.data.rewards import RewardUnits


class DecisionRecorder:
    """A strategy that asks another, and records its answers and the accounts that it saw.

    ``account``: the observed portfolio that is handed in at every decision, in place of its own. Beside the weights,
    the answers have the ``notes`` that a strategy makes.
    """

    def __init__(self, inner: Strategy, account: FloatArray | None = None) -> None:
        self.inner, self.name, self.account = inner, inner.name, account
        self.accounts: list[FloatArray] = []
        self.answers: dict[str, list[NDArray[Any]]] = {}

    def decide(self, information: Information) -> FloatArray:
        observation = dict(information.observation or {})
        if self.account is not None:
            own = self.account[: len(information.portfolio)]
            observation["portfolio"] = self.account
            information = replace(information, portfolio=own, observation=observation)
        self.accounts.append(np.array(observation["portfolio"]))
        target = np.array(self.inner.decide(information), dtype=np.float64)
        for name, value in {"weights": target, **getattr(self.inner, "notes", {})}.items():
            self.answers.setdefault(name, []).append(value)
        return target


class InputRecorder:
    """Holds its portfolio and notes every input of a decision, with the memory behind each array."""

    name = "input recorder"

    def __init__(self) -> None:
        self.notes: dict[str, NDArray[Any]] = {}

    def decide(self, information: Information) -> FloatArray:
        handed: dict[str, NDArray[Any]] = {"listed": information.listed, "portfolio": information.portfolio}
        handed |= {f"observed {name}": value for name, value in (information.observation or {}).items()}
        prices = information.prices
        self.notes = {"prices known": np.array([len(prices)]), "newest prices": prices[-1]}
        self.notes |= {name: np.array(array) for name, array in handed.items()}
        for name, array in {"prices": prices, **handed}.items():
            while isinstance(array.base, np.ndarray):
                array = array.base
            digest = np.array([array.size, zlib.crc32(array.tobytes())], dtype=np.uint64)
            self.notes[f"memory behind {name}"] = np.unpackbits(digest.view(np.uint8))
        return information.portfolio


def decisions(process: DecisionProcess, last: int, make: Callable[[], Strategy], rhythms: Sequence[int]) -> Answer:
    """Answers of a strategy in the backtest, in runs that end with the last decision that may not know of a shock.

    One has that decision alone, and one as many before it as one of the ``rhythms``, if there are any. At lags over 1
    the observed portfolio is newer than the prices, by design: it is the account's own. There a shock moves the
    account, so every decision is asked for with the same one.
    """
    lag, account = process.lag, None
    if lag > 1:
        account = np.zeros(process.portfolio_size)
        account[: process.n_weights] = 1.0 / process.n_weights
    parts: dict[str, Rows] = {}
    # A run of one decision alone has none where the market is cut, and would be missed there.
    chosen = [max(rhythms[int(np.random.default_rng(last).integers(len(rhythms)))], 2)] if rhythms else []
    for length in (0, *chosen):
        window = range(last + lag - length, last + lag + 3)
        bars = np.asarray(process.decision_bars(window), dtype=np.int64)
        if window.start < process.first_bar or len(bars) < 2:  # features begin later, or the cut leaves no decision
            continue
        recorder = DecisionRecorder(make(), account)
        run_backtests(process, window, [recorder])
        for part, values in recorder.answers.items():
            parts[f"{part} (decision {length + 1} of a run)"] = Rows(np.stack(values), bars, lag)
    return parts


_ROUNDING = 1e-12  # costs are divided out of what was earned
_PORTFOLIOS = 4
_TRADES = 8


def episode(process: DecisionProcess, last: int, seed: int, before: int) -> Answer:
    """Observations and rewards of the vector environment, for portfolios that trade at random around a bar."""
    lag = process.lag
    decisions = process.decision_bars(range(max(last - before, 0), last + lag + 2))
    env = PortfolioVectorEnv(process, range(process.panel.n_bars), _PORTFOLIOS)
    rng = np.random.default_rng([seed, last])
    drawn, _ = draw_coverage(rng, _PORTFOLIOS * (23 + lag), process.n_weights)  # one set more than there are decisions
    weights, *actions = drawn.reshape(-1, _PORTFOLIOS, process.n_weights)
    observation, _ = env.reset(seed=seed, options={"bars": np.full(_PORTFOLIOS, decisions.start), "weights": weights})
    seen: dict[str, list[NDArray[Any]]] = {}
    for action in actions[: len(decisions)]:
        row = {name: np.array(value) for name, value in observation.items()}
        observation, reward, _, truncated, info = env.step(action)
        for name, value in (row | {"reward": reward, "wealth": info["wealth"], "cost": info["cost"]}).items():
            seen.setdefault(name, []).append(np.array(value))
        if truncated.any():
            break
    bars = np.arange(decisions.start, decisions.start + len(seen["reward"]), dtype=np.int64)
    paid = {name: Rows(np.stack(seen[name]), bars + 1) for name in ("reward", "wealth")}
    # The portfolio is the account's own and known when it was filled: at lags over 1 only the market is older.
    lags = {"assets": lag, "market": lag, "portfolio": min(lag, 1)}
    observed = {name: Rows(np.stack(seen[name]), bars, lags.get(name, lag)) for name in observation}
    return {**observed, **paid, "cost": Rows(np.stack(seen["cost"]), bars)}


def fills(process: DecisionProcess, last: int, seed: int) -> Answer:
    """Returns earned by fills, which begin after the fill.

    The level of all prices jumps on the way to the bar of the fill, and then they move as they did. Portfolios
    without cash are the same at the fill, and earn the same: what they earn is as if known before the jump. Who
    is paid for the way to the fill was filled too early.
    """
    panel, bar = process.panel, last + 1
    whole = panel.listed[last : last + 3].all(axis=0)
    if bar not in process.decision_bars(range(bar, panel.n_bars)) or not whole.any():
        return {}
    rng = np.random.default_rng([seed, last])
    weights, actions = rng.dirichlet(np.ones(int(whole.sum())), size=(2, _TRADES))
    env = PortfolioVectorEnv(process, range(panel.n_bars), len(weights))
    start, target = np.zeros((2, len(weights), process.n_weights))
    start[:, np.flatnonzero(whole)], target[:, np.flatnonzero(whole)] = weights, actions
    env.reset(seed=0, options={"bars": np.full(len(weights), bar), "weights": start})
    *_, info = env.step(target)
    # Costs may depend on volumes, which jump too.
    earned = info["wealth"] / process.env.initial_capital / (1.0 - info["cost"])
    return {"return": Rows(earned[None], np.array([last]), tolerance=_ROUNDING)}


def replay_states(process: DecisionProcess, last: int, before: int) -> Answer:
    """Inputs of learning: the features of both states of a transition, for decisions around the bar `last`."""
    lag = process.lag
    bars = np.asarray(process.decision_bars(range(max(last - before, 0), last + lag + 2)), dtype=np.int64)
    market = MarketTensors.of(process, torch.device("cpu"))
    units = RewardUnits.of(process, 1.0, "none", torch.device("cpu"))
    empty = Transitions(len(bars), process.n_weights, process.portfolio_size, torch.device("cpu"))
    batch = make_batch({**empty.columns, "bar": torch.from_numpy(bars)}, market, units)
    parts: dict[str, Rows] = {}
    for name, states in (("assets", batch.both.assets), ("market", batch.both.market)):
        now, following = states.numpy()[: len(bars)], states.numpy()[len(bars) :]
        parts |= {name: Rows(now, bars, lag), f"next {name}": Rows(following, bars + 1, lag)}
    return parts


_FIELDS = ("close", "open", "high", "low", "volume")
_DIVIDENDS = ("dividends", "quoted")
_HIGHEST_RATE = 1.0
_NEAR = 250
"""Bars before and after a probe, of the pieces that have listings or a gap put into them."""
_FEW = 6
"""Bars, one more than the last ones on which the Yahoo source takes an absent asset to be still listed."""


def loaded(panel: MarketPanel, market: MarketConfig) -> Answer:
    """The market as the configured source would have given it, written down and loaded through the source."""
    found = through_the_source(panel, market)
    bars = np.searchsorted(panel.dates, found.dates)
    places = [panel.assets.index(name) for name in found.assets]
    answer = {"dates": Rows(found.dates, bars), "cash": Rows(found.cash_returns, bars)}
    for field in (*_fields(found), *(name for name in _DIVIDENDS if getattr(found, name) is not None)):
        table = np.full((found.n_bars, panel.n_assets), np.nan)
        table[:, places] = getattr(found, field)
        answer[field] = Rows(table, bars)
    return answer if found.benchmark is None else {**answer, "benchmark": Rows(found.benchmark, bars)}


def loaded_with_newcomers(panel: MarketPanel, last: int, market: MarketConfig) -> Answer:
    """The source with an asset that lists after the bar `last`, and one that has ended before it."""
    piece, first = _around(panel, last)
    close = piece.close.copy()
    close[: last - first + 2, 0] = np.nan
    close[max(last - first - 20, 2) :, 1] = np.nan
    piece = replace(piece, close=close, open=None, high=None, low=None, volume=None, dividends=None, quoted=None)
    found = loaded(piece, market.model_copy(update={"dividends": "reinvested"}))
    return {name: rows._replace(bars=rows.bars + first) for name, rows in found.items()}


def loaded_with_gap(panel: MarketPanel, last: int, market: MarketConfig) -> Answer:
    """A file in which an asset has no price around the bar `last`: refused, or repaired from the past alone."""
    piece, first = _around(panel, last)
    at = last - first
    table = pd.DataFrame(piece.close, index=pd.DatetimeIndex(piece.dates, name="Date"), columns=list(piece.assets))
    table.iloc[at - 1 : at + 2, int(np.argmax(piece.listed[at - 2 : at + 4].sum(axis=0)))] = np.nan
    with tempfile.TemporaryDirectory() as folder:
        path = _save(table.loc[:, table.notna().any()], Path(folder) / "prices", "csv")
        update = {"source": "csv", "path": path, "tickers": None}
        update |= {"benchmark": None, "start": None, "cash_rate": 0.0, "dividends": "reinvested"}
        try:
            found = panel_loader.load_panel(market.model_copy(update=update))
        except MarketError:
            return {"refused": Rows(np.array([True]), np.array([last]))}
    return {"close": Rows(found.close, np.searchsorted(panel.dates, found.dates))}


def _around(panel: MarketPanel, last: int) -> tuple[MarketPanel, int]:
    first = max(last - _NEAR, 0)
    return panel.between(first, min(last + _NEAR, panel.n_bars)), first


def through_the_source(panel: MarketPanel, market: MarketConfig) -> MarketPanel:
    """Write a panel down as the configured source has its prices, and load it from there.

    CSV and Parquet are written in the layout that was read, with every field of the panel. Yahoo is replaced by a
    download that answers from the panel, and the store keeps it in a folder of its own. Sources that cannot be changed
    (embedded, synthetic) are stood in for by a CSV file. A series of cash rates is written as the rates that explain
    the panel's returns of cash.
    """
    names = tuple(panel.assets[column] for column in np.flatnonzero(panel.listed.any(axis=0)))
    update: dict[str, Any] = {"tickers": names, "benchmark": None, "start": None}
    if panel.benchmark is not None:
        update["benchmark"] = panel.benchmark_name
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if isinstance(market.cash_rate, Path):
            # what a bar earns was in force at the bar before
            annual = np.minimum((1.0 + panel.cash_returns[1:]) ** panel.bars_per_year - 1.0, _HIGHEST_RATE)
            rates = pd.DataFrame({"Date": panel.dates[:-1], "rate": annual})
            update |= {"cash_rate": _save(rates, folder / "rates", "csv", index=False), "cash_unit": "fraction"}
        if market.source == "yfinance":
            update |= {"cache_dir": folder / "store", "use_cache": True, "test_end": None}
            asked = market.model_copy(update=update)
            prices = download_prices(asked, _answers(panel, market.auto_adjust))
            return panel_loader.assemble(prices, asked).until(panel.dates[-1])
        kind = "parquet" if market.source == "parquet" else "csv"
        layout = str(panel.provenance.get("layout", FILE_A_FIELD if _fields(panel) != ("close",) else WIDE))
        update |= {"source": kind, "path": _write(layout, _tables(panel), folder / "prices", kind)}
        return panel_loader.load_panel(market.model_copy(update=update))


def _fields(panel: MarketPanel) -> tuple[str, ...]:
    return tuple(field for field in _FIELDS if getattr(panel, field) is not None)


def _tables(panel: MarketPanel) -> dict[str, pd.DataFrame]:
    index = pd.DatetimeIndex(panel.dates, name="Date")
    tables = {field: pd.DataFrame(table, index, list(panel.assets)) for field, table in as_traded(panel).items()}
    if panel.benchmark is not None:
        tables["close"][str(panel.benchmark_name)] = panel.benchmark
    kept = tables["close"].columns[tables["close"].notna().any()]
    return {field: table[[name for name in kept if name in table]] for field, table in tables.items()}


def _save(table: pd.DataFrame, path: Path, kind: str, index: bool = True) -> Path:
    path = path.with_name(f"{path.name}.{kind}")
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=index) if kind == "csv" else table.to_parquet(path, index=index)
    return path


def _write(layout: str, tables: dict[str, pd.DataFrame], path: Path, kind: str) -> Path:
    """Write tables in a layout of `price_files`; returns the file or folder."""
    whole = pd.concat({field.capitalize(): table for field, table in tables.items()}, axis=1)
    whole = whole.rename_axis(columns=["Price", "Ticker"])
    if layout in (FILE_A_FIELD, FILE_AN_ASSET):
        assets = {name: whole.xs(name, axis=1, level="Ticker").dropna(how="all") for name in tables["close"].columns}
        for name, table in (tables if layout == FILE_A_FIELD else assets).items():
            _save(pd.DataFrame(table), path / name, kind)
        return path
    if layout == LONG:
        rows = whole.stack(level="Ticker", future_stack=True).dropna(how="all").reset_index()
        return _save(rows.rename_axis(columns=None), path, kind, index=False)
    return _save(tables["close"] if layout == WIDE else whole, path, kind)


def _answers(panel: MarketPanel, auto_adjust: bool) -> Download:
    """A download with the panel's prices, in frames of yfinance's shape.

    Adjusted closes that know the last price stand beside the closes where those are asked for. Where an asset ended
    within the last bars, the Yahoo source leaves those bars out until it is known that it has: a few more follow then,
    on which whatever is still listed stays as it was.
    """
    tables = _tables(panel)
    close = tables["close"]
    full = {field.capitalize(): tables.get(field, close * np.nan).reindex(columns=close.columns) for field in _FIELDS}
    if not auto_adjust:
        full["Adj Close"] = close * close.ffill().iloc[-1]
    if bool((panel.listed[-_FEW:].any(axis=0) & ~panel.listed[-1]).any()):
        after = pd.bdate_range(panel.dates[-1], periods=_FEW + 1)[1:]
        more = pd.DatetimeIndex([*close.index, *after], name="Date")
        lasting = close.columns[close.iloc[-1].notna()]
        for field, table in full.items():
            full[field] = table.reindex(more)
            full[field].loc[after, lasting] = table[lasting].iloc[-1].to_numpy()

    def download(tickers: list[str], **_: Any) -> pd.DataFrame:
        asked = {field: table.reindex(columns=tickers) for field, table in full.items()}
        return pd.concat(asked, axis=1).rename_axis(columns=["Price", "Ticker"]).sort_index(axis=1)

    return download
