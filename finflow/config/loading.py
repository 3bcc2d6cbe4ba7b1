"""Read, write and identify configurations.

Four levels, each before the next: overrides (the command line), `FINFLOW_<SECTION>__<KEY>` environment variables, a
YAML file, the defaults of `finflow.config.schema`. Every mistake is one line that names the key, the value, its
origin and the allowed values. YAML is read as version 1.2 writes scalars: see `yaml_text`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from finflow.config.evaluation_sections import SearchedConfig, TuneConfig
from finflow.config.schema import KEYS, SECTIONS, Config, allowed_values, holds_text, holds_whole_numbers
from finflow.config.section_types import ConfigSection
from finflow.config.yaml_text import misread, parse_file, parse_scalar, to_yaml
from finflow.errors import ConfigError

S = TypeVar("S", bound=ConfigSection)

ENVIRONMENT_PREFIX = "FINFLOW_"
_VARIABLE = "environment variable "
MAX_LENGTH = 600  # characters of a message, whatever a file has for a key
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # no name of a file has a null byte, and no text half of a character

#: Keys of folders, kept files, processes and the number of agents, which affect no agent's result.
_NOT_DECIDING = frozenset(
    {
        *("market.cache_dir", "market.use_cache", "market.extend_cache"),
        *("train.save_latest", "train.max_checkpoints", "train.profile", "train.seeds"),
        "objectives.workers",
    }
)
SPACE = "tune.space"
"""The one key that holds a mapping: keys by name, and the values of each that a study tries."""
SEARCHABLE = (
    *("bcell.", "guard.", "objectives.", "offline.", "online.", "out_of_fold.", "train."),
    *("env.episode_length", "env.max_turnover", "env.max_weight", "env.no_trade_band"),
)
"""Sections and keys that a study may search; the others define the evaluation."""
_NOT_SEARCHABLE = frozenset(
    {
        *("train.seed", "train.seeds", "train.device", "train.threads", "train.profile", "train.save_best"),
        *("train.save_latest", "train.max_checkpoints", "offline.decisions"),
    }
)


def load_config(
    path: Path | str | Sequence[Path | str] | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    base: Config | None = None,
    origin: str = "overrides",
) -> Config:
    """Resolve a configuration from its four levels: a YAML file, or None, overrides, and the environment.

    Of several files a later one counts, key by key.

    ``base``, such as the configuration of a checkpoint, stands in for the defaults.

    Overrides are by dotted key, such as {"bcell.cql_alpha": 10}; strings are read as YAML, and ``origin`` says in
    messages where they come from. The environment is the process's own when left out.

    Raises ConfigError with one line for the first mistake, with the number of the others.
    """
    layers = _Layers()
    for key, value in ({} if base is None else values_by_key(base)).items():
        layers.place(key, value, "the stored configuration")
    for file in [path] if isinstance(path, str | Path) else path or ():
        content, lines = parse_file(Path(file))
        for key, value in content.items():
            layers.place(str(key), value, str(file), lines)
    for name, text in sorted((os.environ if environ is None else environ).items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            layers.place(key, text, f"{_VARIABLE}{name}", as_yaml=True)
    for key, value in (overrides or {}).items():
        layers.place(key, value, origin, as_yaml=True)
    return layers.resolve()


def as_config(given: Config | Path | str | None) -> Config:
    """Return a configuration, or load that of a file; a ConfigError for anything else."""
    if isinstance(given, Config):
        return given
    if given is None or isinstance(given, str | Path):
        return load_config(given)
    raise ConfigError(f"a configuration is a Config or the path of a YAML file, not {type(given).__name__}")


def changed_config(config: Config, changes: Mapping[str, object]) -> Config:
    """Return a configuration with other values of some keys, checked as a file's would be."""
    return load_config(None, changes, {}, config)


