"""The verdict and the tests behind it, as `report.html` shows them; every number carries its key in `metrics.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from finflow.evaluation.report.drawing import MINUS
from finflow.evaluation.report.results import BASELINE
from finflow.evaluation.report.section import DASH, framed, number, stated
from finflow.evaluation.statistics.readings_ledger import Tries
from finflow.evaluation.statistics.report_statistics import Evidence, evidence_table
from finflow.evaluation.statistics.verdict import Verdict
from finflow.market.panel import BARS_PER_YEAR

KINDS = {"yes": "ahead", "no": "behind", "not shown": "not-shown"}
ANSWERS = {
    "yes": "beats equal weight",
    "no": "is worse than equal weight",
    "not shown": "not shown to beat equal weight",
}


def verdict_heading(verdict: Verdict) -> str:
    """The answer, in words that stand alone."""
    return f"Beats equal weight: {verdict.answer}"


def verdicts_of_several(answers: Mapping[str, str | None], warning: str) -> str:
    """One answer beside another, with what is to be borne in mind where there are several.

    Parameters
    ----------
    answers : mapping
        Name -> answer; None where nothing was compared.
    warning : str
    """
    items = "".join(
        f"<li><b>{escape(name)}</b>: {ANSWERS.get(str(answer), 'not compared with equal weight')}</li>"
        for name, answer in answers.items()
    )
    return (
        f'<section class="finding not-shown" aria-label="Verdicts"><h2>Verdicts</h2><ul class="reasons">{items}</ul>'
        f"<p>{escape(warning)}</p></section>"
    )


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
        length = _cell(("strategies", name, "minimum_track_record"), own[1], 1, 1.0 / BARS_PER_YEAR)
        psr = _cell(("strategies", name, "psr"), own[0], 3)
        rows += f'<tr><th scope="row">{escape(name)}</th>{psr}{length}<td>{better}</td></tr>'
    head = (
        "<tr><th>Strategy</th><th scope='col'>PSR against cash</th><th scope='col'>Minimum track record, years</th>"
        "<th scope='col'>Better than equal weight (StepM)</th></tr>"
    )
    parts.append(framed("Track records", head, rows))
    parts.append(
        "<p class='caption'>PSR: confidence that the true Sharpe ratio is above zero. Minimum track record: how long "
        "it takes to be 95\N{NARROW NO-BREAK SPACE}% confident of that; a dash means never, at this ratio. StepM looks "
        "at all strategies together, and names one wrongly at most once in twenty.</p>"
    )
    found = evidence.overfitting
    if found is not None:
        cuts = number(("overfitting", "choices"), len(found.logits), f"{len(found.logits):,}")
        blocks = number(("overfitting", "blocks"), found.blocks, str(found.blocks))
        parts.append(
            f"<p>Who had chosen the best of these {len(evidence.choice)} by its Sharpe ratio would have landed at or "
            f"below the middle of them in <b{stated(('overfitting', 'pbo'), found.pbo, 100.0)}>{found.pbo:.1%}</b> of "
            f"{cuts} cuts of this window into halves (probability of backtest overfitting, CSCV with {blocks} "
            "blocks); a choice without skill comes near 50\N{NARROW NO-BREAK SPACE}%.</p>"
        )
    return "".join(parts)


def _verdict_table(verdict: Verdict, content: object) -> str:
    assert isinstance(content, dict)
    spa = content["spa"] or dict.fromkeys(("p_lower", "p_consistent", "p_upper"), math.nan)
    tries = content["tries"]
    days = content["minimum_track_record"]
    lines = [
        ("Sharpe ratio of the return over equal weight, a year", ("active_sharpe",), content["active_sharpe"], 2),
        ("PSR of that return, against zero", ("psr",), content["psr"], 3),
        ("DSR, deflated for the tries", ("dsr",), content["dsr"], 3),
        ("Tries", ("tries", "total"), tries["total"], 0),
        ("Best Sharpe ratio that luck would show, a year", ("expected_maximum",), content["expected_maximum"], 2),
        ("Minimum track record to show a positive return over it, years", ("minimum_track_record",), days, 1),
        ("SPA, p (consistent)", ("spa", "p_consistent"), spa["p_consistent"], 3),
        ("SPA, p (lower)", ("spa", "p_lower"), spa["p_lower"], 3),
        ("SPA, p (upper)", ("spa", "p_upper"), spa["p_upper"], 3),
    ]
    rows = ""
    for words, key, value, decimals in lines:
        if key[0] == "spa" and content["spa"] is None:
            continue
        scale = 1.0 / BARS_PER_YEAR if key[0] == "minimum_track_record" else 1.0
        rows += f'<tr><th scope="row">{escape(words)}</th>{_cell(("verdict", *key), value, decimals, scale)}</tr>'
    return framed("Tests against equal weight", "<tr><th>Test</th><th scope='col'>Value</th></tr>", rows)


def _cell(path: tuple[str, ...], value: float, decimals: int, scale: float = 1.0) -> str:
    words = f"{value * scale:.{decimals}f}".replace("-", MINUS) if math.isfinite(value) else DASH
    return f"<td{stated(path, value, scale)}>{words}</td>"
