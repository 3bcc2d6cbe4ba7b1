"""Checkpoints read back: verified, with their configuration, their features and their agent; and their inspection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from finflow.agent.learners.bcell import LEARNER, PREFIX, SavedAgent
from finflow.agent.networks.decision import Blend, describe_holding
from finflow.config import LENSES, Config, config_hash, describe_schema, flatten, load_config
from finflow.config.yaml_text import parse_file, parse_scalar
from finflow.errors import CheckpointError, ConfigError, refuse
from finflow.guard.checkpoint_folder import BEST, LATEST, PRETRAINED, SEPARATOR, SUFFIX
from finflow.market.features.feature_set import Features
from finflow.tensor_file import VERSION, read_tensors
from finflow.training.checkpoints.run_folder import CONFIG, STUDY, Kind, resolve_run, run_folder_of

OFFLINE, ONLINE = "offline", "online"  # phases of a training, as checkpoints and logs name them
FREE_SECTIONS = ("market.", "env.", "acting.", "evaluation.", "trading.", "output.", "train.device", "train.threads")
"""Keys that an evaluation may change."""
PREFERENCES = "preferences"
"""Fact of the file of an agent that learned from preferences: what it learned from."""


Count = Annotated[int, Field(ge=0, le=10**12)]
Text = Annotated[str, Field(max_length=200)]


class _Checked(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Counters(_Checked):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    phase: Literal["offline", "online"]
    update: Count
    phase_update: Count
    vector_step: Count
    best_score: float | None
    best_update: Count | None
    running: dict[str, float]

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
            raise ValueError("an expert reads features that there are not")
        return self


class _Features(_Checked):
    assets: list[Text]
    market: list[Text]


class _Facts(_Checked):
    training: _Training
    config: Annotated[str, Field(max_length=100_000)]
    config_hash: Text
    market: Text
    shape: _Shape
    features: _Features | None = None
    log: dict[Text, Annotated[int, Field(ge=-1, le=10**12)]]
    runtime: dict[Text, Text]


class Checkpoint(NamedTuple):
    """A checkpoint that was read and verified.

    ``facts``: ``training``, ``config``, ``config_hash``, ``market``, ``shape``, ``features``, ``log``, ``runtime``; in
    the present format, whichever the file has.
    """

    path: Path
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    warning: str | None = None

    @property
    def run_folder(self) -> Path:
        return run_folder_of(self.path)

    @property
    def agent(self) -> SavedAgent:
        return SavedAgent.of(self.path, self.tensors, self.facts)

    @property
    def counters(self) -> dict[str, Any]:
        """Counters of the training: phase, updates, steps, and the best score so far."""
        return dict(self.facts["training"]["counters"])


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint file, or the latest whole one of a run folder.

    Raises CheckpointError if it is damaged, of a newer format, no checkpoint of a training, or holds weights that are
    not finite.
    """
    checkpoint = read_newest(path)
    _check_facts(checkpoint.path, checkpoint.facts)
    for name, tensor in checkpoint.tensors.items():
        if name.startswith((LEARNER, PREFIX)) and tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(
                f"{checkpoint.path} holds NaN or an infinity in {name}: learning had failed there; use an earlier "
                "checkpoint"
            )
    return checkpoint


def read_best(path: Path) -> Checkpoint:
    """Read the checkpoint to evaluate: the file given, or of a run folder its best by validation, else its latest.

    Raises CheckpointError: as `read_checkpoint`.
    """
    best = resolve_run(path).checkpoints.path(BEST)
    return read_checkpoint(best if path.is_dir() and best.is_file() else path)


def read_newest(path: Path) -> Checkpoint:
    """Read a checkpoint, its facts unchecked; of a run folder the latest, or, if damaged, the newest whole one before.

    Raises CheckpointError if none can be read; for a file, if that file cannot.
    """
    saved = resolve_run(path)
    first = saved.find_checkpoint()
    if saved.kind is Kind.CHECKPOINT:
        return Checkpoint(first, *read_tensors(first))
    problem = ""
    for candidate in dict.fromkeys([first, *saved.checkpoints.numbered()]):
        try:
            warning = f"{problem}; using the newest intact one, {candidate.stem}" if problem else None
            return Checkpoint(candidate, *read_tensors(candidate), warning)
        except CheckpointError as error:
            problem = problem or str(error).rsplit("; ", 1)[0]  # without the advice to use another one
    raise CheckpointError(
        f"no checkpoint in {first.parent} can be read: {problem}; start a new run, or use the finflow that wrote it"
    )


def configuration_of(path: Path) -> Config:
    """The resolved configuration that results were made with, its folders as they have them.

    The path is that of a checkpoint file, or of the folder of a run, a job or a study.
    """
    saved = resolve_run(path)
    if saved.kind is Kind.JOB:
        return load_config(path.joinpath(*saved.universes[:1]) / CONFIG, {}, environ={})
    if saved.kind is Kind.STUDY:
        return load_config(path / STUDY, environ={})
    return stored_config(read_checkpoint(path))


