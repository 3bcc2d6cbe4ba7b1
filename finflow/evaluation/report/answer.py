"""The first box of a report: what was judged and what it holds, the verdict, and the condition that decided it."""

from __future__ import annotations

import math
from dataclasses import replace

from finflow.evaluation.analysis.training_sections import evidence_of, held_instead
from finflow.evaluation.backtest import BASELINE
from finflow.evaluation.page.drawing import Rendered
from finflow.evaluation.page.page_numbers import THIN, agreeing_decimals
from finflow.evaluation.page.section import Cell, Sentence, columns_of
from finflow.evaluation.page.whole_page import Headline, Tile
from finflow.evaluation.report.results import ReportData, Results
from finflow.evaluation.statistics.bootstrap import CONFIDENCE
from finflow.evaluation.statistics.metrics import Metrics
from finflow.evaluation.statistics.verdict import Verdict
from finflow.strategies.behaviour import FAMILIES

PERCENT = f"{CONFIDENCE * 100:g}{THIN}%"
#: The conditions of a yes in their order, as they read where they are not met.
UNMET = (
    "so great a return over equal weight may be luck",
    "without any skill such a lead would not be rare",
    "the true difference of Sharpe ratios may be zero or less",
    "it is not shown to be better than equal weight that is restored once a month",
)
KINDS = {"yes": "ahead", "no": "behind", "not shown": "not-shown"}
LEAST_DIFFERENCE: Sentence = (
    "A true lead of ",
    Cell(("verdict", "least_sharpe_difference", "of_yes")),
    " in the Sharpe ratio would have been shown by this window with a probability of ",
    Cell(("verdict", "least_sharpe_difference", "power"), "%", 0),
    "; a smaller one may be true and not be seen.",
)


def finding(results: Results, figures: tuple[Rendered, ...]) -> Headline:
    data, verdict, name = results.data, results.verdict, results.data.agent.name
    title, words = "Equal weight itself", list[Sentence](["This is the strategy that others are compared with."])
    if results.difference is not None:
        title, words = "No verdict", [_measured(results, results.difference.interval.defined), data.unjudged]
    if verdict is not None:
        title = f"Beats equal weight: {verdict.beats_equal_weight}"
        words.insert(0, _deciding(verdict))
        if verdict.least_sharpe_difference is not None:
            words.append(LEAST_DIFFERENCE)
    tiles = [
        Tile(
            heading,
            replace(cell, path=("strategies", name, *cell.path)),
            "" if data.baseline is None else (f"{BASELINE} ", replace(cell, path=("strategies", BASELINE, *cell.path))),
        )
        for heading, cell in columns_of(Metrics, names=("annual_return", "sharpe", "max_drawdown", "annual_turnover"))
    ]
    window, tries = f"{data.agent.dates[0]} to {data.agent.dates[-1]}", data.tries
    readings = (
        f"Strategies or agents that read the test window ({window}) before: {tries.others}."
        if data.in_ledger
        else f"The judged days, {window}, lie before the test window: how often they were read is not counted."
    )
    readings += f" Configurations that this one was chosen among: {tries.configurations}. Tries counted: {tries.total}."
    own, scale = 0.0 if verdict is None else verdict.active_sharpe, math.sqrt(data.agent.bars_per_year)
    if (dominating := tries.dominating(own / scale)) is not None:
        readings += (
            f" The spread of their Sharpe ratios over equal weight is mostly that of {dominating[0]} "
            f"({dominating[1] * scale:.1f} a year)."
        )
    if tries.leaks:
        readings += f" Counted, and left out of that spread, since an audit found a leak: {'; '.join(tries.leaks)}."
    return Headline(
        "",
        title,
        words=tuple(word for word in words if word),
        notes=(readings,),
        figures=figures,
        lead=_lead(data),
        kind="not-compared" if verdict is None else KINDS[verdict.beats_equal_weight],
        reasons=() if verdict is None else tuple(map(str, verdict.reasons)),
        tiles=tuple(tiles),
    )


def _lead(data: ReportData) -> Sentence:
    """The judged strategy, in words, and its largest holdings."""
    evidence, means = evidence_of(data.training), data.agent.weights.mean(axis=0)
    largest = [data.agent.assets[column] for column in (-means).argsort(kind="stable")[:3] if means[column] >= 0.0005]
    held = f" Its largest holdings on average: {', '.join(largest)}." if largest else ""
    if evidence is not None and evidence["confidence"] <= 0.0:
        return f"Found nothing that holds out of sample; holds {held_instead(evidence)}.{held}"
    if evidence is not None:
        share = Cell(("out_of_fold", "confidence"), "%", 0)
        return ("Trades its own policy at ", share, f", and {held_instead(evidence)} for the rest.{held}")
    if not data.in_ledger:
        return f"Trained anew for every fold.{held}"
    if (why := data.agent.explanation) is None:
        return f"The strategy {data.agent.name}.{held}"
    if why["gate"][:, : len(FAMILIES)].max() < 0.0005:  # a checkpoint without the record of its training beside it
        return f"Holds a reference alone.{held}"
    return f"Trades its own policy.{held}"


def _deciding(verdict: Verdict) -> str:
    """The condition that decided, in words; all of them follow."""
    answer, bounds, reasons = verdict.beats_equal_weight, verdict.sharpe_difference_interval, verdict.reasons
    if answer == "yes":
        return "All conditions hold. This is one window of the past; it promises nothing about the future."
    if answer == "no" and bounds is not None and bounds[1] < 0.0:
        return "Decided by the Sharpe ratio: it was lower, and the whole interval of the difference lies below zero."
    if answer == "no":
        return (
            f"Decided by the return: it was lower than equal weight's, with {PERCENT} confidence, and the Sharpe ratio "
            f"was {'not defined' if bounds is None else 'no better'}."
        )
    if len(reasons) == len(UNMET) - 1 and bounds is None:
        return "Decided by this: the difference of Sharpe ratios has no interval."
    failed = [unmet for unmet, reason in zip(UNMET, reasons, strict=False) if not reason.enough]
    return f"Decided by this: {failed[-1]}." if len(reasons) >= len(UNMET) - 1 else "The window cannot decide."


def _measured(results: Results, with_interval: bool) -> Sentence:
    """The Sharpe ratios of the judged strategy and of equal weight, and their difference."""
    name, ratios = results.data.agent.name, results.numbers["strategies"]
    places = agreeing_decimals(ratios[name]["sharpe"], ratios[BASELINE]["sharpe"])
    low, high = (
        Cell(("against_equal_weight", "interval", end), decimals=places, plus=True, keep_sign=True)
        for end in ("0", "1")
    )
    interval = (f", with a {PERCENT} interval from ", low, " to ", high, ".")
    return (
        f"After costs, {'the agent' if name == 'agent' else name} had a Sharpe ratio of ",
        Cell(("strategies", name, "sharpe"), decimals=places, keep_sign=True),
        " and equal weight ",
        Cell(("strategies", BASELINE, "sharpe"), decimals=places, keep_sign=True),
        ": a difference of ",
        Cell(("against_equal_weight", "sharpe_difference"), decimals=places, plus=True, keep_sign=True),
        *(interval if with_interval else (", without an interval: the window is too short, or a ratio undefined.",)),
    )
