"""The verdict and the tests behind it, as `report.html` shows them; every number carries its key in `metrics.json`."""

from __future__ import annotations

import math
from html import escape

from finflow.evaluation.drawing import MINUS
from finflow.evaluation.evidence import Evidence, evidence_table
from finflow.evaluation.readings import Tries
from finflow.evaluation.results import BASELINE
from finflow.evaluation.verdict import Verdict
from finflow.market.panel import BARS_PER_YEAR

KINDS = {"yes": "ahead", "no": "behind", "not shown": "not-shown"}
DASH = "\N{EN DASH}"


def verdict_heading(verdict: Verdict) -> str:
    """The answer, in words that stand alone."""
    return f"Beats equal weight: {verdict.answer}"


def verdict_list(verdict: Verdict, tries: Tries | None) -> str:
    """The reasons, each marked, and how often the window was read."""
    items = "".join(
        f"<li>{'✓' if reason.enough else '✗'} {escape(reason.said.replace(' -', ' ' + MINUS))}</li>"
        for reason in verdict.reasons
    )
    return f'<ul class="reasons">{items}</ul><p>{escape(readings_said(tries))}</p>'


def readings_said(tries: Tries | None) -> str:
    """How often the test window was read before, and what that counts for."""
    if tries is None:
        return "Nobody counted how often this window was read before."
    times = {0: "never been read", 1: "been read once"}.get(tries.others, f"been read {tries.others} times")
    whom = ", for another strategy or agent" if tries.others == 1 else ", for other strategies or agents"
    among = (
        f" The judged one was chosen among {tries.configurations} configurations." if tries.configurations > 1 else ""
    )
    return (
        f"This test window has {times} before{whom if tries.others else ''}.{among} Tries that deflate: {tries.total}."
    )


def evidence_section(evidence: Evidence) -> str:
    """Tables of the tests."""
    content = evidence_table(evidence)
    parts = []
    if evidence.verdict is not None:
        parts.append(_verdict_table(evidence.verdict, content["verdict"]))
    rows = ""
    for name, track in evidence.tracks.items():
        own = (math.nan, math.nan) if track is None else (track.psr(), track.minimum_length())
        compared = evidence.superior is not None and name != BASELINE
        better = DASH if not compared else "yes" if name in (evidence.superior or ()) else "not shown"
        length = _cell(f"strategies/{name}/minimum_track_record", own[1] / BARS_PER_YEAR, 1, own[1])
        rows += (
            f'<tr><th scope="row">{escape(name)}</th>{_cell(f"strategies/{name}/psr", own[0], 3)}{length}'
            f"<td>{better}</td></tr>"
        )
    head = (
        "<tr><th>Strategy</th><th scope='col'>PSR against cash</th><th scope='col'>Minimum track record, years</th>"
        "<th scope='col'>Better than equal weight (StepM)</th></tr>"
    )
    parts.append(_scroll("Track records", head, rows))
    parts.append(
        "<p class='caption'>PSR: confidence that the true Sharpe ratio is above zero. Minimum track record: how long "
        "it takes to be 95\N{NARROW NO-BREAK SPACE}% confident of that; a dash means never, at this ratio. StepM looks "
        "at all strategies together, and names one wrongly at most once in twenty.</p>"
    )
    found = evidence.overfitting
    if found is not None:
        parts.append(
            f"<p>Who had chosen the best of these {len(evidence.choice)} by its Sharpe ratio would have landed at or "
            f"below the middle of them in <b{_key('overfitting/pbo', found.pbo)}>{found.pbo:.1%}</b> of "
            f"{len(found.logits):,} cuts of this window into halves (probability of backtest overfitting, CSCV with "
            f"{found.blocks} blocks); a choice without skill comes near 50\N{NARROW NO-BREAK SPACE}%.</p>"
        )
    return "".join(parts)


def _verdict_table(verdict: Verdict, content: object) -> str:
    assert isinstance(content, dict)
    spa = content["spa"] or {"p_lower": math.nan, "p_consistent": math.nan, "p_upper": math.nan}
    tries = content["tries"]
    days = content["minimum_track_record"]
    lines = [
        ("Sharpe ratio of the return over equal weight, a year", "active_sharpe", content["active_sharpe"], 2),
        ("PSR of that return, against zero", "psr", content["psr"], 3),
        (f"DSR, for {_count(tries['total'], 'try', 'tries')}", "dsr", content["dsr"], 3),
        ("Best Sharpe ratio that luck would show, a year", "expected_maximum", content["expected_maximum"], 2),
        ("Minimum track record to show a positive return over it, years", "minimum_track_record", days, 1),
        ("SPA, p (consistent)", "spa/p_consistent", spa["p_consistent"], 3),
        ("SPA, p (lower)", "spa/p_lower", spa["p_lower"], 3),
        ("SPA, p (upper)", "spa/p_upper", spa["p_upper"], 3),
    ]
    rows = ""
    for words, key, value, decimals in lines:
        shown = value / BARS_PER_YEAR if key == "minimum_track_record" else value
        rows += f'<tr><th scope="row">{escape(words)}</th>{_cell(f"verdict/{key}", shown, decimals, value)}</tr>'
    return _scroll("Tests against equal weight", "<tr><th>Test</th><th scope='col'>Value</th></tr>", rows)


def _cell(key: str, shown: float, decimals: int, value: float | None = None) -> str:
    full = shown if value is None else value
    words = f"{shown:.{decimals}f}".replace("-", MINUS) if math.isfinite(shown) else DASH
    return f"<td{_key(key, full)}>{words}</td>"


def _key(key: str, value: float) -> str:
    """Attributes that carry a number in full, and where `metrics.json` has it."""
    number = repr(float(value)) if math.isfinite(value) else "null"
    return f' data-key="{escape(key)}" data-value="{number}"'


def _scroll(label: str, head: str, rows: str) -> str:
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}"><table><thead>{head}</thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
