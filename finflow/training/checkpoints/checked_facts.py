"""Facts of checkpoints, checked.

A SHA-256 tells that a file is as it was written, not that it was finflow that wrote it: so every fact that the rest of
the program reads is typed and bounded here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from finflow.config import LENSES
from finflow.errors import CheckpointError

Facts = dict[str, Any]
Count = Annotated[int, Field(ge=0, le=10**12)]
Text = Annotated[str, Field(max_length=200)]


class _Checked(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Counters(_Checked):
    phase: Literal["offline", "online"]
    update: Count
    phase_update: Count
    vector_step: Count
    best_score: float | None
    best_update: Count | None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.phase_update > self.update or (self.best_update or 0) > self.update:
            raise ValueError("they count more updates than there were")
        if (self.best_score is None) != (self.best_update is None):
            raise ValueError("the best score and its update belong together")
        return self


class _Training(_Checked):
    counters: _Counters


class _Shape(_Checked):
    n_asset_features: Annotated[int, Field(ge=1, le=10_000)]
    n_market_features: Annotated[int, Field(ge=1, le=10_000)]
    hidden: Annotated[int, Field(ge=1, le=8192)]
    lenses: Annotated[list[list[Count]], Field(min_length=len(LENSES), max_length=len(LENSES))]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if any(not lens or max(lens) >= self.n_asset_features for lens in self.lenses):
            raise ValueError("a lens reads features that there are not")
        return self


class _Features(_Checked):
    assets: list[Text]
    market: list[Text]


class _Log(_Checked):
    metrics: Count = Field(alias="metrics.jsonl", default=0)
    events: Count = Field(alias="events.jsonl", default=0)
    step: Annotated[int, Field(ge=-1, le=10**12)] = -1


class _Facts(_Checked):
    training: _Training
    config: Annotated[str, Field(max_length=100_000)]
    config_hash: Text
    market: Text
    shape: _Shape
    features: _Features | None = None
    log: _Log
    runtime: dict[Text, Text]


def checked_facts(path: Path, facts: Facts) -> Facts:
    """A checkpoint's facts, each of its type and within its bounds.

    Raises CheckpointError if they are not those of a training.
    """
    missing = [name for name in ("training", "config", "shape", "market", "log") if name not in facts]
    if missing:
        raise CheckpointError(
            f"{path} is not a checkpoint of a training, it has no {missing[0]}; give a run folder or a file in its "
            "models folder"
        )
    try:
        _Facts.model_validate(facts)
    except (ValidationError, RecursionError) as error:
        why = "RecursionError"
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])[:80]
            why = f"{place or 'it'}: {first['msg']}"
        short = " ".join(why.split())[:160]
        advice = "use another checkpoint of the run"
        raise CheckpointError(f"{path} is not a checkpoint of finflow ({short}); {advice}") from None
    return facts
