"""Output of the command line: the summary of an outcome, and every configuration key."""

from __future__ import annotations

import json
import math
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finflow.cli.options import program
from finflow.text_table import table_lines

if TYPE_CHECKING:
    from finflow.evaluation.analysis.attribution import Explanation
    from finflow.training.audit.look_ahead import Finding
    from finflow.training.judging.held_out import EvaluationOutcome

_COLUMNS = (
    ("return", "annual_return", "{:.1%}"),
    ("volatility", "annual_volatility", "{:.1%}"),
    ("Sharpe", "sharpe", "{:.2f}"),
    ("max drawdown", "max_drawdown", "{:.1%}"),
    ("turnover", "annual_turnover", "{:.2f}"),
)
_OPTIMALITY = ("of optimum", "optimality", "{:.3f}")
"""In synthetic markets: 1 is the best policy there is, 0 the better of equal weight and holding."""


def show_outcome(outcome: EvaluationOutcome, only: Sequence[str] | None = None, where: str = "the test window") -> None:
    """Print the summary table (of all strategies, or `only` some), the verdict and where the report is."""
    rows = summary_rows(outcome.summary, only)
    print("\n".join(["", *table_lines(rows), ""]))
    print(f"over {where}, net of costs; return, volatility, Sharpe and turnover are annual")
    numbers = _numbers_of(outcome.report)
    for lines in (seeds_lines, verdict_lines, joined_lines, distance_lines):
        for line in lines(numbers):
            print(line)
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


def _numbers_of(report: Path) -> dict[str, Any]:
    """Content of the `metrics.json` of a report; empty where there is none."""
    try:
        return dict(json.loads(report.with_name("metrics.json").read_text("utf-8")))
    except (OSError, ValueError):
        return {}


def resume_command(mode: str, run: Path) -> str:
    name = program() if program() == "finflow" else "python main.py"
    return f"{name} --mode {mode} --resume {shlex.quote(str(run))}"


def verdict_lines(numbers: Mapping[str, Any]) -> list[str]:
    """The verdict in a report's numbers, and what speaks against a yes; nothing where nothing was compared."""
    if "verdict" not in numbers:
        return []
    verdict = numbers["verdict"]
    return ["no verdict: the report says why"] if verdict is None else verdict_lines_of(verdict)


def verdict_lines_of(verdict: Mapping[str, Any]) -> list[str]:
    """A verdict as `metrics.json` has it, what speaks against a yes, and what the window could have shown."""
    against = [f"  {reason['said']}" for reason in verdict["reasons"] if not reason["enough"]]
    lines = [f"beats equal weight: {verdict['beats_equal_weight']}", *against]
    least = verdict.get("least_sharpe_difference")
    if least is not None and least["of_yes"] is not None:
        lines.append(
            f"  least Sharpe difference over equal weight that this window shows with a power of {least['power']:.0%}: "
            f"{least['of_yes']:.2f} a year"
        )
    return lines


def joined_lines(numbers: Mapping[str, Any]) -> list[str]:
    """Verdict of a walk-forward on all of its seeds together; none where there is one seed."""
    joined = numbers.get("walk_forward")
    if joined is None or joined["seeds"] < 2:
        return []
    first, *others = verdict_lines_of(joined["verdict"])
    return [f"all {joined['seeds']} seeds together, over {joined['years']:.1f} years: {first}", *others]


def seeds_lines(numbers: Mapping[str, Any]) -> list[str]:
    """Figures of each agent of several seeds; none where a single one was evaluated."""
    if "seeds" not in numbers:
        return []
    spread, ahead = numbers["seeds"]["of_agents"]["sharpe"], numbers["seeds"]["improvement"]["probability"]
    low, high = spread["interval_low"], spread["interval_high"]
    sharpe = f"{spread['count']} agents alone: Sharpe {spread['interquartile_mean']:.2f} (interquartile mean"
    chance = "" if ahead is None else f"; ahead of equal weight with a probability of {ahead:.0%}"
    return [f"{sharpe}, {low:.2f} to {high:.2f}){chance}"]


def distance_lines(numbers: Mapping[str, Any]) -> list[str]:
    """Distance of the features from those of training, where the agent was evaluated on another market."""
    distance = numbers.get("feature_distance")
    if distance is None:
        return []
    if "unknown" in distance:
        return [f"another market than that of its training: {distance['unknown']}"]
    return [
        f"another market than that of its training: {distance['outside']:.1%} of the features' values are outside the "
        f"range of training, and the mean of {distance['largest_of']} is {distance['largest']:.2f} deviations from "
        "that of training"
    ]


