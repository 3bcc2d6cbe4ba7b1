"""The configuration schema: its root, the table of all keys, and the allowed values of a key in words.

Frozen pydantic models, one a section, in the files beside this one; help texts, error messages and documentation are
derived from their fields. Rates of return are simple and per year where the name says "rate", per bar otherwise; costs
are in basis points of the traded value; an episode is `env.episode_length` decisions of one portfolio; an update is one
gradient update.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import model_validator
from pydantic.fields import FieldInfo

from finflow.config.evaluation_sections import EvaluationConfig, PreferencesConfig, TradingConfig, TuneConfig
from finflow.config.learning_sections import (
    ON_POLICY,
    ActingConfig,
    BCellConfig,
    GuardConfig,
    OfflineConfig,
    OnlineConfig,
    OutOfFoldConfig,
    TrainConfig,
)
from finflow.config.market_sections import EnvConfig, FeaturesConfig, MarketConfig, ObjectivesConfig
from finflow.config.section_types import ConfigSection, FilePath, key


class OutputConfig(ConfigSection):
    """Folders of files, and where curves go; affects no result."""

    logs_dir: FilePath = key(Path("logs"), "folder that holds the run folders")
    offline_dir: FilePath = key(Path("data/offline"), "folder of collected offline datasets")
    readings: FilePath | None = key(None, "log of test evaluations; left out: readings.jsonl in logs_dir")
    log_with: Literal["tensorboard", "wandb"] = key("tensorboard", "where curves go; wandb: to Weights & Biases too")


class Config(ConfigSection):
    """A complete configuration; `Config()` is the default one."""

    market: MarketConfig = key(MarketConfig(), "prices and their split")
    features: FeaturesConfig = key(FeaturesConfig(), "features beside the standard ones")
    env: EnvConfig = key(EnvConfig(), "execution, costs and constraints")
    objectives: ObjectivesConfig = key(ObjectivesConfig(), "the reward")
    train: TrainConfig = key(TrainConfig(), "length and schedule of learning")
    offline: OfflineConfig = key(OfflineConfig(), "the offline phase")
    online: OnlineConfig = key(OnlineConfig(), "the online phase")
    out_of_fold: OutOfFoldConfig = key(OutOfFoldConfig(), "evidence from held-out blocks of the training years")
    bcell: BCellConfig = key(BCellConfig(), "the agent")
    acting: ActingConfig = key(ActingConfig(), "the portfolio that a trained agent decides on")
    guard: GuardConfig = key(GuardConfig(), "safety of learning")
    evaluation: EvaluationConfig = key(EvaluationConfig(), "evaluation")
    tune: TuneConfig = key(TuneConfig(), "search for better values")
    preferences: PreferencesConfig = key(PreferencesConfig(), "pairs of segments, and the reward model")
    trading: TradingConfig = key(TradingConfig(), "decisions of today, paper trading, and retraining")
    output: OutputConfig = key(OutputConfig(), "files")

    @property
    def fold_epochs(self) -> int:
        """Epochs of offline learning without a block: no more than of the agent's own pretraining."""
        happens = self.online.algorithm == "sac" and self.out_of_fold.blocks > 1
        return min(self.out_of_fold.pretraining_epochs, self.offline_epochs) if happens else 0

    @property
    def offline_epochs(self) -> int:
        """Epochs of the offline phase; without a method one, which fits the critics of ``sac``."""
        epochs = self.train.offline_training_epochs
        return epochs if self.offline.method != "none" else 0 if self.online.on_policy else min(epochs, 1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.train.target_entropy_schedule.enabled and self.bcell.alpha_mode != "auto":
            raise ValueError(
                f"bcell.alpha_mode = {self.bcell.alpha_mode} has no target entropy: "
                "train.target_entropy_schedule.enabled belongs to bcell.alpha_mode = auto"
            )
        if self.bcell.risk_measure != "neutral" and self.train.reward_normalization.enabled:
            raise ValueError(
                f"bcell.risk_measure = {self.bcell.risk_measure} needs rewards in units that stay: "
                "train.reward_normalization.enabled must be false"
            )
        if self.bcell.risk_measure != "neutral" and self.online.on_policy:
            raise ValueError(
                f"bcell.risk_measure = {self.bcell.risk_measure} needs online.algorithm = sac: "
                f"{self.online.algorithm} maximises the mean"
            )
        if self.objectives.preference.paid == "segment":
            if self.objectives.reward != "preference":
                raise ValueError("objectives.preference.paid = segment needs objectives.reward = preference")
            if not self.online.on_policy:
                listed = ", ".join(ON_POLICY)
                raise ValueError(f"objectives.preference.paid = segment needs online.algorithm = {listed}")
        return self


def _walk(section: type[ConfigSection], prefix: str = "") -> Iterator[tuple[str, FieldInfo, bool]]:
    """Yield (dotted name, field, whether it is a section) of everything in a section."""
    for name, info in section.model_fields.items():
        inner = info.annotation
        nested = inner if isinstance(inner, type) and issubclass(inner, ConfigSection) else None
        yield prefix + name, info, nested is not None
        if nested is not None:
            nested.place = f"{prefix}{name}."
            yield from _walk(nested, nested.place)


KEYS: dict[str, FieldInfo] = {key: info for key, info, nested in _walk(Config) if not nested}
"""Dotted key -> field, in the order of the schema."""
SECTIONS: frozenset[str] = frozenset(key for key, _, nested in _walk(Config) if nested)
"""Dotted names of sections."""

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a name",
    tuple: "a list of names",
    ConfigSection: "a list of mappings",
    Path: "a path",
    dt.date: "a date such as 2011-12-31",
    dict: "a mapping of keys to {low, high, log, step} or {choices}",
}
_LIMITS = (("gt", "above"), ("ge", "of at least"), ("lt", "below"), ("le", "of at most"))


