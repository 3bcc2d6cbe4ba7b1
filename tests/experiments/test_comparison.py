"""Runs side by side: only what can be compared is, seeds are taken together, every number is the runs' own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from finflow.cli import main
from finflow.errors import EvidenceError
from finflow.evaluation.statistics.backtest_overfitting import overfitting
from finflow.evaluation.statistics.bootstrap import improvement_estimate, interquartile_estimate
from finflow.experiments.jobs.run_comparison import compare_runs
from tests.commands import refusal

DAYS = 300


def write_run(
    folder: Path, sharpe: float | None = 1.0, seed: int = 0, panel: str = "a" * 64, edge: float = 0.0, **changes: Any
) -> Path:
    """The folder of a run that was judged; `config_KEY` changes the configuration, other names `metrics.json`."""
    config = {"env": {"commission_bps": 10.0}, "bcell": {"gamma": 0.99}, "train": {"seed": seed, "threads": 1}}
    for name in [name for name in changes if name.startswith("config_")]:
        section, key = name.removeprefix("config_").split("__")
        config[section][key] = changes.pop(name)
    dates = pd.bdate_range("2016-01-04", periods=DAYS)
    figures = {
        "sharpe": sharpe,
        "annual_return": 0.1 + 0.01 * seed,
        "annual_volatility": 0.15,
        "max_drawdown": -0.2,
        "cvar": -0.02,
        "annual_turnover": 1.5,
        "annual_cost": 0.002,
    }
    content = {
        "agent": "finflow",
        "strategies": {
            "finflow": {**figures, "intervals": {"sharpe": None if sharpe is None else [sharpe - 0.5, sharpe + 0.5]}}
        },
        "window": {"start": str(dates[0].date()), "end": str(dates[-1].date()), "days": DAYS},
        "verdict": {"beats_equal_weight": "not shown", "dsr": 0.6, "spa": {"p_consistent": 0.3}, "tries": {"total": 3}},
        "bootstrap": {"samples": 200, "block_length": 21, "seed": 0, "confidence": 0.95},
        "against_equal_weight": {"sharpe_difference": 0.1 * seed, "interval": [-0.1, 0.2]},
        **changes,
    }
    (folder / "reports").mkdir(parents=True)
    market = np.random.default_rng(99).normal(4e-4, 0.01, len(dates))
    table = pd.DataFrame({"finflow": market + np.random.default_rng(seed).normal(edge, 0.003, len(dates))})
    table = table.assign(**{"equal-weight": market, "equal-weight-patient": market + 1e-6, "cash": 4e-5})
    table.index = pd.Index(dates, name="date")
    table.to_csv(folder / "reports" / "returns.csv")
    (folder / "reports" / "metrics.json").write_text(json.dumps(content))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "manifest.json").write_text(json.dumps({"data_sha256": panel}))
    return folder


@pytest.mark.usefixtures("images")
def test_runs_stand_side_by_side_with_their_own_numbers(
    tmp_path: Path, read_page: Callable[[str], Any], numbers_hold: Callable[[Any, Any], int]
) -> None:
    runs = [write_run(tmp_path / "<one>"), write_run(tmp_path / "two", sharpe=0.5, config_bcell__gamma=0.9)]
    page, _ = compare_runs(runs, tmp_path / "out")
    assert {path.name for path in page.parent.iterdir()} == {
        "report.html",
        "metrics.json",
        "equity.png",
        "choice-logits.png",
    }
    content, text = json.loads((tmp_path / "out" / "metrics.json").read_text()), page.read_text("utf-8")
    assert content["runs"]["<one>"]["sharpe"] == 1.0
    assert content["runs"]["two"]["intervals"]["sharpe"] == {"low": 0.0, "high": 1.0}
    assert content["runs"]["two"]["dsr"] == 0.6
    assert content["differences"] == {"bcell.gamma": {"<one>": "0.99", "two": "0.9"}}
    assert content["seeds"] == {}
    assert content["panel"] == "a" * 64
    shown = read_page(text)
    shown.bare.clear()  # configuration values are text
    assert numbers_hold(shown, content) >= 2 * 12
    assert "<one>" not in text
    assert len(shown.all("img")) == 2
    assert "Careful" not in text


def test_seeds_of_one_configuration_are_taken_together(tmp_path: Path) -> None:
    sharpes = [0.2, 0.9, 1.1, 1.0, 3.0]
    runs = [write_run(tmp_path / f"seed{n}", sharpe=value, seed=n) for n, value in enumerate(sharpes)]
    other = write_run(tmp_path / "other", sharpe=9.0, seed=7, config_bcell__gamma=0.5)
    again = write_run(tmp_path / "again", sharpe=50.0, seed=0)
    _, lines = compare_runs([*runs, other, again], tmp_path / "out")
    (group,) = json.loads((tmp_path / "out" / "metrics.json").read_text())["seeds"].values()
    assert group["runs"] == [run.name for run in runs], "a seed counts once, and another configuration not at all"
    found = group["interquartile_mean"]["sharpe"]
    assert found["value"] == interquartile_estimate(sharpes, seed=0).value
    assert found["interval"]["low"] < found["value"] < found["interval"]["high"]
    assert group["interquartile_mean"]["sharpe_difference"]["value"] == pytest.approx(0.2)
    assert any("group 1" in line and " 1.00" in line for line in lines)


def test_the_best_of_several_is_judged_as_the_best_of_several(tmp_path: Path) -> None:
    """One run with an edge among four without: the choice is sound, and still a yes once all five are counted."""
    runs = [write_run(tmp_path / f"run{n}", seed=n, config_bcell__gamma=0.9 + 0.01 * n) for n in range(4)]
    runs.append(write_run(tmp_path / "good", seed=4, edge=1e-3, config_bcell__gamma=0.8))
    page, lines = compare_runs(runs, tmp_path / "out")
    found = json.loads((tmp_path / "out" / "metrics.json").read_text())["choice"]
    columns = [pd.read_csv(run / "reports" / "returns.csv").eval("finflow - cash").to_numpy() for run in runs]
    assert found["overfitting"]["pbo"] == overfitting(np.column_stack(columns)).pbo < 0.2
    assert found["overfitting"]["among"] == [run.name for run in runs]
    assert (found["best"]["name"], found["best"]["beats_equal_weight"]) == ("good", "yes")
    assert found["best"]["tries"] == 5
    assert found["best"]["dsr"] < found["best"]["psr"]
    assert any("is good. Judged as the best of several, it beats equal weight: yes." in line for line in lines)
    assert "Choosing the best of them" in page.read_text("utf-8")


def test_what_each_was_chosen_among_and_readings_on_file_deflate_too(tmp_path: Path) -> None:
    """The best of 30 beside the best of 100, after 38 readings: 168 tries."""
    tries = [{"total": 40, "configurations": 30, "readings_before": 10}]
    tries.append({"total": 138, "configurations": 100, "readings_before": 38})
    runs = [write_run(tmp_path / str(n), seed=n, verdict={"tries": one}) for n, one in enumerate(tries)]
    compare_runs(runs, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["choice"]["best"]["tries"] == 168


def test_equal_weight_itself_can_be_compared(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=1)]
    path = runs[1] / "reports" / "metrics.json"
    path.write_text(path.read_text().replace('"finflow"', '"equal-weight"'))
    compare_runs(runs, tmp_path / "out")
    content = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert content["runs"]["b"]["judged"] == "equal-weight"
    assert content["choice"]["overfitting"]["among"] == ["a", "b"]


def test_returns_with_a_gap_are_refused_with_its_day(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=1)]
    path = runs[1] / "reports" / "returns.csv"
    table = pd.read_csv(path, index_col="date")
    table.iloc[17, 0] = np.nan
    table.to_csv(path)
    said = refusal(capsys, "--mode", "compare", *map(str, runs))
    assert "b cannot be read (returns.csv has a gap on 2016-01-27); evaluate that run again" in said


def test_seeds_of_two_configurations_are_set_against_each_other(tmp_path: Path) -> None:
    first = [write_run(tmp_path / f"a{n}", sharpe=1.0 + n, seed=n) for n in range(3)]
    second = [write_run(tmp_path / f"b{n}", sharpe=1.5 + n, seed=n, config_bcell__gamma=0.5) for n in range(2)]
    compare_runs([*first, *second], tmp_path / "out")
    content = json.loads((tmp_path / "out" / "metrics.json").read_text())
    groups = content["seeds"]
    ahead = groups["group 1"]["probability_of_improvement"]
    assert ahead["group 2"]["value"] == improvement_estimate([1, 2, 3], [1.5, 2.5], seed=0).value
    assert groups["group 2"]["probability_of_improvement"]["group 1"]["value"] == 1.0 - ahead["group 2"]["value"]
    assert ahead["equal weight"]["value"] == pytest.approx((0.5 + 1 + 1) / 3), "differences 0, 0.1 and 0.2"
    assert ahead["equal weight"]["interval"]["low"] < ahead["equal weight"]["interval"]["high"]


def test_an_undefined_figure_has_no_interquartile_mean_and_other_costs_are_marked(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a", sharpe=None), write_run(tmp_path / "b", seed=1)]
    runs.append(write_run(tmp_path / "c", seed=2, config_env__commission_bps=50.0))
    text = compare_runs(runs, tmp_path / "out")[0].read_text("utf-8")
    (group,) = json.loads((tmp_path / "out" / "metrics.json").read_text())["seeds"].values()
    assert "sharpe" not in group["interquartile_mean"]
    assert "annual_return" in group["interquartile_mean"]
    assert "not judged under the same conditions; env.commission_bps differ" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"panel": "b" * 64}, "was evaluated on other prices than .*a: figures|hashes begin bbbbbbbb and aaaaaaaa"),
        ({"window": {"start": "2016-01-05", "end": "2017-02-24", "days": 299}}, r"from 2016-01-05 .* \(299 days\)"),
        ({"agent": "lost"}, "cannot be read"),
        ({"window": {}}, "cannot be read"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", **change)]
    with pytest.raises(EvidenceError, match=words):
        compare_runs(runs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_named_twice_or_half_gone_is_answered_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=1)
    assert "is named twice" in refusal(capsys, "--mode", "compare", str(first), str(first))
    assert "has no reports/metrics.json: name run folders that were evaluated" in refusal(
        capsys, "--mode", "compare", str(first), str(tmp_path)
    )
    assert main(["--mode", "compare", str(first), str(second)]) == 0
    said = capsys.readouterr().out
    assert "beats equal weight" in said
    assert Path(said.rsplit("report: ", 1)[1].strip()).is_file()
    for name in ("config.yaml", "manifest.json", "reports/returns.csv", "reports/metrics.json"):
        shutil.copytree(second, tmp_path / "c")
        (tmp_path / "c" / name).unlink()
        said = refusal(capsys, "--mode", "compare", str(first), str(tmp_path / "c"))
        assert said.startswith("error: ")
        shutil.rmtree(tmp_path / "c")
