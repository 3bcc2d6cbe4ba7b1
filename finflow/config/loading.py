"""Read, write and identify configurations.

Four levels, each before the next: overrides (the command line), `FINFLOW_<SECTION>__<KEY>` environment variables, a
YAML file, the defaults of `finflow.config.schema`. Every mistake is one line that names the key, the value, where it
was given and what is allowed.

YAML is read as version 1.2 writes scalars: `1e-4` is a number, and `ON`, `NO` and `Y` are words (they are tickers
too), not booleans. A key given twice is an error.
"""

from __future__ import annotations

import datetime as dt
import difflib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from finflow.config.schema import Config, Section, TuneConfig
from finflow.config.yaml_text import parse_file, parse_scalar, to_yaml
from finflow.errors import ConfigError

__all__ = [
    "SPACE",
    "changed_config",
    "config_hash",
    "describe_schema",
    "dump_config",
    "dump_run",
    "holds_whole_numbers",
    "leaves",
    "load_config",
]

ENVIRONMENT_PREFIX = "FINFLOW_"

#: Keys that say where files lie, how many are kept, or how many agents there are, and so decide no agent's result.
_NOT_DECIDING = frozenset(
    {
        *("market.cache_dir", "market.use_cache"),
        *("train.save_latest", "train.max_checkpoints", "train.profile", "train.seeds"),
    }
)


def _walk(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo, type[Section] | None]]:
    for name, info in section.model_fields.items():
        inner = info.annotation
        nested = inner if isinstance(inner, type) and issubclass(inner, Section) else None
        yield prefix + name, info, nested
        if nested is not None:
            yield from _walk(nested, f"{prefix}{name}.")


_KEYS: dict[str, FieldInfo] = {key: info for key, info, nested in _walk(Config) if nested is None}
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a name",
    tuple: "a list of names",
    Path: "a path",
    dt.date: "a date such as 2011-12-31",
    dict: "a mapping of keys to {low, high, log, step} or {choices}",
}
SPACE = "tune.space"
"""The one key that holds a mapping: keys by name, and the values of each that a study tries."""
SEARCHABLE = (
    *("bcell.", "guard.", "objectives.", "offline.", "train."),
    *("env.episode_length", "env.max_turnover", "env.max_weight", "env.no_trade_band"),
)
"""Sections and keys that a study may search; the others say what is judged, or where."""
_NOT_SEARCHABLE = frozenset(
    {
        *(
            "train.seed",
            "train.seeds",
            "train.device",
            "train.threads",
            "train.profile",
            "train.save_best",
            "train.save_latest",
        ),
        *("train.max_checkpoints", "offline.decisions"),
    }
)
_KINDS_OF_TEXT = frozenset({str, tuple, Path})
_KINDS_OF_NUMBER = frozenset({int, float})
_SECTIONS: frozenset[str] = frozenset(key for key, _, nested in _walk(Config) if nested is not None)


