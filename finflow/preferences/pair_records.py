"""Pairs of segments as files hold them: two stretches of a strategy's days, and which of them is preferred."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Better = Literal["first", "second", "tie"]


class _Record(BaseModel):
    """Base of records: immutable, without unknown names, NaN or infinities."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)


class Segment(_Record):
    """Consecutive holding periods of a strategy.

    Attributes
    ----------
    strategy : str
        Name of a strategy, or its import path.
    start, end : date
        First and last day on which one of its holding periods ends, as the dates of a backtest's returns.
    run : str or None
        Folder of the run whose stored backtest it is of; None where the strategy is played on the configured market.
    """

    strategy: str = Field(min_length=1)
    start: dt.date
    end: dt.date
    run: str | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.end < self.start:
            raise ValueError(f"the segment ends on {self.end}, before it starts on {self.start}")
        return self

    @property
    def source(self) -> tuple[str | None, str]:
        """Run and strategy, by which segments share a path."""
        return self.run, self.strategy

    def __str__(self) -> str:
        of = "" if self.run is None else f" of {self.run}"
        return f"{self.strategy}{of} from {self.start} to {self.end}"


class Pair(_Record):
    """Two segments, and which is better.

    Attributes
    ----------
    first, second : Segment
    better : {"first", "second", "tie"}
    chance : float or None
        Probability with which the judge says "first", where it is known: of a synthetic judge.
    """

    first: Segment
    second: Segment
    better: Better
    chance: float | None = Field(None, ge=0.0, le=1.0)

    @model_validator(mode="after")
    def _different(self) -> Self:
        if self.first == self.second:
            raise ValueError(f"both segments are the same, {self.first}")
        return self

    @property
    def target(self) -> float:
        """Share of the preference that goes to the first: 1, 0, or a half of a tie."""
        return {"first": 1.0, "second": 0.0, "tie": 0.5}[self.better]


def count_contradictions(pairs: Sequence[Pair]) -> int:
    """Number of pairs of segments with different answers, whichever of the two is named first."""
    answers: dict[frozenset[Segment], set[Segment | None]] = {}
    for pair in pairs:
        chosen = {"first": pair.first, "second": pair.second, "tie": None}[pair.better]
        answers.setdefault(frozenset((pair.first, pair.second)), set()).add(chosen)
    return sum(len(found) > 1 for found in answers.values())
