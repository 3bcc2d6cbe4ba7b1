"""`report.html`: sections of the page of one run, in their order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from finflow.evaluation.analysis.optimality import KnownOptimum
from finflow.evaluation.backtest import BASELINE
from finflow.evaluation.page.drawing import Rendered
from finflow.evaluation.page.page import Headline, Page, Tile, figure_section
from finflow.evaluation.page.page_numbers import DASH, THIN, look_up, years_unit
from finflow.evaluation.page.section import (
    ROW,
    Cell,
    Row,
    Section,
    Sentence,
    Table,
    columns_of,
    make_table,
    meanings_of,
)
from finflow.evaluation.report.results import ReportData, Results, contents
from finflow.evaluation.statistics.metrics import Metrics
from finflow.evaluation.statistics.readings_ledger import Tries
from finflow.evaluation.statistics.verdict import Verdict
from finflow.market.bar_frequency import BARS_PER_YEAR, bar_name

MOST_EVENTS = 50  # of the guard, on the page
MEANING = {
    "yes": "All three tests agree. This is one window of the past; it promises nothing about the future.",
    "no": "This window shows that it does worse: a lower Sharpe ratio, or a lower return (95 % confidence) without a "
    "better Sharpe ratio.",
    "not shown": "A yes needs every test below to agree; this window does not show that it is better.",
}
KINDS = {"yes": "ahead", "no": "behind", "not shown": "not-shown"}
ANSWERS = {
    "yes": "beats equal weight",
    "no": "is worse than equal weight",
    "not shown": "not shown to beat equal weight",
}
_LEAST = ("verdict", "least_sharpe_difference")
_LENGTH = Cell(("verdict", "minimum_track_record"), "years", 1)
VERDICT_TABLE = (
    ("Sharpe ratio of the return over equal weight, a year", Cell(("verdict", "active_sharpe"), keep_sign=True)),
    ("PSR of that return, against zero", Cell(("verdict", "psr"), decimals=3)),
    ("DSR, deflated for the tries", Cell(("verdict", "dsr"), decimals=3)),
    ("Tries", Cell(("verdict", "tries", "total"), decimals=0)),
    ("Best Sharpe ratio that luck would show, a year", Cell(("verdict", "expected_maximum"))),
    ("Minimum track record to show a positive return over it, years", _LENGTH),
    (f"Least Sharpe difference for a yes with a power of 80{THIN}%, a year", Cell((*_LEAST, "of_yes"))),
    ("Least Sharpe difference for its interval alone, a year", Cell((*_LEAST, "of_interval"))),
    ("Standard error of the Sharpe difference, a year", Cell((*_LEAST, "standard_error"), decimals=3)),
    ("SPA, p (consistent)", Cell(("verdict", "spa", "p_consistent"), decimals=3)),
    ("SPA, p (lower)", Cell(("verdict", "spa", "p_lower"), decimals=3)),
    ("SPA, p (upper)", Cell(("verdict", "spa", "p_upper"), decimals=3)),
)
TRACK_CAPTION = (
    "PSR: confidence that the true Sharpe ratio is above zero. Minimum track record: how long it takes to be "
    f"95{THIN}% confident of that; a dash means never, at this ratio. StepM looks at all strategies together, and "
    "names one wrongly at most once in twenty."
)


def build_page(
    data: ReportData,
    results: Results,
    figures: Sequence[Rendered] = (),
    limits: Sequence[str] = (),
    files: Sequence[str] = (),
) -> Page:
    """Put the page together: ``figures`` in this order, ``limits`` as sentences, and names of the files beside it."""
    facts = {_sentence_case(key): _text_of(value) for key, value in data.facts.items()}
    sections = [
        _comparison(data),
        _evidence(data, results),
        _optimum(data.optimum, data.agent.name),
        *(figure_section(figure) for figure in figures),
        _experts(data),
        *data.sections,
        _guard_events(data.events),
        _intervals(data, results),
        Section("data", "Data and settings", words=() if facts else ("None were recorded.",), facts=facts),
        Section(
            "limits", "What this report cannot show", notes=tuple(limits) or ("Nothing was noted.",), short="Limits"
        ),
        _method(data),
        Section("files", "Files beside this page", links=tuple(files), short=None),
    ]
    dates = data.agent.dates
    bars = "trading days" if data.agent.bars_per_year == BARS_PER_YEAR else f"{bar_name(data.agent.bars_per_year)}s"
    window = f"{data.agent.name}, {dates[0]} to {dates[-1]}, {len(dates):,} {bars}, all figures net of costs"
    content = contents(data, results)
    finding = _finding(data, results, content)
    return Page(data.title, window, finding, [section for section in sections if section is not None], content)


def _comparison(data: ReportData) -> Section:
    """Every metric of every strategy, with the interval of the Sharpe ratio."""
    bounds = ("strategies", ROW, "intervals", "sharpe")
    shown = [
        (heading, replace(cell, bounds=bounds) if cell.path[-1] == "sharpe" else cell)
        for heading, cell in columns_of(Metrics, "strategies", ROW)
    ]
    caption = (
        f"Under each Sharpe ratio: its {_percent(data.confidence)} bootstrap interval. Returns and drawdowns are after "
        "costs; a dash means undefined."
    )
    title = "Comparison of the strategies"
    table = make_table(title, "Strategy", data.names, shown, caption, marked=data.agent.name, heading=False)
    return Section("comparison", "Comparison", tables=(table,))


def _experts(data: ReportData) -> Section | None:
    if not data.experts:
        return None
    judged = data.agent.name
    rows = [(("strategies", judged), judged), *((("experts", run.name), run.name) for run in data.experts)]
    caption = "The agent, and each of its experts alone: the expert's portfolio is the aim, at the agent's trade rate."
    table = make_table("Experts", "Decides", rows, columns_of(Metrics, ROW), caption, marked=judged, heading=False)
    return Section("experts-alone", "Each expert alone", tables=(table,))


def _intervals(data: ReportData, results: Results) -> Section:
    shown = [
        (heading, replace(cell, path=(), bounds=cell.path))
        for heading, cell in columns_of(Metrics, "strategies", ROW, "intervals")
        if cell.path[-1] != "sharpe" and cell.path[-1] in results.intervals[data.agent.name]
    ]
    caption = (
        f"{_percent(data.confidence)} percentile intervals of {data.bootstrap_samples:,} stationary-bootstrap "
        f"resamples in blocks of {data.block_length} {bar_name(data.agent.bars_per_year)}s on average."
    )
    table = make_table("Intervals", "Strategy", data.names, shown, caption, marked=data.agent.name, heading=False)
    return Section("intervals", "Intervals of the other metrics", tables=(table,), short="Intervals")


def verdicts_of_several(answers: Mapping[str, str | None], warning: str) -> Headline:
    """Verdicts of several runs (None: not compared), with a warning about reading them together."""
    reasons = tuple(
        f"{name}: {ANSWERS.get(str(answer), 'not compared with equal weight')}" for name, answer in answers.items()
    )
    return Headline("", "Verdicts", label="Verdicts", reasons=reasons, notes=(warning,))


def _finding(data: ReportData, results: Results, content: Mapping[str, object]) -> Headline:
    verdict = results.evidence.verdict
    heading, words = _finding_words(data, results, content)
    shown = ("annual_return", "sharpe", "max_drawdown", "annual_turnover")
    tiles = [
        Tile(
            name,
            replace(cell, path=("strategies", data.agent.name, *cell.path)),
            "" if data.baseline is None else (f"{BASELINE} ", replace(cell, path=("strategies", BASELINE, *cell.path))),
        )
        for name, cell in columns_of(Metrics, names=shown)
    ]
    return Headline(
        "",
        heading,
        words=words,
        notes=(_readings_text(data.tries),),
        kind="not-compared" if verdict is None else KINDS[verdict.beats_equal_weight],
        reasons=() if verdict is None else tuple(map(str, verdict.reasons)),
        tiles=tuple(tiles),
    )


def _finding_words(
    data: ReportData, results: Results, content: Mapping[str, object]
) -> tuple[str, tuple[Sentence, ...]]:
    name, verdict = data.agent.name, results.evidence.verdict
    if results.difference is None:
        if name == BASELINE:
            return "Equal weight itself", ("This is the strategy that others are compared with.",)
        return "Not compared with equal weight", ("Equal weight was not among the strategies, so nothing is claimed.",)

    def ratio(*path: str, plus: bool = False) -> Cell | str:
        return Cell(path, plus=plus, keep_sign=True) if math.isfinite(look_up(content, path)) else "undefined"

    measured: list[Cell | str] = [
        f"After costs, {'the agent' if name == 'agent' else name} had a Sharpe ratio of ",
        ratio("strategies", name, "sharpe"),
        " and equal weight ",
        ratio("strategies", BASELINE, "sharpe"),
        ": a difference of ",
        ratio("against_equal_weight", "sharpe_difference", plus=True),
    ]
    if results.difference.interval.defined:
        low, high = (ratio("against_equal_weight", "interval", end, plus=True) for end in ("0", "1"))
        measured += [f", with a {_percent(data.confidence)} interval from ", low, " to ", high, "."]
    else:
        measured.append(", without an interval, because the window is too short or a ratio is undefined.")
    if verdict is None:
        return "No verdict", (tuple(measured), data.unjudged)
    words = (tuple(measured), MEANING[verdict.beats_equal_weight])
    if verdict.least_sharpe_difference is None:
        return f"Beats equal weight: {verdict.beats_equal_weight}", words
    power: Sentence = (
        "The least true difference of Sharpe ratios over equal weight for which this window gives a yes with ",
        Cell((*_LEAST, "power"), "%", 0),
        " probability is ",
        Cell((*_LEAST, "of_yes")),
        " a year: smaller ones, of either sign, mostly end in not shown.",
    )
    return f"Beats equal weight: {verdict.beats_equal_weight}", (*words, power)


def _readings_text(tries: Tries | None) -> str:
    if tries is None:
        return "Earlier readings of this window were not counted."
    times = {0: "never been read", 1: "been read once"}.get(tries.others, f"been read {tries.others} times")
    readers = ", for another strategy or agent" if tries.others == 1 else ", for other strategies or agents"
    among = (
        f" The judged one was chosen among {tries.configurations} configurations." if tries.configurations > 1 else ""
    )
    return (
        f"This test window has {times} before{readers if tries.others else ''}.{among} "
        f"Tries that deflate: {tries.total}."
    )


def verdict_table(verdict: Verdict, years: str) -> Table:
    """Table of the tests behind a verdict at the key ``verdict``; ``years`` is the unit of lengths."""
    missing = {key: getattr(verdict, key) is None for key in ("spa", _LEAST[1])}
    shown = [(name, cell) for name, cell in VERDICT_TABLE if not missing.get(cell.path[1], False)]
    rows = [Row(name, (replace(cell, unit=years) if cell is _LENGTH else cell,)) for name, cell in shown]
    return Table("Tests against equal weight", ("Test", "Value"), tuple(rows), heading=False)


def _evidence(data: ReportData, results: Results) -> Section:
    evidence, tables = results.evidence, []
    years = years_unit(data.agent.bars_per_year)
    if evidence.verdict is not None:
        tables.append(verdict_table(evidence.verdict, years))

    better = dict.fromkeys(data.names, DASH)
    if evidence.superior is not None:
        better = {name: "yes" if name in evidence.superior else "not shown" for name in better if name != BASELINE}
        better.setdefault(BASELINE, DASH)
    columns_shown = (
        ("PSR against cash", Cell(("strategies", ROW, "psr"), decimals=3)),
        ("Minimum track record, years", Cell(("strategies", ROW, "minimum_track_record"), years, 1)),
        ("Better than equal weight (StepM)", better),
    )
    tables.append(make_table("Track records", "Strategy", data.names, columns_shown, TRACK_CAPTION, heading=False))
    notes: tuple[Sentence, ...] = ()
    if evidence.overfitting is not None:
        choice: Sentence = (
            f"The best of these {len(evidence.tracks)} by its Sharpe ratio in one half of this window ranked at or "
            "below the median in the other half in ",
            Cell(("overfitting", "pbo"), "%", 1),
            " of ",
            Cell(("overfitting", "choices"), ",", 0),
            " cuts into halves (probability of backtest overfitting, CSCV with ",
            Cell(("overfitting", "blocks"), decimals=0),
            f" blocks); a choice without skill comes near 50{THIN}%.",
        )
        notes = (choice,)
    return Section("evidence", "Tests", tables=tuple(tables), notes=notes)


def _optimum(known: KnownOptimum | None, judged: str) -> Section | None:
    if known is None:
        return None
    columns_shown = (
        ("Score", Cell(("scores", ROW, "score"), decimals=3, error=("scores", ROW, "standard_error"))),
        ("Log growth a bar", Cell(("scores", ROW, "utility"), "%", 4)),
    )
    scored = math.isfinite(next(iter(known.scores.values())).score)
    nothing = "" if scored else " Here the optimum is not measurably better: there is no score."
    notes = (
        f"1 is the optimum, 0 is {known.window.baseline_name}, the better of equal weight and holding; ± is a standard "
        f"error. Growth is the expected log growth of the weights held under the price process, net of costs.{nothing}",
        (
            f"The best policy: {known.method}. In the long run it grows by ",
            Cell(("utility",), "%", 4),
            " a bar.",
        ),
        f"Its targets for an account in equal weights: {_text_of(known.policy)}.",
        f"Parameters of the price process, per bar: {_text_of(known.parameters)}.",
    )
    table = make_table("Scores", "Strategy", list(known.scores), columns_shown, marked=judged, heading=False)
    return Section("optimum", "Nearness to the optimum", vars(known), (table,), notes=notes)


def _guard_events(events: Sequence[Mapping[str, object]] | None) -> Section | None:
    if events is None:
        return None
    key, title = "guard", "Guard events"
    if not events:
        return Section(key, title, words=("The guard found nothing unusual in training.",))
    counts = {level: sum(event.get("level") == level for event in events) for level in ("alarm", "warning", "info")}
    rollbacks = sum(event.get("signal") == "rollback" for event in events)
    text = f"{counts['alarm']} alarms, {counts['warning']} warnings, {counts['info']} notes; {rollbacks} rollbacks."
    shown = events[-MOST_EVENTS:]
    if len(shown) < len(events):
        text += f" The last {len(shown)} of {len(events)} are shown."
    rows = tuple(
        Row(str(event.get("update")), tuple(str(event.get(name)) for name in ("phase", "level", "message")))
        for event in shown
    )
    table = Table("Guard events", ("Update", "Phase", "Level", "Event"), rows, heading=False)
    return Section(key, title, tables=(table,), words=(text,))


def _method(data: ReportData) -> Section:
    bar = bar_name(data.agent.bars_per_year)
    bootstrap = (
        f"Intervals: stationary bootstrap, {data.bootstrap_samples:,} resamples, mean block {data.block_length} "
        f"{bar}s, seed {data.seed}. The difference against equal weight is paired: both are resampled on the "
        f"same {bar}s."
    )
    meanings = (f"{heading}: {meaning}" for heading, meaning in meanings_of(Metrics).items())
    level = f"cvar_alpha is {_percent(data.cvar_alpha)}."
    return Section("method", "How the numbers are computed", notes=(*meanings, level, bootstrap), short="Method")


def _percent(share: float) -> str:
    """A share in percent, with as many digits as it needs."""
    return f"{share * 100:g}{THIN}%"


def _sentence_case(key: str) -> str:
    words = key.replace("_", " ")
    return words[:1].upper() + words[1:]


def _text_of(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return DASH
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{str(key).replace('_', ' ')}: {_text_of(inner)}" for key, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return ", ".join(_text_of(inner) for inner in value)
    return str(value)
