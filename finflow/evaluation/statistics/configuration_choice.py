"""Selection of the best of several configurations: its probability of overfitting, and the verdict on the best one
that accounts for the selection.

The input is the returns of all candidates over the same days: runs, trials of a search, or seeds. The caller chooses
the days: a selection on validation days is free, one on test days uses the test window up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from finflow.evaluation.page.drawing import Rendered
from finflow.evaluation.page.section import Cell, Row, Section, Sentence, Table
from finflow.evaluation.statistics import bootstrap as significance, metrics
from finflow.evaluation.statistics.backtest_overfitting import (
    Overfitting,
    overfitting,
    overfitting_histogram,
    overfitting_numbers,
)
from finflow.evaluation.statistics.readings_ledger import Tries
from finflow.evaluation.statistics.significance_tests import Resampling
from finflow.evaluation.statistics.verdict import Verdict, VerdictReference, reach_verdict
from finflow.market.bar_frequency import BARS_PER_YEAR

KEY = "choice"

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Choice:
    """CSCV of a choice by Sharpe ratio among ``names``, called ``what``, and the histogram of its logits."""

    found: Overfitting
    names: tuple[str, ...]
    what: str
    figure: Rendered


@dataclass(frozen=True, eq=False)
class DailyReturns:
    """Daily returns (days,) of one that may be chosen, and of its references at the same costs."""

    returns: Array
    cash: Array
    baseline: Array
    patient: Array
    bars_per_year: int = BARS_PER_YEAR


@dataclass(frozen=True)
class Best:
    """The best of several by Sharpe ratio, and its verdict as the best of several."""

    name: str
    verdict: Verdict


def judge_choice(excess: Array, names: Sequence[str], what: str = "configurations") -> Choice:
    """Probability of backtest overfitting of choosing the best by Sharpe ratio.

    Parameters
    ----------
    excess : float64 (days, configurations)
        Returns in excess of cash.
    what
        The configurations are called, in the plural.

    Raises
    ------
    EvidenceError
        If there are gaps, fewer than two configurations, or too few days.
    """
    found = overfitting(excess)
    return Choice(found, tuple(names), what, overfitting_histogram(found, len(names), what, "choice-logits"))


def judge_best(choices: Mapping[str, DailyReturns], counted: int, resampling: Resampling) -> Best:
    """Apply the three tests to the one with the best Sharpe ratio, knowing that it was chosen.

    SPA looks at all of them together, and DSR deflates by all that was tried: ``counted``, for all of them together and
    on file for the panel's test window, if more than there are choices.
    """
    sharpes = {name: float(metrics.sharpe(one.returns, one.cash)) for name, one in choices.items()}
    best = max(sharpes, key=lambda name: (np.nan_to_num(sharpes[name], nan=-np.inf), name))
    chosen = choices[best]
    others = {name: one for name, one in choices.items() if name != best}
    tries = Tries(
        configurations=len(choices),
        others=max(counted - len(choices), 0),
        sharpes=tuple(_active_sharpe(one) for one in others.values()),
    )
    draws = significance.draw_days(len(chosen.returns), resampling.samples, resampling.block_length, resampling.seed)
    own, equal, patient = (
        metrics.sharpe(returns[draws], chosen.cash[draws], chosen.bars_per_year)
        for returns in (chosen.returns, chosen.baseline, chosen.patient)
    )
    verdict = reach_verdict(
        chosen.returns,
        (VerdictReference(chosen.baseline, own - equal), VerdictReference(chosen.patient, own - patient)),
        tries,
        resampling,
        {name: one.returns for name, one in others.items()},
    )
    return Best(best, verdict)


def choice_section(choice: Choice | str, days: str, best: Best | None = None) -> Section:
    """The section of a page about a choice (or why there is none) on some days, such as "the validation window"."""
    if isinstance(choice, str):
        words: list[Sentence] = [f"The probability of backtest overfitting cannot be computed: {choice}."]
        numbers: dict[str, object] = {"overfitting": None}
    else:
        words = [_overfitted(choice, days)]
        numbers = {"overfitting": overfitting_numbers(choice.found, choice.names)}
    numbers["best"] = None if best is None else _numbers(best)
    tables = []
    if best is not None:
        rows = (
            Row("Tries", (Cell(("best", "tries"), decimals=0),)),
            Row("PSR of the return over equal weight", (Cell(("best", "psr"), decimals=3),)),
            Row("DSR, deflated for the tries", (Cell(("best", "dsr"), decimals=3),)),
            Row("SPA of all of them together, p", (Cell(("best", "spa_p"), decimals=3),)),
        )
        tables.append(Table(f"{best.name}, as the best of several", ("Test", "Value"), rows))
        words.append(
            f"The best of them by Sharpe ratio is {best.name}. Judged as the best of several, it beats equal weight: "
            f"{best.verdict.answer}. This verdict accounts for the choice; that of its own report does not."
        )
        words += map(str, best.verdict.reasons)
    return Section(
        KEY,
        "Choosing the best of them",
        numbers,
        tuple(tables),
        () if isinstance(choice, str) else (choice.figure,),
        tuple(words),
    )


def _overfitted(choice: Choice, days: str) -> Sentence:
    return (
        f"Choosing the best of these {len(choice.names)} {choice.what} by its Sharpe ratio in one half of {days} "
        "ranks it at or below the median in the other half in ",
        Cell(("overfitting", "pbo"), "%", 1),
        " of ",
        Cell(("overfitting", "choices"), ",", 0),
        " cuts into halves (probability of backtest overfitting, CSCV with ",
        Cell(("overfitting", "blocks"), "", 0),
        " blocks), and loses money there in ",
        Cell(("overfitting", "probability_of_loss"), "%", 1),
        f". A choice without skill comes near 50 %; among few {choice.what} the figure is coarse.",
    )


def _numbers(best: Best) -> dict[str, object]:
    verdict, spa = best.verdict, best.verdict.superiority
    return {
        "name": best.name,
        "beats_equal_weight": verdict.answer,
        "tries": verdict.tries.total,
        "psr": verdict.psr,
        "dsr": verdict.dsr,
        "spa_p": None if spa is None else spa.p_consistent,
        "sharpe_difference_interval": verdict.difference,
    }


def _active_sharpe(one: DailyReturns) -> float:
    """Sharpe ratio of the return over equal weight, a bar; 0 where that does not vary."""
    active = one.returns - one.baseline
    deviation = float(active.std(ddof=1))
    return float(active.mean()) / deviation if deviation > 1e-12 else 0.0
