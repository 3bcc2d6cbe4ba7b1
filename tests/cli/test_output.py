"""What is shown: the summary, and every key."""

from __future__ import annotations

import json
import math
import webbrowser
from pathlib import Path
from typing import Any, NamedTuple

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


def test_the_summary_can_be_of_some_strategies_only() -> None:
    assert [row[0] for row in summary_rows(SUMMARY, ["equal-weight"])[1:]] == ["finflow", "equal-weight"]


def test_plain_lines_are_aligned() -> None:
    lines = table_lines(summary_rows(SUMMARY))
    assert len({len(line) for line in lines}) == 1
    assert lines[1].startswith("finflow ")


def test_help_names_every_key_with_its_default() -> None:
    text = describe_configuration()
    for key, _, _, _ in describe_schema():
        assert f"\n{key} = " in text
    assert "\nmarket.path = null\n" in text
    assert "\nmarket.use_cache = true\n" in text
    assert max(map(len, text.splitlines())) <= 110


def verdict_file(folder: Path, verdict: object) -> Path:
    (folder / "metrics.json").write_text(json.dumps({"verdict": verdict}))
    return folder / "report.html"


def test_the_verdict_is_shown_with_what_speaks_against_a_yes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reasons = [{"said": "The first agrees.", "enough": True}, {"said": "p = 0.4.", "enough": False}]
    report = verdict_file(tmp_path, {"beats_equal_weight": "not shown", "reasons": reasons})
    outcome: Any = Outcome(tmp_path, report, SUMMARY)
    show_outcome(outcome)
    shown = capsys.readouterr().out
    assert "beats equal weight: not shown\n  p = 0.4.\n" in shown
    assert "The first agrees" not in shown


def test_the_verdict_says_what_the_window_could_have_shown() -> None:
    least = {"power": 0.8, "of_yes": 0.314, "of_interval": 0.29, "standard_error": 0.1}
    verdict = {"beats_equal_weight": "no", "reasons": [], "least_sharpe_difference": least}
    first, second = output.verdict_lines_of(verdict)
    assert (
        second == "  least Sharpe difference over equal weight that this window shows with a power of 80%: 0.31 a year"
    )
    assert output.verdict_lines_of(verdict | {"least_sharpe_difference": None}) == [first]
    assert output.verdict_lines_of({"beats_equal_weight": "no", "reasons": []}) == [first], (
        "a report of an older finflow"
    )


def test_there_is_no_verdict_where_nothing_was_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for report in (verdict_file(tmp_path, None), tmp_path / "none" / "report.html"):
        outcome: Any = Outcome(tmp_path, report, SUMMARY)
        show_outcome(outcome)
        assert "beats equal weight" not in capsys.readouterr().out


def test_the_report_that_was_shown_last_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: not opened.append(url))
    monkeypatch.setattr(output, "_SHOWN", [])
    output.open_report()
    assert opened == []  # nothing was written: a dry run
    output.show_report(tmp_path / "one.html")
    output.show_report(tmp_path / "two.html")
    output.open_report()
    assert opened == [(tmp_path / "two.html").as_uri()]
    assert capsys.readouterr().out.splitlines() == [f"report: {tmp_path / name}" for name in ("one.html", "two.html")]
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    output.open_report()
    assert "found no web browser" in capsys.readouterr().out
