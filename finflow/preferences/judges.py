"""Judges of segments: utilities with noise, whose truth is known, and ordered rules.

References
----------
Bradley and Terry (1952), Rank Analysis of Incomplete Block Designs. Lee et al. (2021), B-Pref, for judges that err at a
known rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from finflow.config.preferences_section import RULE, JudgeConfig
from finflow.evaluation.statistics.metrics import max_drawdown
from finflow.preferences.segment_paths import PortfolioPath

FloatArray = NDArray[np.float64]
Utility = Callable[[PortfolioPath], float]
RISK_AVERSION = 5.0
"""Of the mean-variance utility."""
SHALLOWEST = 0.01
"""Least drawdown in the Calmar utility: below it the ratio would depend on rounding alone."""


class JudgeOpinions(NamedTuple):
    """Opinions on pairs: the probability (pairs,) of the answer "first", and True where the judge prefers neither."""

    chance: FloatArray
    tie: NDArray[np.bool_]

    @property
    def attainable(self) -> float:
        """Expected accuracy of the best answers, over the pairs that are no ties; 0.5 where all are."""
        decided = self.chance[~self.tie]
        return float(np.maximum(decided, 1.0 - decided).mean()) if len(decided) else 0.5


class Judge(Protocol):
    """Compares pairs of segments."""

    def opinions(self, firsts: Sequence[PortfolioPath], seconds: Sequence[PortfolioPath]) -> JudgeOpinions:
        """Opinions on pairs."""
        ...


class SyntheticJudge:
    """Judge with a known utility of a segment, more being better, by which its answers are drawn.

    A share is reversed.
    """

    def __init__(self, utility: Utility, mistakes: float = 0.0) -> None:
        self.utility, self.mistakes = utility, mistakes

    def opinions(self, firsts: Sequence[PortfolioPath], seconds: Sequence[PortfolioPath]) -> JudgeOpinions:
        """Opinions on pairs; equal utilities are a tie."""
        lead = np.array([self.utility(one) - self.utility(other) for one, other in zip(firsts, seconds, strict=True)])
        return JudgeOpinions(np.where(lead > 0.0, 1.0 - self.mistakes, self.mistakes), lead == 0.0)


class RuleJudge:
    """Judge by ordered rules, as ``drawdown <= 0.2``: the first that one segment alone keeps decides, else a tie."""

    def __init__(self, rules: Sequence[str], bars_per_year: int) -> None:
        self.bars_per_year = bars_per_year
        matches = [RULE.fullmatch(rule.strip()) for rule in rules]
        self.rules = [(match[1], match[2], float(match[3])) for match in matches if match is not None]
        if len(self.rules) != len(rules):
            raise ValueError("a rule is MEASURE <= X or MEASURE >= X")

    def kept(self, path: PortfolioPath) -> list[bool]:
        """For each rule, whether a segment keeps it."""
        measures = measure(path, self.bars_per_year)
        return [
            measures[name] <= limit if sign == "<=" else measures[name] >= limit for name, sign, limit in self.rules
        ]

    def opinions(self, firsts: Sequence[PortfolioPath], seconds: Sequence[PortfolioPath]) -> JudgeOpinions:
        """Opinions on pairs: certain, or a tie."""
        chance, tie = np.full(len(firsts), 0.5), np.ones(len(firsts), dtype=np.bool_)
        for row, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
            rules = zip(self.kept(first), self.kept(second), strict=True)
            decided = next((one for one, other in rules if one != other), None)
            if decided is not None:
                chance[row], tie[row] = float(decided), False
        return JudgeOpinions(chance, tie)


def measure(path: PortfolioPath, bars_per_year: int) -> dict[str, float]:
    """Measures of a segment that rules name.

    ``drawdown``, the deepest, 0 or more; ``turnover`` and ``volatility`` a year; ``return`` of the whole segment;
    ``loss`` of the worst bar.
    """
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


UTILITIES: dict[str, Utility] = {
    "mean-variance": mean_variance,
    "calmar": segment_calmar,
    "log-growth": log_growth,
}
"""Name of a synthetic judge -> its utility."""


def make_judge(name: str, config: JudgeConfig, bars_per_year: int) -> Judge:
    """Make a judge by its name, a key of `UTILITIES`, or `rules`."""
    if name == "rules":
        return RuleJudge(config.rules, bars_per_year)
    return SyntheticJudge(UTILITIES[name], config.mistakes)
