"""Probability of backtest overfitting, by combinatorially symmetric cross-validation (CSCV).

Bailey, Borwein, Lopez de Prado and Zhu, The Probability of Backtest Overfitting, Journal of Computational Finance 20
(2016). The days are cut into S blocks of equal length; each choice of S / 2 of them is a sample to choose on, the rest
a sample to be judged on. Where the strategy that was best in the first comes out at or below the middle in the second,
the choice was overfitted; the share of such choices is the probability of backtest overfitting (PBO). A choice among
strategies without any skill has a PBO near a half.

The best one of several configurations (runs, trials of a search, or seeds) can be judged too, with a verdict that
accounts for the selection. All have returns over the same days, which the caller chooses: a selection on validation
days is free, one on test days uses the test window up.

A choice among stages of training, and blends with a reference, takes evidence from years that the policies have not
seen: backtests on held-out blocks of bars. The one with the largest mean gain over the reference, less one standard
error over the blocks, is chosen; what is left of its gain once the choice is accounted for decides how much is used
(Thomas, Theocharous and Ghavamzadeh 2015, High Confidence Policy Improvement: deploy what is shown to be better; White
2000, A Reality Check for Data Snooping: the choice lies inside the bootstrap; James and Stein 1961: positive-part
shrinkage of an estimate by its own size).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy

from finflow.arrays import FloatArray, IntArray
from finflow.errors import EvidenceError
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.page.drawing import BLUE, VERMILION, Rendered, render
from finflow.evaluation.page.page_numbers import THIN
from finflow.evaluation.page.section import Cell, Section, Sentence
from finflow.evaluation.statistics.bootstrap import Interval, Resampling, draw_blocks
from finflow.evaluation.statistics.metrics import sharpe
from finflow.evaluation.statistics.significance_tests import Tries, check_returns
from finflow.evaluation.statistics.verdict import Verdict, judge
from finflow.market.bar_frequency import BARS_PER_YEAR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLOCKS = 16  # as the paper recommends: 12 870 choices
FEWEST_DAYS = 4  # in a block
RESAMPLES = 500
#: ``1 - SHRINKAGE / t^2`` is zero up to t = 1.73, one half at 2.45 and .88 at 5. A gain of true size d with standard
#: error 1 is best scaled by d^2 / (d^2 + 1), of which ``1 - 1 / t^2`` is the natural estimate; three instead of one
#: keeps the chance of a quarter or more of a policy that gains nothing (t over 2) at 2.3 %.
SHRINKAGE = 3.0


@dataclass(frozen=True)
class Overfitting:
    """The result of CSCV, with the Sharpe ratios (a bar) of the strategy that was best in sample.

    ``logits`` are ln(w / (1 - w)), w = rank / (N + 1) of that strategy out of sample; at or under 0: below the middle.
    """

    logits: FloatArray  # (choices,)
    inside: FloatArray  # (choices,), in sample
    outside: FloatArray  # (choices,), out of sample
    blocks: int
    days: int  # that were cut, the last ones

    @property
    def pbo(self) -> float:
        """Probability of backtest overfitting, in [0, 1]."""
        return float(np.mean(self.logits <= 0.0))

    @property
    def loss(self) -> float:
        """Share of the choices whose strategy has a negative Sharpe ratio out of sample."""
        return float(np.mean(self.outside < 0.0))

    def numbers(self, among: Sequence[str]) -> dict[str, Any]:
        """Numbers for `metrics.json`; ``among`` names the strategies that were chosen among."""
        return {
            "pbo": self.pbo,
            "probability_of_loss": self.loss,
            "blocks": self.blocks,
            "choices": len(self.logits),
            "days": self.days,
            "among": list(among),
        }


def overfitting(excess: FloatArray, blocks: int = BLOCKS) -> Overfitting:
    """CSCV of a choice by Sharpe ratio.

    Raises EvidenceError if there are gaps, fewer than two strategies, or too few days.

    Parameters
    ----------
    excess : float64 (days, strategies)
        Returns in excess of cash, the same days for all. Where the blocks do not divide the days, the first few days
        are left out.
    blocks
        S, even.
    """
    if excess.ndim != 2 or excess.shape[1] < 2:
        raise EvidenceError("the probability of overfitting is that of a choice: it needs two strategies at least")
    for number, column in enumerate(excess.T):
        check_returns(column, f"candidate {number + 1}", blocks * FEWEST_DAYS)
    length = len(excess) // blocks
    used = excess[len(excess) - length * blocks :]
    cut = used.reshape(blocks, length, -1)
    mean = used.mean(axis=0)
    centred = cut - mean  # about the mean of all: sums of squares lose no digits
    sums, squares = centred.sum(axis=1), np.square(centred).sum(axis=1)
    choices = np.array(list(itertools.combinations(range(blocks), blocks // 2)))
    inside = np.zeros((len(choices), blocks))
    inside[np.arange(len(choices))[:, None], choices] = 1.0
    count = length * blocks // 2

    def total(share: FloatArray, part: FloatArray) -> FloatArray:
        return np.asarray(np.einsum("cb,bs->cs", share, part))  # in one order, however many threads there are

    samples = [_sharpe(total(share, sums), total(share, squares), mean, count) for share in (inside, 1.0 - inside)]
    chosen = np.argmax(samples[0], axis=1)
    rows = np.arange(len(choices))
    ranks = scipy.stats.rankdata(samples[1], axis=1)[rows, chosen] / (excess.shape[1] + 1.0)
    return Overfitting(
        logits=np.log(ranks / (1.0 - ranks)),
        inside=samples[0][rows, chosen],
        outside=samples[1][rows, chosen],
        blocks=blocks,
        days=len(used),
    )


def cscv_of(runs: Sequence[Backtest]) -> Overfitting | None:
    """CSCV of choosing the best of these by Sharpe ratio; None where it cannot be made."""
    try:
        return overfitting(np.column_stack([run.returns - run.cash_returns for run in runs]))
    except EvidenceError:
        return None


def overfitting_histogram(
    found: Overfitting, among: int, what: str = "strategies", name: str = "overfitting"
) -> Rendered:
    """Histogram of the logits of CSCV among so many candidates, called ``what``, over days cut into halves."""
    bound = max(1, math.ceil(float(np.abs(found.logits).max())))
    edges = np.linspace(-bound, bound, 8 * bound + 1)
    # What is level with the middle counts as overfitted, so an edge belongs to the bin on its left.
    shares = np.histogram(-found.logits, edges)[0][::-1] / len(found.logits)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        below = edges[1:] <= 0.0
        for chosen, colour, label in ((below, VERMILION, "at or below the middle"), (~below, BLUE, "above the middle")):
            heights, widths = 100.0 * shares[chosen], np.diff(edges)[chosen]
            axes.bar(edges[:-1][chosen], heights, widths, align="edge", color=colour, label=label)
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.set_xlabel("logit of the rank out of sample")
        axes.set_ylabel("share of the cuts, %")
        axes.legend(frameon=False)

    return Rendered(
        name,
        "Choosing the best of them",
        f"For {len(found.logits):,} cuts of the window into halves: where that one of the {what} with the best Sharpe "
        "ratio in one half came out in the other. Mass at or left of zero is the probability of backtest overfitting.",
        f"Histogram of the logits of the rank out of sample, for a choice among {among} {what}. "
        f"{found.pbo:.1%} of the cuts lie at or below zero, the middle of them.",
        render(draw, 3.2),
    )


@dataclass(frozen=True, eq=False)
class DailyReturns:
    """Daily returns (days,) of one that may be chosen, and of its references at the same costs."""

    returns: FloatArray
    cash: FloatArray
    baseline: FloatArray
    patient: FloatArray
    bars_per_year: int = BARS_PER_YEAR


class Best(NamedTuple):
    """The best of several by Sharpe ratio, and its verdict as the best of several."""

    name: str
    verdict: Verdict


def judge_best(choices: Mapping[str, DailyReturns], counted: int, resampling: Resampling) -> Best:
    """Apply the three tests to the one with the best Sharpe ratio, knowing that it was chosen.

    SPA looks at all of them together, and DSR deflates by all that was tried: ``counted``, for all of them together and
    on file for the panel's test window, if more than there are choices.
    """
    sharpes = {name: float(sharpe(one.returns, one.cash)) for name, one in choices.items()}
    best = max(sharpes, key=lambda name: (np.nan_to_num(sharpes[name], nan=-np.inf), name))
    chosen = choices[best]
    others = {name: one for name, one in choices.items() if name != best}
    tries = Tries(
        configurations=len(choices),
        others=max(counted - len(choices), 0),
        sharpes=tuple(float(np.nan_to_num(sharpe(one.returns, one.baseline, 1))) for one in others.values()),
    )
    verdict = judge(
        chosen.returns,
        (chosen.baseline, chosen.patient),
        chosen.cash,
        tries,
        resampling,
        candidates={name: one.returns for name, one in others.items()},
        bars_per_year=chosen.bars_per_year,
    )
    return Best(best, verdict)


def choice_section(
    excess: FloatArray, names: Sequence[str], days: str, best: Best | None = None, what: str = "configurations"
) -> Section:
    """Section of a page about a choice by Sharpe ratio on some days, such as "the validation window".

    ``excess`` has returns in excess of cash, (days, configurations), which are called ``what``, in the plural.
    """
    words: list[Sentence] = []
    numbers: dict[str, object] = {"overfitting": None, "best": None}
    figures = []
    try:
        found = overfitting(excess)
    except EvidenceError as error:
        words.append(f"The probability of backtest overfitting cannot be computed: {error}.")
    else:
        words.append(overfitting_sentence(len(names), what, days))
        numbers["overfitting"] = found.numbers(names)
        figures.append(overfitting_histogram(found, len(names), what, "choice-logits"))
    if best is not None:
        name, verdict = best
        numbers["best"] = {
            "name": name,
            "beats_equal_weight": verdict.beats_equal_weight,
            "tries": verdict.tries.total,
            "psr": verdict.psr,
            "dsr": verdict.dsr,
            "spa_p": None if verdict.spa is None else verdict.spa.p_consistent,
            "sharpe_difference_interval": Interval(*(verdict.sharpe_difference_interval or (math.nan, math.nan))),
        }
        words.append(
            f"The best of them by Sharpe ratio is {name}. Judged as the best of several, it beats equal weight: "
            f"{verdict.beats_equal_weight}. This verdict accounts for the choice; that of its own report does not."
        )
        words += map(str, verdict.reasons)
    return Section("choice", "Choosing the best of them", numbers, figures=tuple(figures), words=tuple(words))


def overfitting_sentence(among: int, what: str, days: str) -> Sentence:
    """Sentence on `Overfitting.numbers` at the key ``overfitting``: of a choice among so many, called ``what``."""
    return (
        f"The best of these {among} {what} by its Sharpe ratio in one half of {days} ranked at or below the median in "
        "the other half in ",
        Cell(("overfitting", "pbo"), "%", 1),
        " of ",
        Cell(("overfitting", "choices"), ",", 0),
        " cuts into halves (probability of backtest overfitting, CSCV with ",
        Cell(("overfitting", "blocks"), decimals=0),
        f" blocks); a choice without skill comes near 50{THIN}%, and among few {what} the figure is coarse.",
    )


def _sharpe(sums: FloatArray, squares: FloatArray, centre: FloatArray, count: int) -> FloatArray:
    """Sharpe ratios (choices, strategies) from sums about a centre; 0 where returns do not vary."""
    deviation = np.sqrt(np.maximum(squares - np.square(sums) / count, 0.0) / (count - 1))
    mean = centre + sums / count
    return np.divide(mean, deviation, out=np.zeros_like(mean), where=deviation > 1e-12)


class BlendChoice(NamedTuple):
    """Choice among candidates by their gains out of sample."""

    candidate: int
    gain: float  # mean over bars of what is gained over the reference, costs paid
    t_statistic: float  # of the gain, its error robust to autocorrelation, less `selection`
    selection: float  # what the best of as many candidates without any gain would show on average, as a t statistic
    confidence: float  # share of the candidate that the evidence justifies, in 0..1


def shrunk(t_statistic: float) -> float:
    """``max(0, 1 - 3 / t^2)`` for positive t, else 0."""
    return max(0.0, 1.0 - SHRINKAGE / t_statistic**2) if t_statistic > 0.0 else 0.0


def least_gain(gains: FloatArray, blocks: IntArray) -> FloatArray:
    """Mean gain of each candidate less one standard error over the blocks, (candidates,); parameters as of `choose`."""
    count = int(blocks.max()) + 1
    means = np.stack([gains[:, blocks == block].mean(axis=1) for block in range(count)], axis=1)
    error = means.std(axis=1, ddof=1) / math.sqrt(count) if count > 1 else 0.0
    return np.asarray(gains.mean(axis=1) - error)


def choose(gains: FloatArray, blocks: IntArray, seed: int) -> BlendChoice:
    """Choose the candidate with the best lower bound, and judge it with the choice taken into account.

    Parameters
    ----------
    gains : array, (candidates, bars)
        Rewards (or log growth) less the reference's on the same bars, in their order.
    blocks : int array, (bars,)
        Block of each bar, numbered from 0.
    """
    chosen = int(np.argmax(least_gain(gains, blocks)))
    length = max(round(gains.shape[1] ** (1.0 / 3.0)), 1)
    draws = draw_blocks(gains.shape[1], Resampling(RESAMPLES, length, seed))  # the same for all candidates
    means = np.stack([gains.T[bars].mean(axis=0) for bars in draws])  # (resamples, candidates)
    errors = np.maximum(means.std(axis=0, ddof=1), 1e-15)
    mean = float(gains[chosen].mean())
    selection = float(((means - gains.mean(axis=1)) / errors).max(axis=1).mean())
    t_statistic = mean / float(errors[chosen]) - selection
    return BlendChoice(chosen, mean, t_statistic, selection, shrunk(t_statistic))
