"""Output of the command line: the summary of an outcome, and every configuration key."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finflow.cli.options import as_yaml
from finflow.errors import ConfigError

if TYPE_CHECKING:
    from finflow.training.audit.look_ahead import Finding
    from finflow.training.judging.held_out import EvaluationOutcome

_METRICS = ("annual_return", "annual_volatility", "sharpe", "max_drawdown", "annual_turnover")


def show_outcome(outcome: EvaluationOutcome, only: Sequence[str] | None = None, where: str = "the test window") -> None:
    """Print the summary table (of all strategies, or `only` some), the verdict and where the report is."""
    print("\n".join(["", *summary_lines(outcome.page.document, only), ""]))
    print(f"over {where}, net of costs; return, volatility, Sharpe and turnover are annual")
    print("\n".join([*outcome.page.text("seeds", "walk_forward", "feature_distance"), ""]))
    print("the report has the intervals, and what these figures cannot show")
    show_report(outcome.report)


_SHOWN: list[Path] = []
"""Reports that this process has shown."""


def show_report(page: Path) -> None:
    """Say where a report is; `open_report` opens the last."""
    print(f"report: {page}")
    _SHOWN.append(page)


def open_report() -> None:
    """Open the report that was shown last in the web browser, and say so where there is none."""
    if _SHOWN:
        open_page(_SHOWN[-1].resolve().as_uri())


def open_page(address: str) -> None:
    """Open an address in the web browser, and say so where there is none."""
    import webbrowser

    if not webbrowser.open(address):
        print(f"--open found no web browser on this machine; open {address} by hand", flush=True)


def show_audit(findings: Sequence[Finding]) -> None:
    """Print the findings of an audit: a line for each component, and below it each fault and each note."""
    from finflow.evaluation.page.section import table_lines

    table = [("component", "probes", "dates", "first", "last", "rows", "largest difference", "verdict")]
    own: dict[str, list[Finding]] = {}
    for finding in sorted(findings, key=lambda one: (not one.bad, one.verdict == "clean")):
        own.setdefault(finding.component, []).append(finding)
    names = list(dict.fromkeys(finding.component for finding in findings))
    for name in names:
        dates, rows = {date for one in own[name] for date in one.dates}, sum(one.rows for one in own[name])
        spans = (str(len(own[name])), str(len(dates)), str(min(dates)), str(max(dates)), f"{rows:,}")
        table.append((name, *spans, f"{max(one.difference for one in own[name]):.3g}", own[name][0].verdict))
    for text, found in zip(table_lines(table), ([], *(own[name] for name in names)), strict=True):
        notes: dict[tuple[str, str], list[Finding]] = {}  # of one fault: every probe that found it
        for one in found:
            notes.setdefault((one.verdict, "" if one.bad else one.where), []).append(one)
        print("\n".join([text, *(_fault(same) for (verdict, _), same in notes.items() if verdict != "clean")]))
    if dates := {date for finding in findings for date in finding.dates}:
        rows = sum(finding.rows for finding in findings)
        print(f"\n{rows:,} rows compared bit for bit, with other futures after {len(dates)} dates")
    print("a row may use bars up to its own date, a decision up to the fill less the lag; see docs/reference/audit.md")
    if any(finding.probe == "opened" for finding in findings):
        print("opened files and connections are listed and not audited; only outputs are")
    if not any(finding.bad for finding in findings):
        print("nothing looks ahead")


def _fault(same: Sequence[Finding]) -> str:
    """Line of a fault in a component: the first place, and how many other probes found it, on how many dates."""
    first, *others = sorted(same, key=lambda one: min(one.dates))
    names, dates = ", ".join(one.probe for one in others), {date for one in same for date in one.dates}
    more = f"; and with {names}: {len(dates)} dates from {min(dates)}" if others else ""
    return f"    {first.probe}: {first.verdict}: {first.where}{more}"


def summary_lines(numbers: Mapping[str, Any], only: Sequence[str] | None = None) -> list[str]:
    """Table of a report's numbers: the evaluated one, the others by falling Sharpe ratio; a dash for no number."""
    from finflow.evaluation.page.section import ROW, Cell, Column, Section, columns_of, make_table
    from finflow.evaluation.statistics.metrics import Metrics

    strategies, evaluated = numbers["strategies"], numbers["agent"]
    others = [name for name in strategies if name != evaluated and (only is None or name in only)]
    others.sort(key=lambda name: math.inf if (ratio := strategies[name]["sharpe"]) is None else -ratio)
    columns: list[Column] = [*columns_of(Metrics, "strategies", ROW, names=_METRICS)]
    if "optimum" in numbers:  # 1 is the best policy there is, 0 the better of equal weight and holding
        scores = numbers["optimum"]["scores"]
        columns.append(
            ("of optimum", {name: Cell(("optimum", "scores", name, "score"), decimals=3) for name in scores})
        )
    return Section("", "", tables=(make_table("", "", [evaluated, *others], columns, heading=False),)).text(numbers)


def describe_configuration(only: str = "") -> str:
    """Every key, or those of one section, with its default, what it does and what it may be."""
    from finflow.config import Config, describe_schema

    schema = [row for row in describe_schema() if only in ("", row[0].partition(".")[0])]
    if not schema:
        raise ConfigError(f"--help-config {only}: there is no such section; there are {', '.join(Config.model_fields)}")
    lines = ["Every key and its default. Change it with --set KEY=VALUE, FINFLOW_SECTION__KEY=VALUE or --config FILE."]
    section = ""
    for key, allowed, default, description in schema:
        if (head := key.partition(".")[0]) != section:
            section = head
            lines.append("")
        lines.append(f"{key} = {as_yaml(default)}")
        lines += textwrap.wrap(f"{description}; {allowed}", 100, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)