def load_config(
    path: Path | str | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Resolve a configuration from its four levels.

    Parameters
    ----------
    path
        A YAML file with any of the keys, or None for defaults alone.
    overrides
        Dotted key -> value, such as {"bcell.cql_alpha": 10}. Strings are read as YAML.
    environ
        The environment; the process's own when left out.

    Raises
    ------
    ConfigError
        One line for the first mistake, with the number of the others.
    """
    layers = _Layers()
    if path is not None:
        content, lines = parse_file(Path(path))
        for key, value in content.items():
            layers.place(str(key), value, _Origin(str(path), lines=lines))
    for name, text in sorted((os.environ if environ is None else environ).items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            layers.place_text(key, text, _Origin(f"environment variable {name}", variable=name))
    for key, value in (overrides or {}).items():
        if isinstance(value, str):
            layers.place_text(key, value, _Origin("command line"))
        else:
            layers.place(key, value, _Origin("command line"))
    return layers.resolve()


def changed_config(config: Config, changes: Mapping[str, object]) -> Config:
    """A configuration with other values of some keys, checked as a file's would be.

    Raises
    ------
    ConfigError
        One line for the first value that is not allowed.
    """
    return load_config(None, {**leaves(config), **changes}, environ={})


def leaves(config: Config) -> dict[str, object]:
    """Every key and its value as it is, such that `load_config` takes them as overrides."""
    found: dict[str, object] = {}
    for key in _KEYS:
        value: Any = config
        for name in key.split("."):
            value = getattr(value, name)
        found[key] = json.dumps(value) if isinstance(value, str) else value  # quoted, to be read back as it is
    return found


def holds_whole_numbers(key: str) -> bool:
    """Whether a key of the schema takes whole numbers alone."""
    kinds = _kinds(_KEYS[key].annotation)
    return int in kinds and float not in kinds


def dump_config(config: Config) -> str:
    """Write a configuration as YAML text that `load_config` reads back to an equal one."""
    return to_yaml(config.model_dump())


def dump_run(config: Config) -> str:
    """Write a configuration as the folder of a run keeps it: without the search, whose storage may have a password."""
    return dump_config(config.model_copy(update={"tune": TuneConfig()}))


def config_hash(config: Config) -> str:
    """SHA-256 (hex) of canonical JSON of every key that decides results: no folders, no files kept, no search."""
    nested = config.model_dump(mode="json", exclude={"output", "tune"})
    for key in _NOT_DECIDING:
        section, name = key.split(".")
        del nested[section][name]
    text = json.dumps(nested, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def describe_schema() -> list[tuple[str, str, object, str]]:
    """List every key as (dotted key, what is allowed, default, description), in the order of the schema."""
    return [
        (key, _allowed(info), info.get_default(call_default_factory=True), info.description or "")
        for key, info in _KEYS.items()
    ]


@dataclass(frozen=True)
class _Origin:
    """Where a value was given: a file with the lines of its keys, an environment variable, or the command line."""

    name: str
    variable: str | None = None
    lines: Mapping[str, int] = field(default_factory=dict)

    def of(self, key: str) -> str:
        line = self.lines.get(key)
        return self.name if line is None else f"{self.name}, line {line}"


@dataclass
class _Layers:
    """Values by dotted key, later levels over earlier ones, and the mistakes found on the way."""

    values: dict[str, object] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)

    def place(self, key: str, value: object, origin: _Origin) -> None:
        """Put a value at a key, or a mapping at a section."""
        if key in _KEYS:
            self.values[key], self.origins[key] = value, origin.of(key)
        elif key not in _SECTIONS:
            self.mistakes.append(_unknown(key, origin))
        elif isinstance(value, Mapping):
            for name, inner in value.items():
                self.place(f"{key}.{name}", inner, origin)
        elif value is not None:
            example = next(name for name in _KEYS if name.startswith(f"{key}."))
            self.mistakes.append(f"{key} = {_show(value)} ({origin.of(key)}): a section of keys such as {example}")

    def place_text(self, key: str, text: str, origin: _Origin) -> None:
        """Put a value given as text, read as YAML unless the key holds text itself."""
        try:
            value = parse_scalar(text)
        except yaml.YAMLError:
            value = text
            if key in _SECTIONS:
                self.mistakes.append(f"{key} = {_show(text)} ({origin.of(key)}): not valid YAML")
                return
        kinds = _kinds(_KEYS[key].annotation) if key in _KEYS else []
        holds_text = bool(_KINDS_OF_TEXT.intersection(kinds)) and not _KINDS_OF_NUMBER.intersection(kinds)
        if holds_text and not isinstance(value, str | list | None):
            value = text  # a path or a name that looks like a number or a date
        self.place(key, value, origin)

    def resolve(self) -> Config:
        nested: dict[str, Any] = {}
        for key, value in self.values.items():
            *sections, name = key.split(".")
            target = nested
            for section in sections:
                target = target.setdefault(section, {})
            target[name] = value
        config = None
        try:
            config = Config.model_validate(nested)
        except ValidationError as error:
            self.mistakes.extend(self._explain(error))
        if config is not None:
            self.mistakes.extend(self._misplaced(config))
        if self.mistakes or config is None:
            others = len(self.mistakes) - 1
            more = f" (and {others} more mistake{'s' if others > 1 else ''})" if others else ""
            raise ConfigError(self.mistakes[0] + more)
        return config

    def _misplaced(self, config: Config) -> Iterator[str]:
        """What is wrong with the keys that are to be searched."""
        for key, searched in (config.tune.space or {}).items():
            where = self.origins.get(SPACE, "default")
            if key not in _KEYS:
                yield f"unknown key {key} in {SPACE} ({where}): the nearest valid key is {_nearest(key)}"
            elif not key.startswith(SEARCHABLE) or key in _NOT_SEARCHABLE:
                yield (
                    f"{key} in {SPACE} ({where}) cannot be searched: it says what is judged, or where, and not how an "
                    "agent learns"
                )
            else:
                ends = searched.choices or (searched.low, searched.high)
                for value in ends:
                    whole = isinstance(value, float) and value.is_integer() and holds_whole_numbers(key)
                    nested: Any = int(value) if whole and isinstance(value, float) else value
                    for name in reversed(key.split(".")):
                        nested = {name: nested}
                    if searched.step is not None and holds_whole_numbers(key) and not searched.step.is_integer():
                        yield f"{key} in {SPACE} ({where}): its step must be a whole number"
                        break
                    try:
                        Config.model_validate(nested)
                    except ValidationError as error:
                        if any(str(part) == key.rpartition(".")[2] for part in error.errors()[0]["loc"]):
                            yield f"{key} = {_show(value)} in {SPACE} ({where}): must be {_allowed(_KEYS[key])}"

    def _explain(self, error: ValidationError) -> Iterator[str]:
        seen: set[str] = set()
        for problem in error.errors(include_url=False):
            parts = [str(part) for part in problem["loc"]]
            key = next((k for n in range(len(parts), 0, -1) if (k := ".".join(parts[:n])) in _KEYS), None)
            if key is None:  # a check across keys, whose message names them
                places = sorted({place for k, place in self.origins.items() if k in str(problem["msg"])})
                where = f" ({'; '.join(places)})" if places else ""
                yield str(problem["msg"]).removeprefix("Value error, ") + where
            elif key == SPACE and len(parts) > 2:
                place = ".".join(parts[2:])
                origin = self.origins.get(key, "default")
                yield f"{place} in {key} ({origin}): {str(problem['msg']).removeprefix('Value error, ')}"
            elif key not in seen:
                seen.add(key)
                origin = self.origins.get(key, "default")
                yield f"{key} = {_show(self.values.get(key))} ({origin}): must be {_allowed(_KEYS[key])}"


def _unknown(key: str, origin: _Origin) -> str:
    near = _nearest(key)
    if origin.variable is not None:
        variable = ENVIRONMENT_PREFIX + near.upper().replace(".", "__")
        return f"unknown environment variable {origin.variable}: the nearest key is {near}, set by {variable}"
    return f"unknown key {key} ({origin.of(key)}): the nearest valid key is {near}"


def _nearest(key: str) -> str:
    """The valid key most like this one, by its whole name and by its last part in equal shares."""

    def likeness(candidate: str) -> float:
        pairs = [(wanted, candidate), (wanted.rpartition(".")[2], candidate.rpartition(".")[2])]
        return sum(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)

    wanted = key.lower().replace("-", "_")
    above = [name for name in _KEYS if wanted.startswith(f"{name}.")]
    return above[0] if above else max([*_KEYS, *sorted(_SECTIONS)], key=likeness)


def _kinds(annotation: Any) -> list[Any]:
    """The types a key may hold, and the literal values where it is one of a few."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    if origin is Literal:
        return list(get_args(annotation))
    if origin in (Union, UnionType):
        return [kind for part in get_args(annotation) for kind in _kinds(part)]
    return [origin or annotation]


def _allowed(info: FieldInfo) -> str:
    """Say in words what a key may hold."""
    kinds = _kinds(info.annotation)
    choices = [kind for kind in kinds if isinstance(kind, str)]
    words = ["one of " + ", ".join(choices)] if choices else []
    bounds = _bounds([*info.metadata, *_metadata(info.annotation)])
    words += [_WORDS[kind] + (bounds if kind in _KINDS_OF_NUMBER else "") for kind in kinds if kind in _WORDS]
    return " or ".join(words + (["null"] if type(None) in kinds else []))


def _metadata(annotation: Any) -> Iterator[Any]:
    """What is attached to the parts of a type, such as the bounds of the number in "a number or a path"."""
    origin = get_origin(annotation)
    if origin is Annotated:
        for note in annotation.__metadata__:
            yield from note.metadata if isinstance(note, FieldInfo) else (note,)
    elif origin in (Union, UnionType):
        for part in get_args(annotation):
            yield from _metadata(part)


def _bounds(limits: Sequence[Any]) -> str:
    words = []
    for limit in limits:
        for name, phrase in (("gt", "above"), ("ge", "of at least"), ("lt", "below"), ("le", "of at most")):
            if (value := getattr(limit, name, None)) is not None:
                words.append(f"{phrase} {value}")
    return "".join(f" {word}" if not n else f" and {word.removeprefix('of ')}" for n, word in enumerate(words))


def _show(value: object) -> str:
    text = to_yaml(value) if value is None or isinstance(value, bool | int | float) else repr(value)
    text = " ".join(text.removesuffix("\n...\n").split())
    return text if len(text) <= 60 else text[:57] + "..."
