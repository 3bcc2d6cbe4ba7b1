"""Verdict over all judged years of a walk-forward, joined, in addition to that of the test window.

A test window of seven years has little power against a small difference. A walk-forward judges every year after the
first ones by an agent that was trained before it, so its joined windows are longer. Every seed of every fold has the
same weight: the judged return of a day is the mean over seeds, as of an account that is rebalanced daily to an equal
part in each. No seed is chosen, and seeds are not tries.

The configuration may have been chosen with knowledge of these years. `Tries` counts the configurations that were
named; other walk-forwards on the same years are not on file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from finflow.evaluation.backtest import Backtest
from finflow.evaluation.multi_run.repeated_trainings import ProtocolPaths
from finflow.evaluation.page.page_numbers import years_unit
from finflow.evaluation.page.section import Cell, Section, Sentence
from finflow.evaluation.report.report_page import verdict_table
from finflow.evaluation.statistics.bootstrap import Resampling, draw_days, resample_sharpe
from finflow.evaluation.statistics.metrics import sharpe_of
from finflow.evaluation.statistics.readings_ledger import Tries
from finflow.evaluation.statistics.report_statistics import verdict_with_power
from finflow.evaluation.statistics.verdict import Verdict, VerdictReference

KEY = "walk_forward"


def joined_section(found: ProtocolPaths, patient: Backtest, tries: Tries, resampling: Resampling) -> Section:
    """Section of a walk-forward on the verdict over all judged years, against patient equal weight too."""
    baseline, agent = found.compared[0], mean_of_seeds(found.agents)
    verdict = judge_joined(agent, baseline, patient, tries, resampling)
    bars, seeds, windows = agent.bars_per_year, len(found.agents), len(found.others)
    numbers: dict[str, object] = {
        "windows": windows,
        "seeds": seeds,
        "years": len(agent.returns) / bars,
        "sharpe_difference": sharpe_of(agent) - sharpe_of(baseline),
        "verdict": verdict,
    }
    whose = "the agent of one seed" if seeds == 1 else f"the mean of the {seeds} seeds, none of which was chosen"
    words: list[Sentence] = [
        (
            f"Over all {windows} judged windows, joined, ",
            Cell(("years",), "", 1),
            f" years, {whose}, beats equal weight: {verdict.beats_equal_weight}. The difference of Sharpe ratios is ",
            Cell(("sharpe_difference",), plus=True, keep_sign=True),
            ". It supplements the verdict on the test window: it covers more years, but the configuration may have "
            "been chosen with knowledge of them.",
        ),
        *map(str, verdict.reasons),
    ]
    table = verdict_table(verdict, years_unit(bars))
    return Section(KEY, "All judged years together", numbers, (table,), words=tuple(words))


def judge_joined(
    judged: Backtest, baseline: Backtest, patient: Backtest, tries: Tries, resampling: Resampling
) -> Verdict:
    """The verdict on joined windows, with what it could have shown; all over the same days."""
    draws = draw_days(len(judged.returns), resampling)
    own = resample_sharpe(judged, draws)
    rivals = [VerdictReference(run.returns, own - resample_sharpe(run, draws)) for run in (baseline, patient)]
    return verdict_with_power(judged, rivals, tries, resampling, draws)


def mean_of_seeds(agents: Sequence[Backtest]) -> Backtest:
    """An account with an equal part in each agent, made equal again every day at no cost."""
    if len(agents) == 1:
        return agents[0]
    names = ("returns", "costs", "turnover", "weights")
    series = {name: np.mean([getattr(run, name) for run in agents], axis=0) for name in names}
    return replace(agents[0], explanation=None, refused=None, rewards=None, **series)