def describe_schema() -> list[tuple[str, str, object, str]]:
    """List every key as (dotted key, allowed values, default, description), in the order of the schema."""
    return [
        (key, allowed_values(key), info.get_default(call_default_factory=True), info.description or "")
        for key, info in KEYS.items()
    ]


def holds_whole_numbers(key: str) -> bool:
    """Return whether a key takes whole numbers only."""
    types = types_of(key)
    return int in types and float not in types


def holds_text(key: str) -> bool:
    """Return whether a key takes text, alone or in a list, and no numbers."""
    types = types_of(key)
    return not {str, tuple, Path}.isdisjoint(types) and {int, float}.isdisjoint(types)


def types_of(key: str) -> list[Any]:
    """List the types that a key may hold, and the literal values where it is one of a few."""
    return _types(KEYS[key].annotation)


def allowed_values(key: str) -> str:
    """Describe the values that a key may hold."""
    types = types_of(key)
    choices = [str(kind) for kind in types if isinstance(kind, str | int)]
    words = ["one of " + ", ".join(choices)] if choices else []
    bounds = _bounds([*KEYS[key].metadata, *_metadata(KEYS[key].annotation)])
    words += [_WORDS[kind] + (bounds if kind in (int, float) else "") for kind in types if kind in _WORDS]
    return " or ".join(words + (["null"] if type(None) in types else []))


def _types(annotation: Any) -> list[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _types(get_args(annotation)[0])
    if origin is Literal:
        return list(get_args(annotation))
    if origin in (Union, UnionType):
        return [kind for part in get_args(annotation) for kind in _types(part)]
    first = next(iter(get_args(annotation)), None)
    if origin is tuple and isinstance(first, type) and issubclass(first, ConfigSection):
        return [ConfigSection]
    return [origin or annotation]


def _metadata(annotation: Any) -> Iterator[Any]:
    """Yield the annotations of the parts of a type, such as the bounds of the number in "a number or a path"."""
    origin = get_origin(annotation)
    if origin is Annotated:
        for note in annotation.__metadata__:
            yield from note.metadata if isinstance(note, FieldInfo) else (note,)
    elif origin in (Union, UnionType):
        for part in get_args(annotation):
            yield from _metadata(part)


def _bounds(metadata: list[Any]) -> str:
    words = [
        f"{phrase} {limit}"
        for note in metadata
        for name, phrase in _LIMITS
        if (limit := getattr(note, name, None)) is not None
    ]
    return "".join(f" {word}" if not n else f" and {word.removeprefix('of ')}" for n, word in enumerate(words))