def stored_config(checkpoint: Checkpoint, overrides: Mapping[str, object] | None = None) -> Config:
    """The configuration in a checkpoint, with overrides on top; environment variables are not read.

    A checkpoint holds all keys that decide results; folders are read from the ``config.yaml`` of its run, if that is
    still there.
    """
    try:
        nested = parse_scalar(checkpoint.facts["config"])
        refuse(not isinstance(nested, Mapping), "it is not a mapping of keys", ConfigError)
        stored = flatten(nested)
        load_config(None, stored, environ={})
    except (yaml.YAMLError, RecursionError, ValueError, TypeError):
        raise CheckpointError(f"{checkpoint.path} holds a configuration that cannot be read; use another one") from None
    except ConfigError as error:
        problem = f"this finflow does not know ({str(error).replace(' (overrides)', '')})"
        advice = "use the finflow that wrote it, or start a new run"
        raise CheckpointError(f"{checkpoint.path} holds a configuration that {problem}; {advice}") from None
    written = checkpoint.run_folder / CONFIG
    if written.is_file():
        content, _ = parse_file(written)
        known = [key for key, *_ in describe_schema() if key.startswith("output.")]
        stored |= {key: value for key, value in flatten(content).items() if key in known}
    return load_config(None, {**stored, **(overrides or {})}, environ={})


def check_same_configuration(checkpoint: Checkpoint, config: Config) -> None:
    """Check that a training is resumed with its configuration.

    Raises CheckpointError if ``config`` differs in anything that decides results.
    """
    if config_hash(stored_config(checkpoint)) != config_hash(config):  # keys that are new have their defaults
        raise CheckpointError(
            f"{checkpoint.path} was trained with another configuration; a resumed run keeps its own: start a new run, "
            "or leave the changes out"
        )


def feature_names(features: Features) -> dict[str, list[str]]:
    return {"assets": list(features.asset_names), "market": list(features.market_names)}


def check_same_features(checkpoint: Checkpoint, features: Features) -> None:
    """An agent reads the features that it was trained on, by name and in their order; not all markets give the same.

    Raises CheckpointError if the file does not say its features, or a market's are others.
    """
    path, trained = checkpoint.path, checkpoint.facts.get("features")
    if trained is None:
        raise CheckpointError(
            f"{path} does not say which features it reads; use the finflow that wrote it, or start a new run"
        )
    for kind, names in feature_names(features).items():
        known = list(trained[kind])
        if names == known:
            continue
        lacking = ", ".join(name for name in known if name not in names)
        more = ", ".join(name for name in names if name not in known)
        differences = [f"lacks {lacking}"] * bool(lacking) + [f"has {more} beside"] * bool(more)
        raise CheckpointError(
            f"{path} was trained on other features: this market "
            f"{' and '.join(differences) or 'has them in another order'}; use prices with the same fields (open, high, "
            "low, volume) and the same features.extra and features.filters"
        )


class Inspection(NamedTuple):
    """Contents of one checkpoint file in lines; ``complaint`` is None where it is whole."""

    path: Path
    complaint: str | None
    lines: list[str]


def inspect_checkpoints(path: Path) -> list[Inspection]:
    """Read and verify every checkpoint of a run folder, or one file.

    ``path``: a run folder, its ``models`` folder, or a checkpoint.

    Raises CheckpointError if there is none.
    """
    saved = resolve_run(path)
    if saved.kind is Kind.CHECKPOINT:
        return [_inspect(path)]
    first, folder = saved.find_checkpoint(), saved.checkpoints
    named = [folder.path(name) for name in (LATEST, BEST, PRETRAINED)]
    files = dict.fromkeys([first, *named, *folder.numbered(), *sorted(folder.folder.glob(f"*{SUFFIX}"))])
    return [_inspect(file) for file in files if file.is_file()]


def _inspect(path: Path) -> Inspection:
    try:
        checkpoint = read_checkpoint(path)
    except CheckpointError as error:
        complaint = " ".join(str(error).removeprefix(f"{path} ").split())
        return Inspection(path, complaint, [f"{path.name}: {complaint}"])
    facts, counters, shape = checkpoint.facts, checkpoint.counters, checkpoint.facts["shape"]
    score, update = counters["best_score"], counters["best_update"]
    numbers: Counter[str] = Counter()
    for name, tensor in checkpoint.tensors.items():
        owner, _, rest = name.partition(SEPARATOR)
        numbers[f"{owner}{SEPARATOR}{rest.partition(SEPARATOR)[0].partition('.')[0]}" if rest else owner] += (
            tensor.numel()
        )
    parts = sorted(numbers.items(), key=lambda item: (-item[1], item[0]))
    lines = [
        f"{path.name}: intact, SHA-256 verified",
        f"  format {VERSION}, {path.stat().st_size:,} bytes",
        f"  {counters['phase']} phase, update {counters['update']:,} ({counters['phase_update']:,} of the phase), "
        f"vector step {counters['vector_step']:,}",
        f"  best by validation: {'none yet' if score is None else f'{score:.6g} at update {update}'}",
        f"  {describe_holding(Blend.from_tensor(checkpoint.agent.tensors.get('blend')))}",
        f"  configuration {facts['config_hash'][:16]}, prices {facts['market'][:16]}",
        f"  networks of width {shape['hidden']} on {shape['n_asset_features']} features of an asset and "
        f"{shape['n_market_features']} of the market",
        f"  written with {', '.join(f'{name} {value}' for name, value in facts['runtime'].items())}",
        f"  numbers held: {', '.join(f'{name} {count:,}' for name, count in parts)}",
    ]
    return Inspection(path, None, lines)


def _check_facts(path: Path, facts: dict[str, Any]) -> None:
    """Check that a checkpoint's facts are those of a training, each of its type and within its bounds.

    A SHA-256 tells that a file is as it was written, not that it was finflow that wrote it.
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
        raise CheckpointError(
            f"{path} is not a checkpoint of finflow ({short}); use another checkpoint of the run"
        ) from None
