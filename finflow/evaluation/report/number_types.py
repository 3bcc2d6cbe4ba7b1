"""Types of the numbers in `metrics.json` that every report has: metrics, verdict and tests.

Numbers are fractions, not percent, and None (null) where they are undefined. `json_schemas.py` has the types of the
sections, and makes the schemas.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.fields import FieldInfo
from typing_extensions import TypedDict


def about(description: str) -> FieldInfo:
    """A description, for the schema."""
    field: FieldInfo = Field(description=description)
    return field


Number = float | None
Numbers = dict[str, Number]
Share = Annotated[float, Field(ge=0.0, le=1.0)] | None
Interval = Annotated[list[float], Field(min_length=2, max_length=2)] | None
Answer = Literal["yes", "no", "not shown"]

Sharpe = Annotated[Number, about("Mean over standard deviation of daily returns in excess of cash, times sqrt(252).")]
Return = Annotated[Number, about("Geometric mean of the net daily returns, a fraction a year; -1 after ruin.")]
Volatility = Annotated[
    Annotated[float, Field(ge=0.0)] | None, about("Standard deviation of daily returns times sqrt(252).")
]
Drawdown = Annotated[
    Annotated[float, Field(ge=-1.0, le=0.0)] | None, about("Deepest fall below the highest value so far, a fraction.")
]
Turnover = Annotated[
    Annotated[float, Field(ge=0.0)] | None, about("Times a year that the whole portfolio is replaced.")
]
Cost = Annotated[Number, about("Trading costs a year, as a fraction of wealth.")]
Lead = Annotated[Number, about("Sharpe ratio less that of equal weight on the same days.")]
Probability = Annotated[Share, about("Estimated probability.")]
Low = Annotated[Number, about("Lower end of its bootstrap interval; null where there is none.")]
High = Annotated[Number, about("Upper end of its bootstrap interval; null where there is none.")]
Gate = Annotated[Numbers, about("By expert, its share in the aim.")]


class Ends(TypedDict):
    """Low and high end of an interval; null where there is none."""

    low: Annotated[Number, about("Low end.")]
    high: Annotated[Number, about("High end.")]


class Metrics(TypedDict):
    """Metrics of one series of daily net returns."""

    annual_return: Return
    annual_volatility: Volatility
    sharpe: Sharpe
    sortino: Annotated[Number, about("As the Sharpe ratio, over the root mean square of the days below cash.")]
    calmar: Annotated[Number, about("Return a year over the depth of the maximum drawdown.")]
    max_drawdown: Drawdown
    cvar: Annotated[Number, about("Mean of the worst cvar_alpha share of daily returns.")]
    annual_turnover: Turnover
    annual_cost: Cost


Metric = Literal[
    "annual_return",
    "annual_volatility",
    "sharpe",
    "sortino",
    "calmar",
    "max_drawdown",
    "cvar",
    "annual_turnover",
    "annual_cost",
]


class Strategy(Metrics):
    """One strategy: its metrics, track record against cash and bootstrap intervals."""

    psr: Annotated[Share, about("Probabilistic Sharpe ratio: confidence that the true ratio over cash is above zero.")]
    minimum_track_record: Annotated[
        Number, about("Days needed to be 95 % confident of that; null where none would do.")
    ]
    intervals: Annotated[dict[Metric, Interval], about("By metric, low and high end of its bootstrap interval.")]


class Difference(TypedDict):
    """Sharpe ratio of the judged strategy less that of equal weight, paired."""

    finding: Annotated[Literal["ahead", "behind", "not shown", "not compared"], about("By the interval alone.")]
    sharpe_difference: Annotated[Number, about("The difference, a year.")]
    interval: Annotated[Interval, about("Of the difference, at bootstrap.confidence.")]
    share_ahead: Annotated[Number, about("Share of the resamples in which it is ahead.")]


class Bootstrap(TypedDict):
    """Settings of the stationary bootstrap."""

    block_length: Annotated[int, about("Mean block, days.")]
    confidence: Annotated[Number, about("Coverage of the intervals.")]
    samples: Annotated[int, about("Resamples.")]
    seed: Annotated[int, about("Of the draws.")]


class Window(TypedDict):
    """The days judged."""

    start: Annotated[str, about("End of the first holding period.")]
    end: Annotated[str, about("End of the last.")]
    days: Annotated[int, about("Holding periods.")]


class Reason(TypedDict):
    """One test of the verdict."""

    said: Annotated[str, about("Result, in words.")]
    enough: Annotated[bool, about("Enough for a yes.")]


class Superiority(TypedDict):
    """Hansen's test of superior predictive ability."""

    p_lower: Annotated[Number, about("p-value, lower.")]
    p_consistent: Annotated[Number, about("p-value, consistent: the one that decides.")]
    p_upper: Annotated[Number, about("p-value, upper.")]
    strategies: Annotated[int, about("Strategies tested together.")]


