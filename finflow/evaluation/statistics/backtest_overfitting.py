"""Probability of backtest overfitting, by combinatorially symmetric cross-validation (CSCV).

Bailey, Borwein, Lopez de Prado and Zhu, The Probability of Backtest Overfitting, Journal of Computational Finance 20
(2016). The days are cut into S blocks of equal length; each choice of S / 2 of them is a sample to choose on, the rest
a sample to be judged on. Where the strategy that was best in the first comes out at or below the middle in the second,
the choice was overfitted; the share of such choices is the probability of backtest overfitting (PBO). A choice among
strategies without any skill has a PBO near a half.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from numpy.typing import NDArray

from finflow.errors import EvidenceError
from finflow.evaluation.page.drawing import BLUE, VERMILION, Rendered, render
from finflow.evaluation.statistics.significance_tests import check_returns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLOCKS = 16  # as the paper recommends: 12 870 choices
FEWEST_DAYS = 4  # in a block

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Overfitting:
    """The result of CSCV.

    Attributes
    ----------
    logits : float64 (choices,)
        ln(w / (1 - w)), w = rank / (N + 1) of the chosen strategy out of sample; at or under 0: below the middle.
    chosen : int64 (choices,)
        The strategy that was best in sample.
    inside, outside : float64 (choices,)
        Its Sharpe ratio (a bar) in sample and out of sample.
    blocks, days
        How the last days were cut.
    """

    logits: Array
    chosen: NDArray[np.int64]
    inside: Array
    outside: Array
    blocks: int
    days: int

    @property
    def pbo(self) -> float:
        """Probability of backtest overfitting, in [0, 1]."""
        return float(np.mean(self.logits <= 0.0))

    @property
    def loss(self) -> float:
        """Share of the choices whose strategy has a negative Sharpe ratio out of sample."""
        return float(np.mean(self.outside < 0.0))

    @property
    def slope(self) -> float:
        """Degradation: slope of the Sharpe ratio out of sample on that in sample; NaN where that does not vary."""
        deviation = self.inside - self.inside.mean()
        denominator = float(np.sum(deviation * deviation))
        return float(np.sum(deviation * self.outside)) / denominator if denominator > 0.0 else math.nan


def overfitting(excess: Array, blocks: int = BLOCKS) -> Overfitting:
    """CSCV of a choice by Sharpe ratio.

    Parameters
    ----------
    excess : float64 (days, strategies)
        Returns in excess of cash, the same days for all. Where the blocks do not divide the days, the first few days
        are left out.
    blocks
        S, even.

    Raises
    ------
    EvidenceError
        If there are gaps, fewer than two strategies, or too few days.
    """
    if blocks < 2 or blocks % 2:
        raise ValueError(f"the number of blocks must be even, not {blocks}")
    if excess.ndim != 2 or excess.shape[1] < 2:
        raise EvidenceError("the probability of overfitting is that of a choice: it needs two strategies at least")
    for number, column in enumerate(excess.T):
        check_returns(column, f"candidate {number + 1}", blocks * FEWEST_DAYS)
    length = len(excess) // blocks
    used = excess[len(excess) - length * blocks :]
    cut = used.reshape(blocks, length, -1)
    centred = cut - used.mean(axis=0)  # about the mean of all: sums of squares lose no digits
    sums, squares = centred.sum(axis=1), np.square(centred).sum(axis=1)
    choices = np.array(list(itertools.combinations(range(blocks), blocks // 2)))
    inside = np.zeros((len(choices), blocks))
    inside[np.arange(len(choices))[:, None], choices] = 1.0
    count = length * blocks // 2

    def total(share: Array, part: Array) -> Array:  # einsum sums in one order, however many threads there are
        return np.asarray(np.einsum("cb,bs->cs", share, part))

    samples = [
        _sharpe(total(share, sums), total(share, squares), used.mean(axis=0), count) for share in (inside, 1.0 - inside)
    ]
    chosen = np.argmax(samples[0], axis=1)
    rows = np.arange(len(choices))
    ranks = scipy.stats.rankdata(samples[1], axis=1)[rows, chosen] / (excess.shape[1] + 1.0)
    return Overfitting(
        logits=np.log(ranks / (1.0 - ranks)),
        chosen=chosen,
        inside=samples[0][rows, chosen],
        outside=samples[1][rows, chosen],
        blocks=blocks,
        days=len(used),
    )


def logit_histogram(found: Overfitting) -> dict[str, list[float]]:
    """Shares of the choices by logit: ``edges`` (n + 1) and ``shares`` (n), zero an edge."""
    bound = max(1, math.ceil(float(np.abs(found.logits).max())))
    edges = np.linspace(-bound, bound, 8 * bound + 1)
    # What is level with the middle counts as overfitted, so an edge belongs to the bin on its left.
    counts, _ = np.histogram(-found.logits, edges)
    return {"edges": edges.tolist(), "shares": (counts[::-1] / len(found.logits)).tolist()}


def overfitting_histogram(
    found: Overfitting, among: int, what: str = "strategies", name: str = "overfitting", over: str = "the window"
) -> Rendered:
    """Histogram of the logits of CSCV among so many candidates, called ``what``, over days cut into halves."""
    table = logit_histogram(found)
    edges, shares = np.array(table["edges"]), 100.0 * np.array(table["shares"])

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        below = edges[1:] <= 0.0
        for chosen, colour, label in ((below, VERMILION, "at or below the middle"), (~below, BLUE, "above the middle")):
            axes.bar(
                edges[:-1][chosen], shares[chosen], np.diff(edges)[chosen], align="edge", color=colour, label=label
            )
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.set_xlabel("logit of the rank out of sample")
        axes.set_ylabel("share of the cuts, %")
        axes.legend(frameon=False)

    return Rendered(
        name,
        "Choosing the best of them",
        f"For {len(found.logits):,} cuts of {over} into halves: where that one of the {what} with the best Sharpe "
        "ratio in one half came out in the other. Mass at or left of zero is the probability of backtest overfitting.",
        f"Histogram of the logits of the rank out of sample, for a choice among {among} {what}. "
        f"{found.pbo:.1%} of the cuts lie at or below zero, the middle of them.",
        render(draw, 3.2),
    )


def overfitting_numbers(found: Overfitting, among: Sequence[str]) -> dict[str, Any]:
    """Numbers for `metrics.json`; ``among`` names the strategies that were chosen among."""
    return {
        "pbo": found.pbo,
        "probability_of_loss": found.loss,
        "slope": found.slope,
        "blocks": found.blocks,
        "choices": len(found.logits),
        "days": found.days,
        "among": list(among),
        "histogram": logit_histogram(found),
    }


def _sharpe(sums: Array, squares: Array, centre: Array, count: int) -> Array:
    """Sharpe ratios (choices, strategies) from sums about a centre; 0 where returns do not vary."""
    variance = np.maximum(squares - np.square(sums) / count, 0.0) / (count - 1)
    deviation = np.sqrt(variance)
    mean = centre + sums / count
    return np.divide(mean, deviation, out=np.zeros_like(mean), where=deviation > 1e-12)
