"""Comparison of finished runs: read from their folders, checked to be comparable, and shown on one page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finflow.arrays import DateArray, FloatArray
from finflow.config import flatten
from finflow.config.yaml_text import parse_file
from finflow.errors import EvidenceError, one_line
from finflow.evaluation.backtest import BASELINE, CASH
from finflow.evaluation.multi_run.comparison_page import METRICS, Seeds, comparison_page, run_numbers
from finflow.evaluation.page.section import Section
from finflow.evaluation.statistics.backtest_overfitting import DailyReturns, choice_section, judge_best
from finflow.evaluation.statistics.bootstrap import (
    DIFFERENCE,
    Estimate,
    Resampling,
    improvement_estimate,
    interquartile_estimate,
)
from finflow.files import check_writable, write_together
from finflow.json_text import parse_json
from finflow.market.bar_frequency import bars_per_year
from finflow.provenance import short_hash
from finflow.strategies.classical import PATIENT
from finflow.training.checkpoints.run_folder import CONFIG, MANIFEST

SEED = "train.seed"
_NOT_COMPARED = (
    *("output.", "tune.", "market.cache_dir", "market.use_cache", "market.extend_cache", "train.device"),
    *("train.threads", "evaluation.sweeps", "evaluation.tax."),
)


@dataclass(frozen=True, eq=False)
class _Run:
    """A run folder as it was read."""

    label: str
    folder: Path
    metrics: dict[str, Any]
    table: pd.DataFrame
    dates: DateArray
    config: dict[str, object]
    panel: str

    @property
    def returns(self) -> FloatArray:
        return self.column(self.metrics["agent"])

    def column(self, name: str) -> FloatArray:
        """Returns of `returns.csv`, float64 (days,)."""
        return self.table[name].to_numpy(dtype=np.float64)


def compare_runs(folders: Sequence[Path], output: Path | None = None) -> tuple[Path, list[str]]:
    """Compare runs: the page, and lines for a terminal.

    Raises EvidenceError if a run has no whole report, is named twice, or was evaluated on other prices or other days.
    """
    runs = [_read(folder, label) for folder, label in zip(folders, _labels(folders), strict=True)]
    _check_comparable(runs)
    mark = short_hash("\n".join(str(run.folder.resolve()) for run in runs))
    folder = output or runs[0].folder.resolve().parent / "comparisons" / mark
    check_writable(folder, "--output", keep=False)
    first = runs[0]
    returns = {run.label: run.returns for run in runs}
    if BASELINE in first.table:
        returns[BASELINE] = first.column(BASELINE)
    page = comparison_page(
        {run.label: run_numbers(run.metrics, run.config.get(SEED)) for run in runs},
        returns,
        _seed_groups(runs),
        _differences(runs),
        _choice(runs),
        first.dates,
        {"window": first.metrics["window"], "panel": first.panel},
    )
    write_together({folder / name: content for name, content in page.files().items()})
    return folder / "report.html", page.text("runs", "seeds", "choice")


def _read(folder: Path, label: str) -> _Run:
    reports = folder / "reports"
    if not (reports / "metrics.json").is_file():
        raise EvidenceError(
            f"{folder} has no reports/metrics.json: name run folders that were evaluated; "
            f"--mode evaluate --resume {folder} evaluates a trained one"
        )
    try:
        metrics = parse_json((reports / "metrics.json").read_text("utf-8"))
        table = pd.read_csv(reports / "returns.csv", index_col="date", parse_dates=["date"])
        manifest = parse_json((folder / MANIFEST).read_text("utf-8"))
        config = flatten(parse_file(folder / CONFIG)[0])
        name, figures = metrics["agent"], metrics["strategies"][metrics["agent"]]
        if name not in table or not isinstance(figures, dict) or not isinstance(metrics["window"]["days"], int):
            raise ValueError("metrics.json is not one of finflow's")
        known = [one for one in dict.fromkeys((name, BASELINE, PATIENT, CASH)) if one in table or one == CASH]
        table = table[known].astype(np.float64)
        gaps = np.flatnonzero(~np.isfinite(table.to_numpy()).all(axis=1))
        if gaps.size:
            raise ValueError(f"returns.csv has a gap on {table.index[gaps[0]]:%Y-%m-%d}")
        return _Run(
            label,
            folder,
            metrics,
            table,
            table.index.to_numpy().astype("datetime64[D]"),
            {key: value for key, value in config.items() if not key.startswith(_NOT_COMPARED)},
            str(manifest["data_sha256"]),
        )
    except OSError as error:
        raise EvidenceError(
            f"{error.filename or folder}: {error.strerror or error}; evaluate that run again"
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise EvidenceError(
            f"the report in {folder} cannot be read ({one_line(error, 100)}); evaluate that run again"
        ) from error


def _check_comparable(runs: Sequence[_Run]) -> None:
    first = runs[0]
    for position, run in enumerate(runs):
        if any(run.folder.resolve() == other.folder.resolve() for other in runs[:position]):
            raise EvidenceError(f"{run.folder} is named twice; leave one of them out")
        if run.panel != first.panel:
            raise EvidenceError(
                f"{run.folder} was evaluated on other prices than {first.folder} (their hashes begin {run.panel[:8]} "
                f"and {first.panel[:8]}): figures of different markets do not compare"
            )
        if run.metrics["window"] != first.metrics["window"] or not np.array_equal(run.dates, first.dates):
            mine, other = (one.metrics["window"] for one in (run, first))
            raise EvidenceError(
                f"{run.folder} was evaluated from {mine['start']} to {mine['end']} ({mine['days']} days), "
                f"{first.folder} from {other['start']} to {other['end']} ({other['days']}): evaluate both on one window"
            )


def _labels(folders: Sequence[Path]) -> list[str]:
    """Names of the folders; with the folder above where two share one."""
    whole = [folder.resolve() for folder in folders]
    names = [folder.name for folder in whole]
    return [
        name if names.count(name) == 1 else f"{folder.parent.name}/{name}"
        for name, folder in zip(names, whole, strict=True)
    ]


def _choice(runs: Sequence[_Run]) -> Section:
    days = "the evaluated windows" if any("protocol" in run.metrics for run in runs) else "the test window"
    excess, names = np.column_stack([run.returns - run.column(CASH) for run in runs]), [run.label for run in runs]
    if not all(BASELINE in run.table and PATIENT in run.table for run in runs):
        return choice_section(excess, names, days, what="runs")
    year = int(str(runs[0].config.get("market.bars_per_year") or bars_per_year(runs[0].dates)))
    daily = {
        run.label: DailyReturns(run.returns, run.column(CASH), run.column(BASELINE), run.column(PATIENT), year)
        for run in runs
    }
    tries = [(run.metrics.get("verdict") or {}).get("tries", {}) for run in runs]
    chosen_among = sum(one.get("configurations", 1) for one in tries)  # each was the best of its own
    counted = chosen_among + max(one.get("readings_before", 0) for one in tries)
    settings = runs[0].metrics["bootstrap"]
    resampling = Resampling(settings["samples"], settings["block_length"], settings["seed"])
    return choice_section(excess, names, days, judge_best(daily, counted, resampling), "runs")


def _differences(runs: Sequence[_Run]) -> dict[str, dict[str, str]]:
    keys = sorted({key for run in runs for key in run.config})
    values_of = {key: [json.dumps(run.config.get(key), default=str) for run in runs] for key in keys}
    labels = [run.label for run in runs]
    return {key: dict(zip(labels, values, strict=True)) for key, values in values_of.items() if len(set(values)) > 1}


def _seed_groups(runs: Sequence[_Run]) -> dict[str, Seeds]:
    """Runs whose configurations differ by the seed alone, where there are two seeds or more."""
    found: dict[str, dict[str, _Run]] = {}
    for run in runs:
        kept = {key: value for key, value in run.config.items() if key != SEED}
        setting = json.dumps([run.metrics["agent"], kept], sort_keys=True, default=str)
        found.setdefault(setting, {}).setdefault(str(run.config.get(SEED)), run)
    several = [group for group in found.values() if len(group) > 1]
    groups = {f"group {number}": group for number, group in enumerate(several, start=1)}
    scores = {name: _scores(list(group.values())) for name, group in groups.items()}
    return {
        name: Seeds(
            tuple(run.label for run in group.values()),
            tuple(group),
            {metric: interquartile_estimate(values, seed=0) for metric, values in scores[name].items()},
            _improvements(name, scores),
        )
        for name, group in groups.items()
    }


def _scores(runs: Sequence[_Run]) -> dict[str, list[float]]:
    """Metric -> figure of each run, the difference from equal weight too; without what a run lacks."""
    found: list[dict[str, Any]] = [
        {**run.metrics["strategies"][run.metrics["agent"]], DIFFERENCE: run.metrics["against_equal_weight"][DIFFERENCE]}
        for run in runs
    ]
    scores: dict[str, list[Any]] = {metric: [one.get(metric) for one in found] for metric in (*METRICS, DIFFERENCE)}
    return {metric: values for metric, values in scores.items() if None not in values}


def _improvements(name: str, scores: Mapping[str, Mapping[str, list[float]]]) -> dict[str, Estimate]:
    own = scores[name]
    found = {}
    if DIFFERENCE in own:
        found["equal weight"] = improvement_estimate(own[DIFFERENCE], np.zeros(len(own[DIFFERENCE])), seed=0)
    for other, theirs in scores.items():
        if other != name and "sharpe" in own and "sharpe" in theirs:
            found[other] = improvement_estimate(own["sharpe"], theirs["sharpe"], seed=0)
    return found
