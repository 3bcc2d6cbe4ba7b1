"""Pairs that a judge makes of a market: segments of strategies over the same days, compared."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from finflow.config.preferences_section import JudgeConfig
from finflow.errors import FinflowError
from finflow.preferences.judges import Judge, Opinions
from finflow.preferences.pair_records import Better, Pair, Segment
from finflow.preferences.path_sources import SegmentMarket, play_strategies
from finflow.preferences.portfolio_path import PortfolioPath
from finflow.preferences.random_portfolios import PREFIX

PURPOSE = 92  # of the generator that draws segments and answers


class JudgedPairs(NamedTuple):
    """Pairs with the answers of a judge.

    Attributes
    ----------
    pairs : tuple of Pair
    opinions : Opinions
        From which the answers were drawn.
    """

    pairs: tuple[Pair, ...]
    opinions: Opinions

    def lines(self) -> list[str]:
        """The pairs in words."""
        ties = sum(pair.better == "tie" for pair in self.pairs)
        return [
            f"{len(self.pairs):,} pairs, {ties:,} ties; attainable accuracy {self.opinions.attainable:.3f}: of the "
            "answer that the judge gives more often"
        ]


def judge_pairs(market: SegmentMarket, judge: Judge, count: int, config: JudgeConfig, seed: int) -> JudgedPairs:
    """Draw pairs of segments, two strategies over the same days, and ask a judge.

    Parameters
    ----------
    market : SegmentMarket
    judge : Judge
    count : int
        Number of pairs.
    config : JudgeConfig
        Strategies, and length of a segment.
    seed : int

    Returns
    -------
    JudgedPairs

    Raises
    ------
    FinflowError
        If the window is shorter than a segment, or a strategy is unknown.
    """
    random = [f"{PREFIX}{number}" for number in range(config.random)]
    names = list(dict.fromkeys([*config.strategies, *random]))
    steps = len(market.process.decision_bars(market.window))
    if steps < config.length:
        raise FinflowError(
            f"the training window has {steps} holding periods, fewer than preferences.judge.length = {config.length}"
        )
    paths = play_strategies(market, names)
    rng = np.random.default_rng(np.random.SeedSequence([PURPOSE, seed]))
    starts = rng.integers(steps - config.length + 1, size=count)
    ones = rng.integers(len(names), size=count)
    others = (ones + rng.integers(1, len(names), size=count)) % len(names)
    sides = [[paths[names[place]] for place in places] for places in (ones, others)]
    firsts, seconds = (
        [path.rows(int(start), int(start) + config.length) for path, start in zip(side, starts, strict=True)]
        for side in sides
    )
    opinions = judge.opinions(firsts, seconds)
    said = rng.random(count) < opinions.chance
    pairs = [
        _pair((names[one], first), (names[other], second), _answer(bool(tie), bool(yes)), float(chance))
        for one, other, first, second, tie, yes, chance in zip(
            ones, others, firsts, seconds, opinions.tie, said, opinions.chance, strict=True
        )
    ]
    return JudgedPairs(tuple(pairs), opinions)


def _answer(tie: bool, first: bool) -> Better:
    if tie:
        return "tie"
    return "first" if first else "second"


def _pair(first: tuple[str, PortfolioPath], second: tuple[str, PortfolioPath], better: Better, chance: float) -> Pair:
    return Pair(
        first=_segment(*first), second=_segment(*second), better=better, chance=0.5 if better == "tie" else chance
    )


def _segment(name: str, path: PortfolioPath) -> Segment:
    return Segment(strategy=name, start=path.dates[0].astype(object), end=path.dates[-1].astype(object))
