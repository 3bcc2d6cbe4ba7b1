"""What is shown: the summary, and every key."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

import pytest

from finflow.cli import output
from finflow.cli.output import describe_configuration, show_outcome, summary_rows
from finflow.config import describe_schema
from finflow.text_table import table_lines

SUMMARY = {
    "finflow": {"annual_return": 0.186, "annual_volatility": 0.175, "sharpe": 1.06, "max_drawdown": -0.289},
    "momentum": {"annual_return": 0.2, "annual_volatility": 0.23, "sharpe": 0.91, "annual_turnover": 2.35},
    "cash": {"annual_return": 0.0, "annual_volatility": 0.0, "sharpe": math.nan, "max_drawdown": 0.0},
    "equal-weight": {"annual_return": 0.192, "annual_volatility": 0.191, "sharpe": 1.02, "max_drawdown": -0.315},
}


class Outcome(NamedTuple):
    """As the application has it."""

    run_folder: Path
    report: Path
    summary: dict[str, dict[str, float]]


def test_the_summary_has_the_judged_one_first_and_the_others_by_sharpe() -> None:
    heading, *rows = summary_rows(SUMMARY)
    assert heading == ("", "return", "volatility", "Sharpe", "max drawdown", "turnover")
    assert [row[0] for row in rows] == ["finflow", "equal-weight", "momentum", "cash"]
    assert rows[0] == ("finflow", "18.6%", "17.5%", "1.06", "-28.9%", "-")
    assert rows[3][3] == "-"
    assert [row[0] for row in summary_rows(SUMMARY, ["equal-weight"])[1:]] == ["finflow", "equal-weight"]
    assert len({len(line) for line in table_lines([heading, *rows])}) == 1


def test_help_names_every_key_with_its_default() -> None:
    text = describe_configuration()
    for key, _, _, _ in describe_schema():
        assert f"\n{key} = " in text
    assert "\nmarket.path = null\n" in text
    assert "\nmarket.use_cache = true\n" in text
    assert max(map(len, text.splitlines())) <= 110


def shown(report: Path, capsys: pytest.CaptureFixture[str]) -> str:
    show_outcome(Outcome(report.parent, report, SUMMARY))  # type: ignore[arg-type]
    return capsys.readouterr().out


def test_the_verdict_is_shown_with_what_speaks_against_a_yes_where_there_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "beats equal weight" not in shown(tmp_path / "report.html", capsys)
    (tmp_path / "metrics.json").write_text(json.dumps({"verdict": None}))
    assert "beats equal weight" not in shown(tmp_path / "report.html", capsys)
    reasons = [{"said": "The first agrees.", "enough": True}, {"said": "p = 0.4.", "enough": False}]
    verdict = {"beats_equal_weight": "not shown", "reasons": reasons}
    (tmp_path / "metrics.json").write_text(json.dumps({"verdict": verdict}))
    said = shown(tmp_path / "report.html", capsys)
    assert "beats equal weight: not shown\n  p = 0.4.\n" in said
    assert "The first agrees" not in said


def test_the_verdict_says_what_the_window_could_have_shown() -> None:
    least = {"power": 0.8, "of_yes": 0.314, "of_interval": 0.29, "standard_error": 0.1}
    verdict: dict[str, object] = {"beats_equal_weight": "no", "reasons": [], "least_sharpe_difference": least}
    first, second = output.verdict_lines_of(verdict)
    assert second.endswith("that this window shows with a power of 80%: 0.31 a year")
    assert output.verdict_lines_of(verdict | {"least_sharpe_difference": None}) == [first]
    del verdict["least_sharpe_difference"]  # a report of an older finflow
    assert output.verdict_lines_of(verdict) == [first]
