"""Judges of segments: utilities with noise, whose truth is known, and ordered rules.

References
----------
Bradley and Terry (1952), Rank Analysis of Incomplete Block Designs. Lee et al. (2021), B-Pref, for judges that err at a
known rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from finflow.config.evaluation_sections import RULE, JudgeConfig
from finflow.errors import refuse
from finflow.evaluation.statistics.metrics import max_drawdown
from finflow.preferences.pairs import RANDOM, Pair, PairFile, PortfolioPath, Segment, SegmentMarket, simulate_strategies

Utility = Callable[[PortfolioPath], float]
RISK_AVERSION = 5.0  # of the mean-variance utility
SHALLOWEST = 0.01
"""Least drawdown in the Calmar utility: below it the ratio would depend on rounding alone."""


Judge = Callable[[PortfolioPath, PortfolioPath], float]
"""Probability that the first of two paths is called the better one; 0.5 where neither is, a tie."""


def synthetic_judge(utility: Utility, mistakes: float = 0.0) -> Judge:
    """Judge with a known utility, by which its answers are drawn, a share of them reversed; equal ones are a tie."""

    def chance(first: PortfolioPath, second: PortfolioPath) -> float:
        lead = utility(first) - utility(second)
        return 0.5 if lead == 0.0 else 1.0 - mistakes if lead > 0.0 else mistakes

    return chance


def rule_judge(rules: Sequence[str], bars_per_year: int) -> Judge:
    """Judge by ordered rules, as ``drawdown <= 0.2``: the first that one segment alone keeps decides, else a tie."""
    parsed = [found.groups() for rule in rules if (found := RULE.fullmatch(rule.strip()))]

    def kept(path: PortfolioPath) -> list[bool]:
        measures = path_measures(path, bars_per_year)
        return [
            measures[name] <= float(limit) if sign == "<=" else measures[name] >= float(limit)
            for name, sign, limit in parsed
        ]

    def chance(first: PortfolioPath, second: PortfolioPath) -> float:
        return next((float(one) for one, other in zip(kept(first), kept(second), strict=True) if one != other), 0.5)

    return chance


def path_measures(path: PortfolioPath, bars_per_year: int) -> dict[str, float]:
    """Measures of a segment that rules name: ``turnover`` and ``volatility`` a year, ``loss`` of the worst bar."""
    return {
        "drawdown": -float(max_drawdown(path.returns)),
        "turnover": float(path.turnover.mean()) * bars_per_year,
        "volatility": float(path.returns.std(ddof=1)) * bars_per_year**0.5 if len(path) > 1 else 0.0,
        "return": float(np.prod(1.0 + path.returns)) - 1.0,
        "loss": max(0.0, -float(path.returns.min())),
    }


def mean_variance(path: PortfolioPath) -> float:
    """Mean of the simple returns less half the risk aversion times their variance (1 / n), per bar."""
    return float(path.returns.mean() - 0.5 * RISK_AVERSION * path.returns.var())


def log_growth(path: PortfolioPath) -> float:
    """Log of the growth of wealth over the segment."""
    return float(np.log1p(np.maximum(path.returns, -1.0 + 1e-12)).sum())


def segment_calmar(path: PortfolioPath) -> float:
    """Log growth of the segment over its maximum drawdown, of which `SHALLOWEST` counts at least."""
    return log_growth(path) / max(-float(max_drawdown(path.returns)), SHALLOWEST)


def make_judge(name: str, config: JudgeConfig, bars_per_year: int) -> Judge:
    """Make a judge by its name: mean-variance, calmar, log-growth or rules."""
    if name == "rules":
        return rule_judge(config.rules, bars_per_year)
    utilities: dict[str, Utility] = {"mean-variance": mean_variance, "calmar": segment_calmar, "log-growth": log_growth}
    return synthetic_judge(utilities[name], config.mistakes)


PURPOSE, SIDES = 92, 94  # of the generators that draw segments and answers, and the sides of a page
PAIRS = 2000
"""Pairs that a judge compares where no number is given."""


Choice = Literal["left", "tie", "right"]


class DrawnPair(NamedTuple):
    """Two segments that nobody has compared yet, and their paths; ``turned``: a page shows the second on the left."""

    segments: tuple[Segment, Segment]
    paths: tuple[PortfolioPath, PortfolioPath]
    turned: bool = False

    @property
    def shown(self) -> tuple[PortfolioPath, PortfolioPath]:
        """Paths on the left and on the right."""
        first, second = self.paths
        return (second, first) if self.turned else (first, second)

    def answered(self, choice: Choice) -> Pair:
        left, right = ("second", "first") if self.turned else ("first", "second")
        better = {"left": left, "tie": "tie", "right": right}[choice]
        return Pair.model_validate({"first": self.segments[0], "second": self.segments[1], "better": better})


def draw_pairs(market: SegmentMarket, count: int, generator: np.random.Generator) -> list[DrawnPair]:
    """Draw pairs of segments, of two strategies over the same days.

    Raises FinflowError if the window is shorter than a segment, or a strategy is unknown.
    """
    judge, length = market.config.preferences.judge, market.config.objectives.preference.segment
    names = list(dict.fromkeys([*judge.strategies, *(f"{RANDOM}{number}" for number in range(judge.random))]))
    steps = len(market.process.decision_bars(market.window))
    refuse(
        steps < length,
        f"the training window has {steps} holding periods, fewer than objectives.preference.segment = {length}",
    )
    paths = simulate_strategies(market, names)
    starts = generator.integers(steps - length + 1, size=count)
    ones = generator.integers(len(names), size=count)
    others = (ones + generator.integers(1, len(names), size=count)) % len(names)
    drawn = []
    for start, one, other in zip(starts, ones, others, strict=True):
        first, second = (paths[names[place]].rows(int(start), int(start) + length) for place in (one, other))
        days = {"start": first.dates[0].astype(object), "end": first.dates[-1].astype(object)}
        segments = Segment(strategy=names[one], **days), Segment(strategy=names[other], **days)
        drawn.append(DrawnPair(segments, (first, second)))
    return drawn


def pair_generator(seed: int) -> np.random.Generator:
    """The generator that draws the pairs of a seed, and a judge's answers to them after."""
    return np.random.default_rng(np.random.SeedSequence([PURPOSE, seed]))


