"""`retrain.json` and `retrain.html`: the comparison of a retrained agent with the old one, and the rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from finflow.evaluation.backtest import BASELINE, Backtest
from finflow.evaluation.page.drawing import wealth_figure
from finflow.evaluation.page.page_numbers import (
    Drawdown,
    Number,
    Probability,
    Return,
    Sharpe,
    Shown,
    Turnover,
    about,
    schema_of,
)
from finflow.evaluation.page.section import ROW, Cell, Section, columns_of, figure_section, make_table
from finflow.evaluation.page.whole_page import Headline, Page, Tile
from finflow.evaluation.statistics.bootstrap import Interval, Resampling, SharpeDifference, draw_days, sharpe_difference
from finflow.evaluation.statistics.metrics import summarise

REPLACE = "replace"
OLD, NEW = "old agent", "new agent"
COMPARED = (NEW, OLD, BASELINE)
"""Columns of the comparison: retrained, old, and equal weight."""
TAIL = 5
"""Resamples beyond the lower bound, at least."""

Answer = Literal["keep", "replace"]


@dataclass(frozen=True)
class Figures:
    """Figures of one of the compared over all evaluated bars, net of costs."""

    sharpe: Sharpe
    annual_return: Return
    max_drawdown: Drawdown
    annual_turnover: Turnover


@dataclass(frozen=True)
class FoldNumbers:
    """One fold of the comparison."""

    learned_from: Annotated[str, about("First bar that the retraining read, for its features too.")]
    learned_until: Annotated[str, about("Last bar that it learned from or was chosen by."), Shown("retrained up to")]
    validation: Annotated[int, about("How many of these bars it was chosen by, the last of them.")]
    judged_from: Annotated[str, about("First evaluated bar.")]
    judged_until: Annotated[str, about("Last evaluated bar.")]
    returns: Annotated[int, about("Evaluated returns."), Shown("returns", ",", 0)]
    old_sharpe: Annotated[Number, about("Sharpe ratio of the old agent."), Shown("Sharpe ratio, old")]
    new_sharpe: Annotated[Number, about("Sharpe ratio of the new agent."), Shown("new")]


@dataclass(frozen=True)
class RetrainNumbers:
    """Answer of `--mode retrain`, with its evidence."""

    answer: Annotated[Answer, about("replace, where the lower bound of the lead exceeds the margin; else keep.")]
    until: Annotated[str, about("Newest bar.")]
    old_until: Annotated[str, about("Last bar that the old agent was trained on or chosen by.")]
    new_bars: Annotated[int, about("Bars since.")]
    old_sha256: Annotated[str, about("Hash of the old agent's networks.")]
    panel_sha256: Annotated[str, about("Hash of the prices.")]
    lead: Annotated[Number, about("Sharpe ratio of the new agent less that of the old, a year.")]
    bounds: Annotated[Interval, about("Paired bootstrap interval of the lead, of this coverage.")]
    coverage: Annotated[Number, about("Coverage of the interval; half of what is left is the chance of the rule.")]
    share_ahead: Annotated[Probability, about("Share of the resamples in which the new agent is ahead.")]
    margin: Annotated[float, about("Lead that the lower bound has to exceed (trading.retrain.margin).")]
    comparison: Annotated[int, about("Number of this comparison among those of the old agent, from 1.")]
    returns: Annotated[int, about("Evaluated returns, of all folds.")]
    figures: Annotated[dict[str, Figures], about("By agent, and equal weight.")]
    folds: Annotated[list[FoldNumbers], about("In the order of time.")]
    run: Annotated[str | None, about("New run, from the folder of this file on; null where the old agent is kept.")]
    notes: Annotated[list[str], about("Remarks on prices and comparison.")]


def retrain_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of `retrain.json`, with a description of every key."""
    return schema_of(RetrainNumbers, "retrain.json of finflow")


