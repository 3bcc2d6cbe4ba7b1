"""Every kind of file that finflow reads: whole examples, and the function by which a command opens it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.random import Generator

from finflow.config import Config, dump_config, load_config
from finflow.evaluation.statistics.readings_ledger import Reading, readings_of
from finflow.experiments.jobs.run_comparison import _read as read_report
from finflow.experiments.retraining.retraining import data_of
from finflow.market.cash import read_rates
from finflow.market.sources.panel_loader import load_panel, read_tickers
from finflow.offline.collection import collect
from finflow.offline.dataset import card_file, load_dataset, save_dataset
from finflow.offline.imported_decisions import read_decisions
from finflow.preferences.model_files import KIND, load_model
from finflow.preferences.pairs import read_pairs
from finflow.preferences.reward_model import OutcomeUnits, RewardModel
from finflow.preferences.segment_paths import stored_path
from finflow.tensor_file import file_content
from finflow.trading.account_state import fills_of, last_decision
from finflow.trading.decision_log import DecisionLog
from finflow.trading.holdings import read_fills, read_holdings
from finflow.training.checkpoints.checkpoint_reader import Checkpoint
from finflow.training.checkpoints.run_resolver import JOB, NOTE, resolve_run
from finflow.training.data.offline_data import CARD
from finflow.training.data.training_data import prepare
from finflow.training.judging.evaluations import _behaviour, _logged
from scripts.convert_relatives import prices_from_relatives
from scripts.evidence.fuzz_checkpoints import header_entries, header_size
from scripts.evidence.fuzz_mutations import (
    Mutation,
    csv_changed,
    json_changed,
    npz_changed,
    parquet_changed,
    value_changed,
    yaml_changed,
)

SETTINGS: dict[str, object] = {
    **{"market.source": "synthetic", "market.synthetic.bars": 700, "market.synthetic.assets": 3},
    **{"market.train_end": "2021-12-31", "market.validation_end": "2022-06-30", "env.episode_length": 20},
    **{"features.filters": "none", "features.regimes": False, "train.offline_episodes": 6},
}
ASSETS = ("A", "B", "C")
DAYS = pd.bdate_range("2020-01-01", periods=30, name="Date")


@dataclass(frozen=True)
class Reader:
    """A kind of file.

    Attributes
    ----------
    path : Path
        Where each changed file is put.
    originals : tuple of bytes
        Whole files that are taken.
    changes : tuple of Mutation
        By the rules of its format, besides those of bytes.
    read : callable
        Opens the file; a mistake in it is a FinflowError.
    """

    path: Path
    originals: tuple[bytes, ...]
    changes: tuple[Mutation, ...]
    read: Callable[[Path], object]


def _file(name: str, content: bytes, change: Mutation, read: Callable[[Path], object]) -> Callable[[Path], Reader]:
    """Maker of a reader of one file with one original."""
    return lambda folder: Reader(folder / name, (content,), (change,), read)


def _prices(folder: Path, kind: str, make: Callable[[], pd.DataFrame]) -> Reader:
    """A file of prices, opened as the source of a market."""
    frame = make()
    path = folder / f"prices.{kind}"
    index = not isinstance(frame.index, pd.RangeIndex)
    content = frame.to_csv(index=index).encode() if kind == "csv" else frame.to_parquet(index=index)
    market = load_config(None, {"market.source": kind, "market.path": str(path)}, environ={}).market
    change = csv_changed if kind == "csv" else parquet_changed
    return Reader(path, (content or b"",), (change,), lambda found: load_panel(market))


def _closes() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(np.exp(np.cumsum(0.01 * rng.standard_normal((30, 3)), axis=0)), DAYS, list(ASSETS))


def _long() -> pd.DataFrame:
    rows = _closes().reset_index().melt("Date", var_name="Ticker", value_name="Close")
    return rows.assign(Open=rows["Close"], High=rows["Close"] * 1.01, Low=rows["Close"] * 0.99, Volume=1000)


def _two_lines() -> pd.DataFrame:
    levels = pd.MultiIndex.from_product([("Close", "Volume"), ASSETS], names=("Price", "Ticker"))
    return pd.concat([_closes(), 1000.0 * _closes()], axis=1).set_axis(levels, axis=1)


def _decisions(folder: Path) -> Reader:
    panel = prepare(_config(folder)).panel
    weights = pd.DataFrame(0.25, pd.Index(panel.dates[40:60:5], name="date"), [*panel.assets, "cash"])
    content = weights.to_csv().encode()
    return Reader(
        folder / "decisions.csv", (content,), (csv_changed,), lambda path: read_decisions(path, panel, panel.n_bars)
    )


def _configuration(folder: Path) -> Reader:
    contents = (dump_config(Config()).encode(), dump_config(_config(folder)).encode())
    own = b"market:\n  source: csv\n  path: p.csv\ntune:\n  space:\n    bcell.tau: {low: 0.001, high: 0.1}\n"
    return Reader(folder / "config.yaml", (*contents, own), (yaml_changed,), lambda path: load_config(path, environ={}))


def _pair(day: int, better: str) -> dict[str, object]:
    span = {"start": str(DAYS[day].date()), "end": str(DAYS[day + 5].date())}
    return {"first": {"strategy": "momentum", **span}, "second": {"strategy": "cash", **span}, "better": better}


def _pairs_of_strategies() -> bytes:
    """Comparisons of two strategies, a JSON object a line."""
    return "".join(json.dumps(_pair(day, "tie")) + "\n" for day in range(6)).encode()


def _pair_table() -> bytes:
    """The same as a table."""
    columns = [f"{which}_{name}" for which in ("first", "second") for name in ("run", "strategy", "start", "end")]
    row = ",momentum,2020-01-01,2020-02-01,,cash,2020-01-01,2020-02-01,first\n"
    return (",".join([*columns, "better"]) + "\n" + 5 * row).encode()


def _readings() -> bytes:
    """Entries of the ledger of readings, a JSON object a line."""
    one = Reading("p", "j", "agent", ("cash",), "c", 1, ("2020-01-01", "2021-01-01"), 0.1, "logs/x", "2022-01-01")
    return "".join(json.dumps(dataclasses.asdict(one)) + "\n" for _ in range(4)).encode()


def _log(folder: Path) -> Reader:
    """The log of decisions, changed as it is and with hashes that are right again."""
    path = folder / "state.jsonl"
    entries: list[dict[str, Any]] = []
    for day in range(3):
        date = str(DAYS[day].date())
        account = {"shares": {"A": 3.0}, "cash": 10.0}
        entries.append({"kind": "decision", "date": date, "account": account, "orders": {"A": 1.0}, "cost": 0.1})
        entries.append({"kind": "fills", "date": date, "fills": [["A", 1.0, 5.0, 0.1]]})

    def hashed(changed: list[dict[str, Any]]) -> bytes:
        path.unlink(missing_ok=True)
        log = DecisionLog.read(path)
        for entry in changed:
            log.append(entry)
        return path.read_bytes()

    whole = hashed(entries)

    def hash_right(rng: Generator, content: bytes) -> bytes:
        try:
            return hashed(value_changed(rng, entries))
        except (ValueError, TypeError):  # what no JSON can hold
            return content

    def read(found: Path) -> None:
        log = DecisionLog.read(found)
        newest = last_decision(log.entries, "9999-12-31")
        if newest is not None:
            fills_of(log.entries, newest["date"])

    return Reader(path, (whole,), (json_changed, hash_right), read)


def _run_json(folder: Path, name: str) -> Reader:
    """One of the files of a run that are read again when it is compared, resumed or retrained."""
    files = _report(folder)
    path = folder / name
    checkpoint = Checkpoint(folder / "models" / "checkpoint_best.safetensors", {}, {}, None, 1)

    def read(found: Path) -> None:
        if name in ("reports/metrics.json", "manifest.json", "config.yaml", "reports/returns.csv"):
            read_report(folder, "run")
        data_of(checkpoint)
        _behaviour(checkpoint)
        _logged(checkpoint, folder, "metrics.jsonl")

    change = {".json": json_changed, ".yaml": yaml_changed, ".csv": csv_changed, ".jsonl": json_changed}[path.suffix]
    return Reader(path, (files[name],), (change,), read)


def _report(folder: Path) -> dict[str, bytes]:
    """Files of a run that was judged, as far as they are read again."""
    returns = pd.DataFrame(0.01, pd.Index(DAYS.astype(str), name="date"), ["momentum", "equal-weight", "cash"])
    row = {"sharpe": 1.0, "annual_turnover": 2.0}
    metrics = {
        "agent": "momentum",
        "strategies": {name: {"sharpe": 1.0, "log_growth": 0.1} for name in returns},
        "window": {"days": 30, "first": "2020-01-01", "last": "2020-02-11"},
        "verdict": {"finding": "not shown"},
    }
    families = {"momentum": {"episodes": 4, "returns": {name: {"median": value} for name, value in row.items()}}}
    files = {
        "reports/metrics.json": (json.dumps(metrics, indent=2) + "\n").encode(),
        "reports/returns.csv": returns.to_csv().encode(),
        "manifest.json": (json.dumps({"data_sha256": "0" * 64, "data": {"source": "csv"}}, indent=2) + "\n").encode(),
        "config.yaml": dump_config(Config()).encode(),
        CARD: (json.dumps({"families": families, "transitions": 80}, indent=2) + "\n").encode(),
        "metrics.jsonl": b'{"phase": "offline", "update": 1}\n{"phase": "online", "update": 2}\n',
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return files


def _job(folder: Path) -> Reader:
    content = b'{\n"seed": 0, "seeds": 2, "universes": []}'
    (folder / "seed-0").mkdir(parents=True)
    (folder / "seed-0" / NOTE).write_text('{"finished": true, "run": "x"}')
    return Reader(folder / JOB, (content,), (json_changed,), lambda path: _agents(folder))


def _agents(folder: Path) -> None:
    run = resolve_run(folder)
    _ = run.universes
    if run.find_agents():
        raise RuntimeError("agents were found where none was trained")


def _path_of_report(folder: Path, name: str) -> Reader:
    """The tables of a report, from which segments of a strategy are cut."""
    data = prepare(_config(folder))
    dates = data.panel.dates[100:130]
    cells = [(date, asset) for date in dates[:-1] for asset in data.panel.assets]
    held = pd.DataFrame(cells, columns=["date", "asset"]).assign(strategy="momentum", value=300.0, weight=0.3)
    traded = held.drop(columns="weight").assign(side="buy", cost=0.1, before=0.2, after=0.3)
    reports = folder / "run" / "reports"
    reports.mkdir(parents=True)
    returns = pd.DataFrame({"momentum": 0.01}, pd.Index(dates[1:].astype(str), name="date"))
    files = {
        "returns.csv": returns.to_csv().encode(),
        "holdings.parquet": held.to_parquet(index=False),
        "trades.parquet": traded.to_parquet(index=False),
    }
    for file, content in files.items():
        (reports / file).write_bytes(content)
    change = csv_changed if name.endswith("csv") else parquet_changed
    run = str(folder / "run")
    return Reader(reports / name, (files[name],), (change,), lambda path: stored_path(run, "momentum", data.process))


def _dataset(folder: Path) -> Reader:
    config = _config(folder)
    data = prepare(config)
    path = folder / "dataset.npz"
    save_dataset(path, collect(config, data.process, data.split.train))
    return Reader(path, (path.read_bytes(),), (npz_changed,), lambda found: card_file(load_dataset(found)))


def _reward_model(folder: Path) -> Reader:
    """A reward model, changed as a file and under a hash that is right."""
    data, path = prepare(_config(folder)), folder / "model.safetensors"
    settings = data.config.preferences.model.model_copy(update={"members": 2})
    shape = data.shape._replace(hidden=8)
    model = RewardModel(shape, 2, OutcomeUnits(1.0, 1.0, 1.0), torch.Generator())
    state = {
        **{"kind": KIND, "shape": shape._asdict(), "units": model.units._asdict(), "features": ["a"], "report": {}},
        "config": settings.model_dump(mode="json"),
    }

    def hash_right(rng: Generator, content: bytes) -> bytes:
        try:
            return file_content(model.state_dict(), value_changed(rng, state))
        except (ValueError, TypeError):  # what no JSON can hold
            return content

    whole = file_content(model.state_dict(), state)
    return Reader(path, (whole,), (header_size, header_entries, hash_right), load_model)


def _config(folder: Path) -> Config:
    places = {"output.logs_dir": str(folder / "logs"), "output.offline_dir": str(folder / "offline")}
    return load_config(None, {**SETTINGS, **places}, environ={})


HOLDINGS = partial(read_holdings, universe=ASSETS)
READERS: dict[str, Callable[[Path], Reader]] = {
    "CSV: prices, one column an asset": partial(_prices, kind="csv", make=_closes),
    "CSV: prices, one row an asset": partial(_prices, kind="csv", make=_long),
    "CSV: prices, two lines of names": partial(_prices, kind="csv", make=_two_lines),
    "CSV: rates of cash": _file(
        "rates.csv", pd.DataFrame({"rate": 0.01}, DAYS).to_csv().encode(), csv_changed, read_rates
    ),
    "CSV: decisions": _decisions,
    "CSV: holdings": _file("held.csv", b"ticker,shares\nA,10\nB,2.5\ncash,1000\n", csv_changed, HOLDINGS),
    "CSV: fills": _file(
        "fills.csv",
        b"ticker,shares,price,cost\nA,10,5.5,0.1\nB,-2,3,\n",
        csv_changed,
        lambda path: read_fills(path, ASSETS),
    ),
    "CSV: pairs": _file("pairs.csv", _pair_table(), csv_changed, lambda path: read_pairs([path])),
    "CSV: returns of a report": partial(_path_of_report, name="returns.csv"),
    "CSV: returns of a compared run": partial(_run_json, name="reports/returns.csv"),
    "text: names of assets": _file("tickers.txt", b"AAPL, MSFT # two\nBRK-B\nSPY\n", csv_changed, read_tickers),
    "text: price relatives": _file(
        "relatives.txt",
        "\n".join(["A B C", *("1.01 0.99 1.0" for _ in range(20))]).encode(),
        csv_changed,
        lambda path: prices_from_relatives(path, DAYS[0].date()),
    ),
    "Parquet: prices, one column an asset": partial(_prices, kind="parquet", make=_closes),
    "Parquet: prices, one row an asset": partial(_prices, kind="parquet", make=_long),
    "Parquet: holdings of a report": partial(_path_of_report, name="holdings.parquet"),
    "Parquet: trades of a report": partial(_path_of_report, name="trades.parquet"),
    "YAML: configuration": _configuration,
    "YAML: configuration of a compared run": partial(_run_json, name="config.yaml"),
    "YAML: holdings": _file("held.yaml", b"shares:\n  A: 10\n  B: 2.5\ncash: 1000\n", yaml_changed, HOLDINGS),
    "JSON: holdings": _file("held.json", b'{"shares": {"A": 10, "B": 2.5}, "cash": 1000}', json_changed, HOLDINGS),
    "JSON: pairs, a line each": _file(
        "pairs.jsonl", _pairs_of_strategies(), json_changed, lambda path: read_pairs([path])
    ),
    "JSON: test readings, a line each": _file(
        "readings.jsonl", _readings(), json_changed, lambda path: readings_of(path, "p")
    ),
    "JSON: paper trading, a line each": _log,
    "JSON: metrics of a report": partial(_run_json, name="reports/metrics.json"),
    "JSON: manifest": partial(_run_json, name="manifest.json"),
    "JSON: data card": partial(_run_json, name=CARD),
    "JSON: log of a training": partial(_run_json, name="metrics.jsonl"),
    "JSON: note of a job": _job,
    "npz: behaviour data": _dataset,
    "safetensors: reward model": _reward_model,
}
"""Kind of file -> what makes its reader in a folder; checkpoints and studies are in `fuzz_stores`."""
