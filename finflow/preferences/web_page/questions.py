"""Questions to a person: pairs of segments as they are drawn for judges, each with a drawn side."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from finflow.config.preferences_section import JudgeConfig
from finflow.preferences.pair_making import PAIRS, DrawnPair, draw_pairs, pair_generator
from finflow.preferences.pair_records import Better, Pair, Segment
from finflow.preferences.path_sources import SegmentMarket
from finflow.preferences.portfolio_path import PortfolioPath

PURPOSE = 94  # of the generator that draws sides
Choice = Literal["left", "tie", "right"]


class Question(NamedTuple):
    """A pair of segments to be compared.

    Attributes
    ----------
    segments : tuple of Segment
        First and second, as in the file.
    paths : tuple of PortfolioPath
        Of the first and the second.
    turned : bool
        True where the second is shown on the left.
    """

    segments: tuple[Segment, Segment]
    paths: tuple[PortfolioPath, PortfolioPath]
    turned: bool

    @property
    def shown(self) -> tuple[PortfolioPath, PortfolioPath]:
        """Paths on the left and on the right."""
        first, second = self.paths
        return (second, first) if self.turned else (first, second)

    def answered(self, choice: Choice) -> Pair:
        """The pair with an answer."""
        if choice == "tie":
            better: Better = "tie"
        else:
            better = "second" if (choice == "left") == self.turned else "first"
        return Pair(first=self.segments[0], second=self.segments[1], better=better, chance=None)


def make_questions(market: SegmentMarket, count: int, config: JudgeConfig, seed: int) -> tuple[Question, ...]:
    """Draw questions: the first of the pairs that a judge is given by the same seed, none of them twice.

    At least `PAIRS` pairs are drawn, so that a larger number of questions goes on after those of a smaller one.

    Parameters
    ----------
    market : SegmentMarket
    count : int
        Number of questions; fewer where the market has not as many pairs.
    config : JudgeConfig
        Strategies, and length of a segment.
    seed : int

    Raises
    ------
    FinflowError
        If the window is shorter than a segment, or a strategy is unknown.
    """
    drawn = draw_pairs(market, max(count, PAIRS), config, pair_generator(seed))
    different: dict[frozenset[Segment], DrawnPair] = {}
    for pair in drawn:
        different.setdefault(frozenset(pair.segments), pair)
    kept = list(different.values())[:count]
    turned = np.random.default_rng(np.random.SeedSequence([PURPOSE, seed])).random(len(kept)) < 0.5
    return tuple(Question(pair.segments, pair.paths, bool(side)) for pair, side in zip(kept, turned, strict=True))
