"""Files that fuzzing found to end in a traceback, to hang, or to lead out of their folder: each is one line now."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from optuna.trial import create_trial

from finflow import files as memory_limit
from finflow.config import load_config
from finflow.errors import CheckpointError, ConfigError, FinflowError, MarketError
from finflow.evaluation.statistics.significance_tests import readings_of
from finflow.experiments.jobs import independent_trainings
from finflow.experiments.jobs.independent_trainings import Training
from finflow.experiments.tuning import study
from finflow.experiments.tuning.study import decode_returns
from finflow.experiments.tuning.trial_store import check_values, damaged_study
from finflow.line_file import HashedLog
from finflow.market.sources import price_sheet
from finflow.market.sources.price_sheet import read_sheet
from finflow.trading.account_state import read_fills, read_holdings
from finflow.training.checkpoints.run_folder import JOB, is_plain_name, resolve_run
from finflow.training.logs.run_log import _row_of

DEEP = "[" * 100_000


def complaint(read: Callable[[], object]) -> str:
    """The one short line that a damaged file is answered with."""
    with pytest.raises(FinflowError) as error:
        read()
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 1000
    return str(error.value)


READERS: dict[str, Callable[[Path], object]] = {
    "readings.jsonl": lambda path: readings_of(path, "p"),
    "state.jsonl": HashedLog.read,
    "held.json": lambda path: read_holdings(path, ("A",)),
    "held.yaml": lambda path: read_holdings(path, ("A",)),
    "config.yaml": lambda path: load_config(path, environ={}),
    "fills.csv": lambda path: read_fills(path, ("A",)),
}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((name, f"{DEEP}]\n") for name in ("readings.jsonl", "state.jsonl", "held.json", "held.yaml")),
        *(("config.yaml", text) for text in ('"output.a\\nb": 1', f"{'x' * 50_000}: 1", 'market: {source: "\\ud800"}')),
        *(("fills.csv", f"ticker,shares,price{rows}") for rows in ("\rA,1,2\r", f"\nA,{'x' * 20_000},2\n")),
    ],
)
def test_deep_json_odd_line_ends_and_long_names_are_one_short_line(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text.encode())
    complaint(lambda: READERS[name](tmp_path / name))


@pytest.mark.parametrize(
    "note", [{"seed": 0, "seeds": 10**12}, {"seed": "0", "seeds": 1}, {"universes": 3}, {"universes": ["../elsewhere"]}]
)
def test_the_note_of_a_job_says_what_a_job_says(note: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / JOB).write_text(json.dumps(note))
    with pytest.raises(CheckpointError, match="is not one of a job"):
        resolve_run(tmp_path).find_agents()


def test_the_run_that_a_note_names_lies_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without a checkpoint is removed before the next begins: a path would remove what lies anywhere."""
    assert is_plain_name("20260131_120000")
    assert not any(is_plain_name(name) for name in ("..", "", "a/b", "/etc", "../x", "a\\b", "a\0"))
    monkeypatch.setattr(Training, "fingerprint", lambda self, panel: {"code": "x"})
    training = object.__new__(Training)
    object.__setattr__(training, "folder", tmp_path)
    for run, kept in (("20260131_120000", True), ("../../home", False), ("/home", False)):
        (tmp_path / independent_trainings.NOTE).write_text(json.dumps({"code": "x", "run": run}))
        assert bool(training.note(None)) is kept  # type: ignore[arg-type]


def test_few_bytes_that_hold_more_than_the_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pd.DataFrame({"Date": pd.date_range("2000", periods=5000), "A": 1.0}).to_parquet(tmp_path / "p.parquet")
    monkeypatch.setattr(memory_limit, "machine_memory", lambda: 100_000)
    with pytest.raises(MarketError, match="5,000 rows of 2 columns, more than this machine can take"):
        read_sheet(tmp_path / "p.parquet", "parquet")


@pytest.mark.parametrize(("name", "value"), [("intermediate_values", {1: "x"}), ("user_attrs", "x")])
def test_what_a_storage_holds_in_place_of_a_study_is_told(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="no study, or a damaged one"), damaged_study("x"):
        raise KeyError("op_code")
    with pytest.raises(ConfigError, match="damaged"):
        decode_returns("no base64!")
    monkeypatch.setattr(study, "LONGEST_RETURNS", 8)
    assert decode_returns(study.encode_returns(np.zeros(1000))).nbytes == 16  # unpacked no further than two floats
    trial = create_trial(values=[1.0], intermediate_values={1: 0.5})
    check_values(trial, 1)
    setattr(trial, name, value)
    with pytest.raises(ConfigError, match="damaged"), damaged_study("x"):
        check_values(trial, 1)


def test_a_log_that_was_changed_is_not_branched_from(tmp_path: Path) -> None:
    for line in (b"{", b"[]", b'{"update": "x", "phase": 1}', DEEP.encode()):
        with pytest.raises(CheckpointError, match="was changed since"):
            _row_of(line, tmp_path / "metrics.jsonl")


def test_a_message_that_quotes_a_file_stays_one_line_of_limited_length() -> None:
    text = str(MarketError(f"line 3: the price {'9' * 20_000}\nis no number; write it with a decimal point"))
    assert text.startswith("line 3: the price 999")
    assert text.endswith("is no number; write it with a decimal point")
    assert "\n" not in text
    assert len(text) < 1000
    assert str(MarketError("two  blanks stay")) == "two  blanks stay"


def test_bytes_and_two_levels_of_one_name_in_parquet_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.parquet"
    pd.DataFrame({"Date": [b"2020-01-01", b"\xff\xfe"], "A": 1.0, "B": 2.0}).to_parquet(path)
    with pytest.raises(MarketError, match=r"YYYY-MM-DD|not UTF-8 text"):
        read_sheet(path, "parquet")
    levels = pd.MultiIndex.from_tuples([("2020-01-01", "A"), ("2020-01-02", "A")], names=["Date", "Date"])
    monkeypatch.setattr(price_sheet, "read_table", lambda path: pd.DataFrame({"Close": [1.0, 2.0]}, index=levels))
    with pytest.raises(MarketError, match="column 'Date' has 'A' on 2020-01-01, which is not a number"):
        read_sheet(path, "parquet").numbers(0)


def test_a_lone_surrogate_in_a_log_is_a_change_of_it(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    HashedLog.read(path).append({"kind": "decision", "date": "2020-01-01"})
    path.write_text(path.read_text("utf-8").replace("2020-01-01", "\\ud800"), "utf-8")
    with pytest.raises(FinflowError, match=r"line 1 of .* was changed"):
        HashedLog.read(path)
