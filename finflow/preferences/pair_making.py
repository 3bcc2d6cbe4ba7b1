"""Pairs of segments of strategies over the same days, drawn of a market and compared by a judge."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from finflow.config.preferences_section import JudgeConfig
from finflow.errors import FinflowError
from finflow.preferences.judges import Judge, JudgeOpinions
from finflow.preferences.pairs import Pair, Segment, count_ties
from finflow.preferences.segment_paths import RANDOM, PortfolioPath, SegmentMarket, simulate_strategies

PURPOSE = 92  # of the generator that draws segments and answers
PAIRS = 2000
"""Pairs that a judge compares where no number is given."""


class JudgedPairs(NamedTuple):
    """Pairs with the answers of a judge, drawn from its opinions."""

    pairs: tuple[Pair, ...]
    opinions: JudgeOpinions

    def line(self) -> str:
        """The pairs in a line."""
        return (
            f"{len(self.pairs):,} pairs, {count_ties(self.pairs):,} ties; attainable accuracy "
            f"{self.opinions.attainable:.3f}: of the answer that the judge gives more often"
        )


class DrawnPair(NamedTuple):
    """Two segments that nobody has compared yet, and their paths."""

    segments: tuple[Segment, Segment]
    paths: tuple[PortfolioPath, PortfolioPath]


def draw_pairs(
    market: SegmentMarket, count: int, config: JudgeConfig, generator: np.random.Generator
) -> list[DrawnPair]:
    """Draw pairs of segments, of two strategies over the same days.

    Raises
    ------
    FinflowError
        If the window is shorter than a segment, or a strategy is unknown.
    """
    names = list(dict.fromkeys([*config.strategies, *(f"{RANDOM}{number}" for number in range(config.random))]))
    steps = len(market.process.decision_bars(market.window))
    if steps < config.length:
        raise FinflowError(
            f"the training window has {steps} holding periods, fewer than preferences.judge.length = {config.length}"
        )
    paths = simulate_strategies(market, names)
    starts = generator.integers(steps - config.length + 1, size=count)
    ones = generator.integers(len(names), size=count)
    others = (ones + generator.integers(1, len(names), size=count)) % len(names)
    drawn = []
    for start, one, other in zip(starts, ones, others, strict=True):
        first, second = (paths[names[place]].rows(int(start), int(start) + config.length) for place in (one, other))
        days = {"start": first.dates[0].astype(object), "end": first.dates[-1].astype(object)}
        segments = Segment(strategy=names[one], **days), Segment(strategy=names[other], **days)
        drawn.append(DrawnPair(segments, (first, second)))
    return drawn


def pair_generator(seed: int) -> np.random.Generator:
    """The generator that draws the pairs of a seed, and a judge's answers to them after."""
    return np.random.default_rng(np.random.SeedSequence([PURPOSE, seed]))


def judge_pairs(market: SegmentMarket, judge: Judge, count: int, config: JudgeConfig, seed: int) -> JudgedPairs:
    """Draw pairs of segments and a judge's answers to them; errors as of `draw_pairs`."""
    generator = pair_generator(seed)
    drawn = draw_pairs(market, count, config, generator)
    opinions = judge([pair.paths for pair in drawn])
    first_better = generator.random(count) < opinions.chance
    pairs = [
        Pair(
            first=pair.segments[0],
            second=pair.segments[1],
            better="tie" if tie else "first" if first else "second",
            chance=0.5 if tie else float(chance),
        )
        for pair, tie, first, chance in zip(drawn, opinions.tie, first_better, opinions.chance, strict=True)
    ]
    return JudgedPairs(tuple(pairs), opinions)
