"""Mirrored bars beside those of history: where they are in the table of growth, and how much they weigh."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from finflow.config import MirroredConfig
from finflow.cores import forked
from finflow.env.process_variants import with_growths
from finflow.training.data.mirrored_growth import Predictions, mirrored_growth, predicted_returns
from finflow.training.data.rollouts import RolloutMarket

Segments = Sequence[range]


class Mirror(NamedTuple):
    """Mirrored bars of some segments.

    Attributes
    ----------
    offset : int
        Bars from a bar to its mirrored one in the table of growth; 0 where there is none.
    weight : float
        Of what is earned there.
    """

    offset: int
    weight: float


NO_MIRROR = Mirror(0, 0.0)


def with_mirrored_bars(
    market: RolloutMarket, learned: Sequence[Segments], config: MirroredConfig
) -> tuple[RolloutMarket, list[Mirror]]:
    """Market with bars mirrored around returns that are predicted from the bars that learners learn from.

    Parameters
    ----------
    learned : sequence of sequences of range
        Bars of decisions of each learner.

    Returns
    -------
    market : RolloutMarket
    mirrors : list of Mirror
        Of each learner.
    """
    if config.weight == 0.0:
        return market, [NO_MIRROR for _ in learned]
    half = (len(learned) + 1) // 2
    with forked(partial(_predictions, market, learned[half:], config.regimes)) as second:
        first = _predictions(market, learned[:half], config.regimes)
    growths, mirrors = [], []
    for number, expected in enumerate([*first, *second()]):
        growths.append(mirrored_growth(market.process, expected.returns))
        weight = config.weight * (mirror_scale(expected.slope) if config.scaled else 1.0)
        mirrors.append(Mirror((1 + number) * len(market.process.growth), weight))
    return market._replace(process=with_growths(market.process, growths)), mirrors


def _predictions(market: RolloutMarket, learned: Sequence[Segments], regimes: bool) -> list[Predictions]:
    """Predicted returns of some learners' bars."""
    return [predicted_returns(market.process, segments, regimes) for segments in learned]


def mirror_scale(slope: float) -> float:
    """Share of the weight of mirrored bars, 0 to 1, where returns have a slope on predictions from other bars."""
    return min(max(2.0 * slope - 1.0, 0.0), 1.0)
