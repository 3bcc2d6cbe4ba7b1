"""`report.html`: one self-contained page, made of plain strings, with everything that came from outside escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from finflow.evaluation.report.drawing import MINUS, Rendered
from finflow.evaluation.report.evidence_page import (
    KINDS,
    evidence_section,
    readings_said,
    verdict_heading,
    verdict_list,
)
from finflow.evaluation.report.metric_tables import Column, columns, comparison_table, experts_table, interval_table
from finflow.evaluation.report.page_style import STYLE
from finflow.evaluation.report.results import BASELINE, ReportData, Results
from finflow.evaluation.report.section import DASH, THIN, framed, number, plot, section_html

Path = tuple[str | int, ...]
_MEANING = {
    "yes": "All three tests agree. This is one window of the past; it promises nothing about the future.",
    "no": "The reverse is shown on this window.",
    "not shown": "A yes needs every test below to agree; this window does not show that it is better.",
}
MOST_EVENTS = 50  # of the guard, on the page


def build_page(
    data: ReportData, results: Results, figures: Sequence[Rendered], limits: Sequence[str], files: Sequence[str]
) -> str:
    """Put the page together.

    Parameters
    ----------
    data, results
        What was judged, and the numbers.
    figures
        Embedded in this order.
    limits
        What the report cannot show, a sentence each.
    files
        Names of the files beside the page, to link to.
    """
    sections = [
        _finding(data, results),
        _section("comparison", "Comparison", comparison_table(data, results)),
        _section("evidence", "Tests", evidence_section(results.evidence)),
        _optimum(data),
        *(_section(figure.name, figure.title, plot(figure, anchor=False)) for figure in figures),
        *([_section("experts-alone", "Each expert alone", experts_table(data, results))] if results.experts else []),
        *(section_html(section) for section in data.sections),
        *([_section("guard", "Guard events", _events(data.events))] if data.events is not None else []),
        _section("intervals", "Intervals of the other metrics", interval_table(data, results)),
        _section("data", "Data and settings", _facts(data)),
        _section("limits", "What this report cannot show", _list(limits) if limits else "<p>Nothing was noted.</p>"),
        _section("method", "How the numbers are computed", _method(data)),
        _section("files", "Files beside this page", _links(files)),
    ]
    contents = [
        ("comparison", "Comparison"),
        ("evidence", "Tests"),
        *((figure.name, figure.title) for figure in figures),
    ]
    contents += [("optimum", "Nearness to the optimum")] if data.optimum is not None else []
    contents += [("experts-alone", "Each expert alone")] if results.experts else []
    contents += [(section.key, section.title) for section in data.sections]
    contents += [("guard", "Guard events")] if data.events is not None else []
    contents += [("intervals", "Intervals"), ("data", "Data and settings"), ("limits", "Limits"), ("method", "Method")]
    dates = data.agent.dates
    window = f"{data.agent.name}, {dates[0]} to {dates[-1]}, {len(dates):,} trading days, all figures net of costs"
    return document(data.title, window, sections[0], contents, sections[1:])


def document(
    title: str, subtitle: str, first: str, contents: Sequence[tuple[str, str]], sections: Sequence[str]
) -> str:
    """A whole page.

    Parameters
    ----------
    title, subtitle
        Plain text.
    first
        HTML that stands before the contents.
    contents
        Anchors and titles.
    sections
        HTML.
    """
    navigation = "".join(f'<a href="#{escape(anchor)}">{escape(text)}</a>' for anchor, text in contents)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<header>
<h1>{escape(title)}</h1>
<p class="window">{escape(subtitle)}</p>
</header>
{first}
<nav aria-label="Contents">{navigation}</nav>
{"".join(sections)}
</main>
</body>
</html>
"""


def _finding(data: ReportData, results: Results) -> str:
    heading, words = _finding_words(data, results)
    tiles = ""
    by_key = {column.key: column for column in columns(data.cvar_alpha)}
    for key in ("annual_return", "sharpe", "max_drawdown", "annual_turnover"):
        column = by_key[key]
        against = ""
        if data.baseline is not None:
            base = column.said(("strategies", BASELINE, key), results.metrics[BASELINE][key])
            against = f"<small>{BASELINE} {base}</small>"
        value = column.said(("strategies", data.agent.name, key), results.metrics[data.agent.name][key])
        tiles += f"<div><span>{column.heading}</span><b>{value}</b>{against}</div>"
    verdict = results.evidence.verdict
    kind = "not-compared" if verdict is None else KINDS[verdict.answer]
    reasons = f"<p>{escape(readings_said(data.tries))}</p>" if verdict is None else verdict_list(verdict, data.tries)
    return (
        f'<section class="finding {kind}" aria-label="Finding"><h2>{escape(heading)}</h2>'
        f"{''.join(f'<p>{sentence}</p>' for sentence in words)}{reasons}"
        f'<div class="tiles">{tiles}</div></section>'
    )