def replace_values(config: S, changes: Mapping[str, object]) -> S:
    """Return a configuration with other values of some keys or sections, by dotted name; the values are not checked."""
    for name, value in changes.items():
        head, _, rest = name.partition(".")
        inner = replace_values(getattr(config, head), {rest: value}) if rest else value
        config = config.model_copy(update={head: inner})
    return config


def values_by_key(config: Config) -> dict[str, object]:
    """Return every key and its value."""
    return {key: attrgetter(key)(config) for key in KEYS}


def changed_values(before: Config, after: Config) -> dict[str, object]:
    """Keys whose values differ between two configurations, and the later values."""
    known = values_by_key(before)
    return {key: value for key, value in values_by_key(after).items() if value != known[key]}


def hyperparameters(config: Config) -> dict[str, object]:
    """Keys that decide what an agent learns, and their values: no folders, no evaluation, search, trading or pairs."""
    without = ("output.", "evaluation.", "trading.", "tune.", "preferences.", *_NOT_DECIDING)
    return {key: value for key, value in values_by_key(config).items() if not key.startswith(without)}


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Nested keys as dotted ones; a search space is one value."""
    flat: dict[str, object] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping) and f"{prefix}{name}" != SPACE:
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def dump_config(config: Config) -> str:
    """Write a configuration as YAML text that `load_config` reads back to an equal one."""
    return to_yaml(config.model_dump())


def dump_run(config: Config) -> str:
    """Write a configuration for the folder of a run: without the search, whose storage may have a password."""
    return dump_config(replace_values(config, {"tune": TuneConfig()}))


def config_hash(config: Config) -> str:
    """SHA-256 (hex) of canonical JSON of every key that affects results: no folders, kept files, search or pairs."""
    nested = config.model_dump(mode="json", exclude={"output", "tune", "trading", "preferences"})
    for key in _NOT_DECIDING:
        section, name = key.split(".")
        del nested[section][name]
    nested["out_of_fold"]["pretraining_epochs"] = config.fold_epochs  # what exceeds them never happens
    text = json.dumps(nested, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class _Layers:
    """Values by dotted key, later levels over earlier ones, and the mistakes found on the way."""

    values: dict[str, object] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)

    def place(self, key: str, value: object, origin: str, lines: Mapping[str, int] = {}, as_yaml: bool = False) -> None:
        """Put a value at a key, or a mapping at a section; text is read as YAML if `as_yaml` is set.

        ``origin`` is a file, with the ``lines`` of its keys, an environment variable, or the command line.
        """
        where = f"{origin}, line {lines[key]}" if key in lines else origin
        if as_yaml and isinstance(value, str):
            try:
                value = _from_text(key, value)
            except yaml.YAMLError:
                self.mistakes.append(f"{key} = {_show(value)} ({where}): not valid YAML")
                return
        if isinstance(value, str) and _NO_TEXT.search(value):
            words = f"has a character that no text may have{misread(value)}"
            self.mistakes.append(f"{key} = {_show(value)} ({where}): {words}")
        elif key in KEYS:
            self.values[key], self.origins[key] = value, where
        elif key not in SECTIONS:
            self.mistakes.append(_unknown(key, where))
        elif isinstance(value, Mapping):
            for name, inner in value.items():
                self.place(f"{key}.{name}", inner, origin, lines)
        elif value is not None:
            example = next(name for name in KEYS if name.startswith(f"{key}."))
            self.mistakes.append(f"{key} = {_show(value)} ({where}): a section of keys such as {example}")

    def resolve(self) -> Config:
        """Validate the values; a ConfigError for the first mistake, with the number of the others."""
        config = None
        try:
            config = Config.model_validate(_nested(self.values))
        except ValidationError as error:
            self.mistakes.extend(self._explain(error))
        else:
            for key, searched in (config.tune.space or {}).items():
                self.mistakes.extend(_search_mistakes(key, searched, self.origins.get(SPACE, "default")))
        if self.mistakes or config is None:
            others = len(self.mistakes) - 1
            more = f" (and {others} more mistake{'s' if others > 1 else ''})" if others else ""
            raise ConfigError(" ".join(self.mistakes[0].split())[:MAX_LENGTH] + more)
        return config

    def _explain(self, error: ValidationError) -> Iterator[str]:
        seen: set[str] = set()
        for problem in error.errors(include_url=False):
            parts = [str(part) for part in problem["loc"]]
            message = str(problem["msg"]).removeprefix("Value error, ")
            key = next((k for n in range(len(parts), 0, -1) if (k := ".".join(parts[:n])) in KEYS), None)
            if key is None:  # a check across keys, whose message names them
                places = sorted({place for k, place in self.origins.items() if k in message})
                yield message + (f" ({'; '.join(places)})" if places else "")
            elif key == SPACE and len(parts) > 2:
                yield f"{'.'.join(parts[2:])} in {key} ({self.origins.get(key, 'default')}): {message}"
            elif key not in seen:
                seen.add(key)
                origin, value = self.origins.get(key, "default"), self.values.get(key)
                option = f"--set {key}=" if origin == "command line" else ""
                advice = misread(value, option) if holds_text(key) or isinstance(value, str) else ""
                yield f"{key} = {_show(value)} ({origin}): must be {allowed_values(key)}{advice}"


def _search_mistakes(key: str, searched: SearchedConfig, origin: str) -> Iterator[str]:
    place = f"in {SPACE} ({origin})"
    if key not in KEYS:
        yield f"unknown key {key} {place}: the nearest valid key is {_nearest(key)}"
        return
    if not key.startswith(SEARCHABLE) or key in _NOT_SEARCHABLE:
        yield f"{key} {place} cannot be searched: it sets the evaluation or the machine, and not how an agent learns"
        return
    whole = holds_whole_numbers(key)
    if whole and searched.step is not None and not searched.step.is_integer():
        yield f"{key} {place}: its step must be a whole number"
        return
    for value in searched.choices or (searched.low, searched.high):
        tried = int(value) if whole and isinstance(value, float) and value.is_integer() else value
        try:
            Config.model_validate(_nested({key: tried}))
        except ValidationError as error:
            if key.rpartition(".")[2] in map(str, error.errors()[0]["loc"]):  # not a check across keys
                yield f"{key} = {_show(value)} {place}: must be {allowed_values(key)}"


def _nested(values: Mapping[str, object]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        reduce(lambda section, inner: section.setdefault(inner, {}), sections, nested)[name] = value
    return nested


def _from_text(key: str, text: str) -> object:
    """Read text as YAML; that of a key stays text where it cannot be read, or where the key holds text."""
    try:
        value = parse_scalar(text)
    except yaml.YAMLError:
        if key in SECTIONS:
            raise
        return text
    keep = key in KEYS and holds_text(key) and not isinstance(value, str | list | None)
    return text if keep else value  # a path or a name that looks like a number or a date


def _unknown(key: str, where: str) -> str:
    near = _nearest(key)
    if where.startswith(_VARIABLE):
        variable = ENVIRONMENT_PREFIX + near.upper().replace(".", "__")
        return f"unknown {where}: the nearest key is {near}, set by {variable}"
    return f"unknown key {key} ({where}): the nearest valid key is {near}"


def _nearest(key: str) -> str:
    """Return the valid key most like this one, by its whole name and by its last part in equal shares."""

    def likeness(candidate: str) -> float:
        pairs = [(wanted, candidate), (wanted.rpartition(".")[2], candidate.rpartition(".")[2])]
        return sum(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)

    wanted = key.lower().replace("-", "_")[:100]
    above = [name for name in KEYS if wanted.startswith(f"{name}.")]
    return above[0] if above else max([*KEYS, *sorted(SECTIONS)], key=likeness)


def _show(value: object) -> str:
    """Write a value for a message, in 60 characters at most."""
    text = to_yaml(value) if value is None or isinstance(value, bool | int | float) else repr(value)
    text = " ".join(text.removesuffix("\n...\n").split())
    return text if len(text) <= 60 else text[:57] + "..."