def show_audit(findings: Sequence[Finding]) -> None:
    """Print the findings of an audit: a line for each component, and below it each fault and each note."""
    table = [("component", "probes", "dates", "first", "last", "rows", "largest difference", "verdict")]
    notes: dict[int, list[str]] = {}
    for name in dict.fromkeys(finding.component for finding in findings):
        own = [finding for finding in findings if finding.component == name]
        dates = sorted({date for finding in own for date in finding.dates})
        shown = sorted((finding for finding in own if finding.verdict != "clean"), key=lambda one: not one.bad)
        counted = (str(len(own)), str(len(dates)), str(dates[0]), str(dates[-1]), f"{sum(one.rows for one in own):,}")
        largest = f"{max(finding.difference for finding in own):.3g}"
        table.append((name, *counted, largest, shown[0].verdict if shown else "clean"))
        notes[len(table) - 1] = [f"    {finding.probe}: {finding.verdict}: {finding.where}" for finding in shown]
    for number, text in enumerate(table_lines(table)):
        print("\n".join([text, *notes.get(number, [])]))
    dates = [date for finding in findings for date in finding.dates]
    rows = sum(finding.rows for finding in findings)
    if dates:
        print(f"\n{rows:,} rows compared bit for bit, with other futures after {len(set(dates))} dates")
    print("a row may use bars up to its own date, a decision up to the fill less the lag; see docs/reference/audit.md")
    if any(finding.probe == "opened" for finding in findings):
        print("opened files and connections are listed and not audited; only outputs are")
    if not any(finding.bad for finding in findings):
        print("nothing looks ahead")


def summary_rows(
    summary: Mapping[str, Mapping[str, float]], only: Sequence[str] | None = None
) -> list[tuple[str, ...]]:
    """The summary as text: a heading, the evaluated one, the others by falling Sharpe ratio; a dash for no number."""

    def rank(name: str) -> float:
        sharpe = summary[name].get("sharpe", math.nan)
        return math.inf if math.isnan(sharpe) else -sharpe

    def cell(name: str, metric: str, form: str) -> str:
        value = summary[name].get(metric, math.nan)
        return "-" if math.isnan(value) else form.format(value)

    evaluated, *others = summary
    listed = [evaluated, *sorted((name for name in others if only is None or name in only), key=rank)]
    columns = (*_COLUMNS, *((_OPTIMALITY,) if any(_OPTIMALITY[1] in metrics for metrics in summary.values()) else ()))
    rows = [(name, *(cell(name, metric, form) for _, metric, form in columns)) for name in listed]
    return [("", *(heading for heading, _, _ in columns)), *rows]


def explanation_lines(date: str, one: Explanation) -> list[str]:
    """Lines of the explanation of a decision, which filled on a date."""
    from finflow.evaluation.analysis.attribution import SHOWN_PARTS
    from finflow.evaluation.page.page_numbers import show

    def percent(value: float, decimals: int = 1, plus: bool = False) -> str:
        return show(value, "%", decimals, plus=plus).replace("\N{NARROW NO-BREAK SPACE}", "").replace("−", "-")

    mix = ", ".join(f"{name} {percent(share, 0)}" for name, share in one.gate.items())
    text = [
        f"{date}: the agent {one.holds}",
        f"  decided with what was known on {one.known}",
        f"  traded {percent(one.traded, 2)} of the portfolio: {percent(one.trade_rate)} of the way to the aim",
        f"  gate: {mix}",
        f"  filled with a turnover of {percent(one.turnover, 2)} at a cost of {percent(one.cost, 3)}; "
        f"the next bar returned {percent(one.next_return, 2, plus=True)}",
        "",
    ]
    experts = list(one.gate)
    table = [("largest trades", "held", *experts, "aim", "target", "next bar")]
    for name in one.trades[:SHOWN_PARTS]:
        own = one.weights[name]
        weights = (own.held, *(own.experts[expert] for expert in experts), own.aim, own.target)
        table.append((name, *(percent(weight) for weight in weights), percent(one.earned[name], 2, plus=True)))
    text += [f"  {line}" for line in table_lines(table)]
    text.append("")
    table = [("features that moved it", "value", "part in the trade")]
    for feature, influence in one.influences:
        table.append((feature, f"{influence.value:+.2f}", percent(influence.part, 2, plus=True)))
    parts = one.integrated_gradients
    rest = sum(influence.part for influence in list(parts.features.values())[SHOWN_PARTS:])
    table += [
        ("all other features", "", percent(rest, 2, plus=True)),
        ("every feature at its mean", "", percent(parts.baseline, 2, plus=True)),
        ("traded", "", percent(one.traded + parts.completeness_error, 2, plus=True)),
    ]
    text += [f"  {line}" for line in table_lines(table)]
    error = f"completeness error {parts.completeness_error:+.1e} of wealth"
    return [*text, f"  {error}, {parts.steps} steps; values in training deviations"]


def describe_configuration() -> str:
    """Every key with its default, what it does and what it may be."""
    from finflow.config import describe_schema

    lines = ["Every key and its default. Change it with --set KEY=VALUE, FINFLOW_SECTION__KEY=VALUE or --config FILE."]
    section = ""
    for key, allowed, default, description in describe_schema():
        if (head := key.partition(".")[0]) != section:
            section = head
            lines.append("")
        lines.append(f"{key} = {plain(default)}")
        lines += textwrap.wrap(f"{description}; {allowed}", 100, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def plain(value: object) -> str:
    """A value as it is written in YAML."""
    if value is None:
        return "null"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