def _finding_words(data: ReportData, results: Results) -> tuple[str, list[str]]:
    """The verdict, and as HTML what was measured; the reasons follow it."""
    name, difference, verdict = data.agent.name, results.difference, results.evidence.verdict
    if difference is None:
        if name == BASELINE:
            return "Equal weight itself", ["This is the strategy that others are compared with."]
        return "Not compared with equal weight", ["Equal weight was not among the strategies, so nothing is claimed."]
    own, base = (
        _signed(("strategies", run, "sharpe"), results.metrics[run]["sharpe"], plus=False) for run in (name, BASELINE)
    )
    against = "against_equal_weight"
    said = (
        f"After costs, {'the agent' if name == 'agent' else escape(name)} had a Sharpe ratio of {own} and equal weight "
        f"{base}: a difference of {_signed((against, 'sharpe_difference'), difference.value)}"
    )
    if difference.interval.defined:
        low = _signed((against, "interval", 0), difference.interval.low)
        high = _signed((against, "interval", 1), difference.interval.high)
        said += f", with a {data.confidence * 100:g}{THIN}% interval from {low} to {high}."
    else:
        said += ", without an interval, because the window is too short or a ratio is undefined."
    if verdict is None:
        return "No verdict", [said, escape(data.unjudged)]
    return verdict_heading(verdict), [said, _MEANING[verdict.answer]]


def _optimum(data: ReportData) -> str:
    """Scores in a market whose best policy is known; nothing in any other."""
    known = data.optimum
    if known is None:
        return ""
    ratio = Column("score", "Score", "", 3, "")
    growth = Column("utility", "Log growth a bar", "%", 4, "")
    rows = ""
    for name, one in known.scores.items():
        place = ("optimum", "scores", name)
        error = ""
        if math.isfinite(one.score):
            error = f"<small>± {ratio.said((*place, 'standard_error'), one.standard_error)}</small>"
        marked = ' class="agent"' if name == data.agent.name else ""
        cells = ratio.cell((*place, "score"), one.score, error)
        cells += growth.cell((*place, "utility"), one.utility)
        rows += f'<tr{marked}><th scope="row">{escape(name)}</th>{cells}</tr>'
    one = next(iter(known.scores.values()))
    nothing = "" if math.isfinite(one.score) else " Here the optimum is not measurably better: there is no score."
    sentences = [
        f"1 is the optimum, 0 is {escape(one.baseline_name)}, the better of equal weight and holding; ± is a standard "
        f"error. Growth is what the law of the prices leads one to expect of the weights held, net of costs.{nothing}",
        f"The best policy: {escape(known.method)}. In the long run it grows by "
        f"{growth.said(('optimum', 'utility'), known.utility)} a bar.",
        f"Its targets for an account in equal weights: {escape(_say(known.policy))}.",
        f"Parameters of the law, per bar: {escape(_say(known.parameters))}.",
    ]
    head = "<tr><th>Strategy</th><th scope='col'>Score</th><th scope='col'>Log growth a bar</th></tr>"
    return _section("optimum", "Nearness to the optimum", framed("Scores", head, rows) + _list(sentences, escaped=True))


def _events(events: Sequence[Mapping[str, object]]) -> str:
    """What the guard of the training saw and did, the worst and the latest of it."""
    if not events:
        return "<p>The guard saw nothing unusual in training, and did nothing.</p>"
    counts = {level: sum(event.get("level") == level for event in events) for level in ("alarm", "warning", "info")}
    rollbacks = sum(event.get("signal") == "rollback" for event in events)
    shown = list(events)[-MOST_EVENTS:]
    rows = "".join(
        f'<tr><th scope="row">{escape(str(event.get("update")))}</th>'
        f"{''.join(f'<td>{escape(str(event.get(name)))}</td>' for name in ('phase', 'level', 'message'))}</tr>"
        for event in shown
    )
    head = "<tr><th>Update</th><th scope='col'>Phase</th><th scope='col'>Level</th><th scope='col'>Event</th></tr>"
    said = f"{counts['alarm']} alarms, {counts['warning']} warnings, {counts['info']} notes; {rollbacks} rollbacks."
    last = f" The last {len(shown)} of {len(events)} are shown." if len(shown) < len(events) else ""
    return f"<p>{said}{last}</p>" + framed("Guard events", head, rows)


def _facts(data: ReportData) -> str:
    rows = "".join(
        f"<div><dt>{escape(_words(key))}</dt><dd>{escape(_say(value))}</dd></div>" for key, value in data.facts.items()
    )
    return f"<dl>{rows}</dl>" if rows else "<p>None were recorded.</p>"


def _method(data: ReportData) -> str:
    meanings = [f"{column.heading}: {column.meaning}." for column in columns(data.cvar_alpha)]
    bootstrap = (
        f"Intervals: stationary bootstrap, {data.bootstrap_samples:,} resamples, mean block {data.block_length} days, "
        f"seed {data.seed}. The difference against equal weight is paired: both are resampled on the same days."
    )
    return _list([*meanings, bootstrap])


def _links(files: Sequence[str]) -> str:
    return '<p class="links">' + "".join(f'<a href="{escape(name)}">{escape(name)}</a> ' for name in files) + "</p>"


def _list(sentences: Sequence[str], escaped: bool = False) -> str:
    said = sentences if escaped else [escape(sentence) for sentence in sentences]
    return "<ul>" + "".join(f"<li>{sentence}</li>" for sentence in said) + "</ul>"


def _section(anchor: str, title: str, content: str) -> str:
    return f'<section id="{escape(anchor)}"><h2>{escape(title)}</h2>{content}</section>\n'


def _signed(path: Path, value: float, *, plus: bool = True) -> str:
    """A ratio in a sentence, as HTML."""
    if not math.isfinite(value):
        return "undefined"
    digits = f"{value:+.2f}" if plus else f"{value:.2f}"
    return number(path, value, digits.replace("-", MINUS))


def _words(key: str) -> str:
    words = str(key).replace("_", " ")
    return words[:1].upper() + words[1:]


def _say(value: object) -> str:
    """Any value of the facts in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return DASH
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{str(key).replace('_', ' ')}: {_say(inner)}" for key, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return ", ".join(_say(inner) for inner in value)
    return str(value)