@dataclass(frozen=True)
class ReplacementRule:
    """Rule that replaces an agent, in its comparison of this number: docs/guide/retrain.md, The rule.

    The margin is in Sharpe ratio a year.
    """

    confidence: float
    margin: float
    comparison: int = 1

    @property
    def chance(self) -> float:
        return (1.0 - self.confidence) / (self.comparison * (self.comparison + 1))

    @property
    def coverage(self) -> float:
        """Coverage of the two-sided interval whose lower bound decides."""
        return 1.0 - 2.0 * self.chance

    def samples(self, configured: int) -> int:
        """Resamples that the lower bound takes, and no fewer than configured."""
        return max(configured, round(TAIL / self.chance))

    def answer(self, lead: SharpeDifference) -> Answer:
        """The answer to a lead; ``keep`` where it has no interval."""
        return "replace" if lead.interval.defined and lead.interval.low > self.margin else "keep"


def measure_lead(new: Backtest, old: Backtest, rule: ReplacementRule, resampling: Resampling) -> SharpeDifference:
    """Lead of the new agent in the Sharpe ratio, with its paired interval.

    References
    ----------
    Ledoit and Wolf (2008), Robust Performance Hypothesis Testing with the Sharpe Ratio: resampling in blocks, paired.
    """
    draws = draw_days(len(new.returns), replace(resampling, samples=rule.samples(resampling.samples)))
    return sharpe_difference(new, old, draws, rule.coverage)


def headline_figures(runs: Sequence[Backtest]) -> dict[str, Figures]:
    summaries: dict[str, Mapping[str, Any]] = {run.name: summarise(run) for run in runs}
    return {name: Figures(*(float(one[key]) for key in Figures.__annotations__)) for name, one in summaries.items()}


def retrain_page(numbers: RetrainNumbers, runs: Sequence[Backtest]) -> Page:
    replaced = numbers.answer == REPLACE
    summary = (
        "On bars that neither was trained on, the Sharpe ratio of the new agent less that of the old is ",
        Cell(("lead",), plus=True),
        " a year, with a lower bound of ",
        Cell(("bounds", "low"), plus=True),
        f": the bound is {'above' if replaced else 'not above'} the margin.",
    )
    finding = Headline(
        "",
        "Replace the old agent" if replaced else "Keep the old agent",
        words=(summary,),
        kind="ahead" if replaced else "not-shown",
        label="Answer",
        reasons=tuple(f"warning: {note}" for note in numbers.notes),
        tiles=(
            Tile("Lead in the Sharpe ratio", Cell(("lead",), plus=True)),
            Tile("Lower bound", Cell(("bounds", "low"), plus=True), "replace where it exceeds the margin"),
            Tile("Margin", Cell(("margin",))),
            Tile("New bars", Cell(("new_bars",), ",", 0)),
        ),
    )
    rows = [((str(number),), f"{fold.judged_from} to {fold.judged_until}") for number, fold in enumerate(numbers.folds)]
    compared, folds = columns_of(Figures, "figures", ROW), columns_of(FoldNumbers, "folds", ROW)
    table = make_table("Compared", "Over all folds, net of costs", COMPARED, compared, marked=NEW, heading=False)
    caption = "Growth of 1 over the evaluated windows"
    growth = {run.name: np.cumprod(1.0 + run.returns) for run in runs}
    more = f"{caption}, net of costs; each agent begins every window in cash."
    sections = [
        figure_section(wealth_figure("wealth", caption, more, runs[0].dates, growth, NEW)),
        Section("compared", "Figures", tables=(table,)),
        Section("folds", "Folds", tables=(make_table("Folds", "Evaluated", rows, folds, heading=False),)),
        Section("rule", "The rule", notes=_method(numbers)),
    ]
    title = f"Retraining up to {numbers.until}"
    return Page(title, f"an agent trained up to {numbers.old_until}, and its retraining", finding, sections, numbers)


def _method(numbers: RetrainNumbers) -> tuple[str, ...]:
    chance = (1.0 - numbers.coverage) / 2.0
    return (
        f"The old agent was trained on and chosen by bars up to {numbers.old_until}. Each fold has a retraining of its "
        "own, begun with the old agent's networks, that ends before the evaluated window.",
        "Both begin each window in cash and have the same costs. The interval is of the paired difference, by the "
        "stationary bootstrap.",
        f"The new agent replaces the old one where the lower bound exceeds the margin. Without a true lead above the "
        f"margin that happens with a probability of about {chance:.2%} in comparison {numbers.comparison} of this "
        "agent, and over all its comparisons of at most 5 %.",
        "An old agent that does worse than before is no reason by itself: a retrained one may do no better.",
    )
