"""`report.html`: one self-contained page, made of plain strings, with everything that came from outside escaped."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from finflow.evaluation.drawing import MINUS, TIMES, Rendered
from finflow.evaluation.evidence_page import KINDS, evidence_section, readings_said, verdict_heading, verdict_list
from finflow.evaluation.page_style import STYLE
from finflow.evaluation.results import BASELINE, ReportData, Results
from finflow.evaluation.sections import section_html
from finflow.evaluation.significance import Interval

THIN = "\N{NARROW NO-BREAK SPACE}"
DASH = "\N{EN DASH}"
_MEANING = {
    "yes": "All three tests agree. This is one window of the past; it promises nothing about the future.",
    "no": "The reverse is shown on this window.",
    "not shown": "A yes needs every test below to agree; this window does not show that it is better.",
}
MOST_EVENTS = 50  # of the guard, on the page


@dataclass(frozen=True)
class Column:
    """A metric as the page shows it: key in `metrics.json`, heading, unit, decimals, and how it is computed."""

    key: str
    heading: str
    unit: str
    decimals: int
    meaning: str

    def show(self, value: float) -> str:
        """Write a value with its unit; a dash where it is undefined."""
        if not math.isfinite(value):
            return DASH
        scaled = value * 100.0 if self.unit == "%" else value
        number = f"{scaled:.{self.decimals}f}"
        if float(number) == 0.0:
            number = number.lstrip("-")
        return number.replace("-", MINUS) + self.suffix

    @property
    def suffix(self) -> str:
        """The unit as it follows a number."""
        return f"{THIN}%" if self.unit == "%" else self.unit


def columns(alpha: float) -> tuple[Column, ...]:
    """Columns of the comparison table, in order."""
    tail = f"{alpha * 100:g}{THIN}%"
    return (
        Column("annual_return", "Return a year", "%", 1, "geometric mean of the net daily returns, 252 days to a year"),
        Column("annual_volatility", "Volatility", "%", 1, "standard deviation of daily returns times √252"),
        Column(
            "sharpe", "Sharpe", "", 2, "mean over standard deviation of daily returns in excess of cash, times √252"
        ),
        Column("sortino", "Sortino", "", 2, "as the Sharpe ratio, but only days that fell short of cash count as risk"),
        Column("calmar", "Calmar", "", 2, "return a year over the depth of the maximum drawdown"),
        Column("max_drawdown", "Maximum drawdown", "%", 1, "deepest fall below the highest value so far"),
        Column("cvar", f"CVaR {tail}", "%", 2, f"mean of the worst {tail} of daily returns"),
        Column("annual_turnover", "Turnover a year", TIMES, 1, "times a year that the whole portfolio is replaced"),
        Column("annual_cost", "Costs a year", "%", 2, "all that trading cost, as a share of wealth"),
    )


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
        _section("comparison", "Comparison", _comparison(data, results)),
        _section("evidence", "Tests", evidence_section(results.evidence)),
        _optimum(data),
        *(_figure(figure) for figure in figures),
        *([_section("experts-alone", "Each expert alone", _experts(data, results))] if results.experts else []),
        *(section_html(section) for section in data.sections),
        *([_section("guard", "Guard events", _events(data.events))] if data.events is not None else []),
        _section("intervals", "Intervals of the other metrics", _interval_table(data, results)),
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
    contents += [(section.key, section.title) for section in data.sections]
    contents += [("data", "Data and settings"), ("limits", "Limits")]
    navigation = "".join(f'<a href="#{escape(anchor)}">{escape(title)}</a>' for anchor, title in contents)
    dates = data.agent.dates
    window = f"{data.agent.name}, {dates[0]} to {dates[-1]}, {len(dates):,} trading days, all figures net of costs"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<link rel="icon" href="data:,">
<title>{escape(data.title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<header>
<h1>{escape(data.title)}</h1>
<p class="window">{escape(window)}</p>
</header>
{sections[0]}
<nav aria-label="Contents">{navigation}</nav>
{"".join(sections[1:])}
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
            against = f"<small>{BASELINE} {column.show(results.metrics[BASELINE][key])}</small>"
        value = column.show(results.metrics[data.agent.name][key])
        tiles += f"<div><span>{column.heading}</span><b>{value}</b>{against}</div>"
    verdict = results.evidence.verdict
    kind = "not-compared" if verdict is None else KINDS[verdict.answer]
    reasons = f"<p>{escape(readings_said(data.tries))}</p>" if verdict is None else verdict_list(verdict, data.tries)
    return (
        f'<section class="finding {kind}" aria-label="Finding"><h2>{escape(heading)}</h2>'
        f"{''.join(f'<p>{escape(sentence)}</p>' for sentence in words)}{reasons}"
        f'<div class="tiles">{tiles}</div></section>'
    )


def _finding_words(data: ReportData, results: Results) -> tuple[str, list[str]]:
    """The verdict, and what was measured; the reasons follow it."""
    name, difference, verdict = data.agent.name, results.difference, results.evidence.verdict
    if difference is None or verdict is None:
        if name == BASELINE:
            return "Equal weight itself", ["This is the strategy that others are compared with."]
        return "Not compared with equal weight", ["Equal weight was not among the strategies, so nothing is claimed."]
    own, base = (_signed(results.metrics[run]["sharpe"], plus=False) for run in (name, BASELINE))
    said = (
        f"After costs, {'the agent' if name == 'agent' else name} had a Sharpe ratio of {own} and equal weight {base}: "
        f"a difference of {_signed(difference.value)}"
    )
    if difference.interval.defined:
        low, high = _signed(difference.interval.low), _signed(difference.interval.high)
        said += f", with a {data.confidence * 100:g}{THIN}% interval from {low} to {high}."
    else:
        said += ", without an interval, because the window is too short or a ratio is undefined."
    return verdict_heading(verdict), [said, _MEANING[verdict.answer]]


def _comparison(data: ReportData, results: Results) -> str:
    shown = columns(data.cvar_alpha)
    head = "".join(f'<th scope="col">{escape(column.heading)}</th>' for column in shown)
    rows = ""
    for name, summary in results.metrics.items():
        cells = ""
        for column in shown:
            value = summary[column.key]
            extra = _small_interval(column, results.intervals[name]["sharpe"]) if column.key == "sharpe" else ""
            cells += f"<td{_data(name, column.key, value)}>{column.show(value)}{extra}</td>"
        marked = ' class="agent"' if name == data.agent.name else ""
        rows += f'<tr{marked}><th scope="row">{escape(name)}</th>{cells}</tr>'
    level = f"{data.confidence * 100:g}{THIN}%"
    return (
        _table("Comparison of the strategies", f"<tr><th>Strategy</th>{head}</tr>", rows)
        + f"<p class='caption'>Under each Sharpe ratio: its {level} bootstrap interval. Returns and drawdowns are "
        "after costs; a dash means undefined.</p>"
    )


def _optimum(data: ReportData) -> str:
    """Scores in a market whose best policy is known; nothing in any other."""
    known = data.optimum
    if known is None:
        return ""
    ratio = Column("score", "Score", "", 3, "")
    growth = Column("utility", "Log growth a bar", "%", 4, "")
    rows = ""
    for name, one in known.scores.items():
        error = f" ± {one.standard_error:.3f}" if math.isfinite(one.score) else ""
        marked = ' class="agent"' if name == data.agent.name else ""
        cells = f"<td{_data(name, 'score', one.score)}>{ratio.show(one.score)}{error}</td>"
        cells += f"<td{_data(name, 'utility', one.utility)}>{growth.show(one.utility)}</td>"
        rows += f'<tr{marked}><th scope="row">{escape(name)}</th>{cells}</tr>'
    one = next(iter(known.scores.values()))
    nothing = "" if math.isfinite(one.score) else " Here the optimum is not measurably better: there is no score."
    sentences = [
        f"1 is the optimum, 0 is {one.baseline_name}, the better of equal weight and holding; ± is a standard error. "
        f"Growth is what the law of the prices leads one to expect of the weights held, net of costs.{nothing}",
        f"The best policy: {known.method}. In the long run it grows by {growth.show(known.utility)} a bar.",
        f"Its targets for an account in equal weights: {_say(known.policy)}.",
        f"Parameters of the law, per bar: {_say(known.parameters)}.",
    ]
    head = "<tr><th>Strategy</th><th scope='col'>Score</th><th scope='col'>Log growth a bar</th></tr>"
    return _section("optimum", "Nearness to the optimum", _table("Scores", head, rows) + _list(sentences))


def _experts(data: ReportData, results: Results) -> str:
    shown = columns(data.cvar_alpha)
    head = "".join(f'<th scope="col">{escape(column.heading)}</th>' for column in shown)
    rows = ""
    for name, summary in {data.agent.name: results.metrics[data.agent.name], **results.experts}.items():
        cells = "".join(f"<td>{column.show(summary[column.key])}</td>" for column in shown)
        marked = ' class="agent"' if name == data.agent.name else ""
        rows += f'<tr{marked}><th scope="row">{escape(name)}</th>{cells}</tr>'
    caption = "The agent, and each of its experts with the gate set aside: one names the aim, the trade rate is shared."
    return _table("Experts", f"<tr><th>Decides</th>{head}</tr>", rows) + f'<p class="caption">{caption}</p>'


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
    return f"<p>{said}{last}</p>" + _table("Guard events", head, rows)


def _interval_table(data: ReportData, results: Results) -> str:
    shown = [
        column
        for column in columns(data.cvar_alpha)
        if column.key != "sharpe" and column.key in next(iter(results.intervals.values()))
    ]
    head = "".join(f'<th scope="col">{escape(column.heading)}</th>' for column in shown)
    rows = ""
    for name, bounds in results.intervals.items():
        cells = "".join(f"<td>{_interval(column, bounds[column.key])}</td>" for column in shown)
        marked = ' class="agent"' if name == data.agent.name else ""
        rows += f'<tr{marked}><th scope="row">{escape(name)}</th>{cells}</tr>'
    caption = (
        f"{data.confidence * 100:g}{THIN}% percentile intervals of {data.bootstrap_samples:,} stationary-bootstrap "
        f"resamples in blocks of {data.block_length} days on average."
    )
    return _table("Intervals", f"<tr><th>Strategy</th>{head}</tr>", rows) + f'<p class="caption">{escape(caption)}</p>'


def _table(label: str, head: str, rows: str) -> str:
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}"><table><thead>{head}</thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _figure(figure: Rendered) -> str:
    source = "data:image/png;base64," + base64.b64encode(figure.png).decode("ascii")
    return _section(
        figure.name,
        figure.title,
        f'<figure><div class="scroll plot" role="region" tabindex="0" aria-label="{escape(figure.title)}">'
        f'<img src="{source}" alt="{escape(figure.alt)}"></div>'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>",
    )


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


def _list(sentences: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def _section(anchor: str, title: str, content: str) -> str:
    return f'<section id="{escape(anchor)}"><h2>{escape(title)}</h2>{content}</section>\n'


def _data(strategy: str, metric: str, value: float) -> str:
    """Attributes that carry the full number of a cell, as in `metrics.json`."""
    number = repr(float(value)) if math.isfinite(value) else "null"
    return f' data-strategy="{escape(strategy)}" data-metric="{metric}" data-value="{number}"'


def _small_interval(column: Column, bounds: Interval) -> str:
    return f"<small>{_interval(column, bounds)}</small>" if bounds.defined else ""


def _interval(column: Column, bounds: Interval) -> str:
    if not bounds.defined:
        return DASH
    return f"{column.show(bounds.low).removesuffix(column.suffix)} to {column.show(bounds.high)}"


def _signed(value: float, *, plus: bool = True) -> str:
    if not math.isfinite(value):
        return "undefined"
    number = f"{value:+.2f}" if plus else f"{value:.2f}"
    return number.replace("-", MINUS)


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