class TriesCounted(TypedDict):
    """Tries that deflate the Sharpe ratio."""

    total: Annotated[int, about("Number of tries.")]
    configurations: Annotated[int, about("Configurations that the judged one was chosen among.")]
    readings_before: Annotated[int, about("Other strategies or agents that have read this test window.")]
    sharpe_deviation: Annotated[Number, about("Standard deviation of the tries' Sharpe ratios, a year.")]


class Verdict(TypedDict):
    """Verdict on the judged strategy against equal weight, with the tests behind it."""

    beats_equal_weight: Annotated[Answer, about("The answer.")]
    reasons: Annotated[list[Reason], about("The tests, one each.")]
    confidence: Annotated[Number, about("Level that the DSR has to reach and the interval has.")]
    size: Annotated[Number, about("Level that the p-value of SPA has to stay under.")]
    active_sharpe: Annotated[Number, about("Sharpe ratio, a year, of the daily return over equal weight.")]
    skewness: Annotated[Number, about("Of that return.")]
    kurtosis: Annotated[Number, about("Of that return; 3 for a normal one.")]
    days: Annotated[int | None, about("Days of the track record.")]
    psr: Annotated[Number, about("Probabilistic Sharpe ratio of that return, against zero.")]
    dsr: Annotated[
        Number, about("Deflated Sharpe ratio: PSR against the best ratio that luck would show in the tries.")
    ]
    expected_maximum: Annotated[Number, about("That best ratio, a year.")]
    minimum_track_record: Annotated[Number, about("Days needed to be 95 % sure that active_sharpe is above zero.")]
    sharpe_difference_interval: Annotated[Interval, about("Of the paired difference, at the verdict's level.")]
    spa: Annotated[Superiority | None, about("SPA test; null where it cannot be made.")]
    tries: Annotated[TriesCounted, about("Tries that deflate.")]


class StepM(TypedDict):
    """Romano and Wolf's stepwise test of all strategies together."""

    size: Annotated[Number, about("Level.")]
    superior: Annotated[list[str], about("Found better than equal weight.")]


class Histogram(TypedDict):
    """Histogram of the logits of the rank out of sample."""

    edges: Annotated[list[float], about("Of the bins.")]
    shares: Annotated[list[float], about("Share of the cuts in each bin.")]


class Overfitting(TypedDict):
    """Overfitting of a choice by Sharpe ratio, by CSCV."""

    pbo: Annotated[Share, about("Probability of backtest overfitting.")]
    probability_of_loss: Annotated[Number, about("Share of the cuts in which the choice lost out of sample.")]
    slope: Annotated[Number, about("Of out-of-sample on in-sample Sharpe ratios of the choice.")]
    blocks: Annotated[int, about("Blocks that the days are cut into.")]
    choices: Annotated[int, about("Cuts into halves.")]
    days: Annotated[int, about("Days used.")]
    among: Annotated[list[str], about("Names of what was chosen among.")]
    histogram: Annotated[Histogram, about("Of the logits of the rank out of sample.")]