def judge_pairs(market: SegmentMarket, judge: Judge, count: int, seed: int) -> PairFile:
    """Draw pairs of segments, and a judge's answers to them by their chances; errors as of `draw_pairs`."""
    generator = pair_generator(seed)
    drawn = draw_pairs(market, count, generator)
    chances = [judge(*pair.paths) for pair in drawn]
    answers = np.where(generator.random(count) < chances, "first", "second").tolist()
    pairs = [
        Pair(first=pair.segments[0], second=pair.segments[1], better="tie" if chance == 0.5 else answer, chance=chance)
        for pair, answer, chance in zip(drawn, answers, chances, strict=True)
    ]
    return PairFile(tuple(pairs), ("the judge",) * count)


def make_questions(market: SegmentMarket, count: int, seed: int) -> tuple[DrawnPair, ...]:
    """Draw questions: the first of the pairs that a judge is given by the same seed, none of them twice.

    At least `PAIRS` pairs are drawn, so that a larger number of questions goes on after those of a smaller one. There
    are fewer than ``count`` where the market has not as many pairs. Errors as of `draw_pairs`.
    """
    different: dict[frozenset[Segment], DrawnPair] = {}
    for pair in draw_pairs(market, max(count, PAIRS), pair_generator(seed)):
        different.setdefault(frozenset(pair.segments), pair)
    kept = list(different.values())[:count]
    turned = np.random.default_rng(np.random.SeedSequence([SIDES, seed])).random(len(kept)) < 0.5
    return tuple(pair._replace(turned=bool(side)) for pair, side in zip(kept, turned, strict=True))
