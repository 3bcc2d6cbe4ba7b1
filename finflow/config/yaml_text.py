"""YAML in and out, with the scalars of YAML 1.2 and the line of every mistake.

PyYAML follows YAML 1.1, where `1e-4` is a string, `ON` a boolean, `0700` an octal number and a key given twice is
silently the last one. The classes here change that.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from finflow.errors import ConfigError
from finflow.files import read_text_input

_REPLACED = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_SCALARS = (
    (_REPLACED[0], re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    (_REPLACED[1], re.compile(r"^[-+]?[0-9][0-9_]*$"), "-+0123456789"),
    (
        _REPLACED[2],
        re.compile(r"^(?:[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)$"),
        "-+.0123456789",
    ),
)
_READ_AS = ((bool, "true or false"), ((int, float), "numbers"), (dt.date, "dates"), (type(None), "null"))
CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029]")  # characters that no path is meant to have
_ESCAPES = {text: f"\\{name}" for name, text in yaml.scanner.Scanner.ESCAPE_REPLACEMENTS.items() if name.isalnum()}
_PATHS = "write paths in single quotes, or with / instead of \\"


class _Loader(yaml.SafeLoader):
    """Loader of YAML 1.2 scalars; keys given twice are mistakes; impossible dates stay text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen and key.value != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)

    def decimal(self, node: yaml.ScalarNode) -> int:
        return int(str(self.construct_scalar(node)).replace("_", ""))

    def date(self, node: yaml.ScalarNode) -> Any:
        try:
            return self.construct_yaml_timestamp(node)
        except (ValueError, AttributeError):  # AttributeError: text under the tag of a date
            return self.construct_scalar(node)


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes text which `_Loader` would otherwise read as another type."""


for _class in (_Loader, _Dumper):
    _class.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
        for first, resolvers in _class.yaml_implicit_resolvers.items()
    }
    for _tag, _pattern, _first in _SCALARS:
        _class.add_implicit_resolver(_tag, _pattern, list(_first))
del _class, _tag, _pattern, _first
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.decimal)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.date)


def parse_file(path: Path) -> tuple[dict[Any, Any], dict[str, int]]:
    """Read a YAML file of sections: its content, and dotted key -> line, counted from 1."""
    text = read_text_input(path, "configuration file", ConfigError, "the YAML file")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        content = None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError, LookupError) as error:
        words = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)
        advice = f"; \\ begins an escape in double quotes: {_PATHS}" if "escape" in words else ""
        raise ConfigError(f"{path}{_place(error, text)}: not valid YAML: {words}{advice}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply to be a configuration") from None
    if content is None:
        return {}, {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}, line 1: must hold sections such as market and train, not {content!r:.40}")
    return content, _lines(node)


def parse_scalar(text: str) -> Any:
    """Read a value as YAML; raises yaml.YAMLError, for text under the tag of another type too."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (ValueError, LookupError) as error:
        raise yaml.YAMLError(str(error)) from None


def misread(value: object, option: str = "") -> str:
    """Say how to write the names or the path that YAML reads as something else, after an option; else empty."""
    parts = value if isinstance(value, list | tuple) else () if value is None else (value,)
    if found := CONTROL.search("".join(part for part in parts if isinstance(part, str))):
        escape = _ESCAPES.get(found[0], ascii(found[0])[1:-1])
        return f"; YAML reads {escape} in double quotes as one character: {_PATHS}"
    kind = next((words for part in parts for types, words in _READ_AS if isinstance(part, types)), None)
    quoted = '["005930", "TRUE"]' if isinstance(value, list | tuple) else '"005930"'
    shown = f"{option}'{quoted}'" if option else quoted
    return f"; YAML reads such names as {kind} without quotes: write {shown}" if kind else ""


def to_yaml(value: Any) -> str:
    """Write plain values, tuples, dates and paths as YAML in ASCII, which PyYAML reads back unchanged."""
    return yaml.dump(_plain(value), Dumper=_Dumper, sort_keys=False, width=120)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def _lines(node: yaml.Node | None, prefix: str = "", depth: int = 4) -> dict[str, int]:
    lines: dict[str, int] = {}
    if isinstance(node, yaml.MappingNode) and depth:
        for key, value in node.value:
            name = f"{prefix}{key.value}"
            lines[name] = key.start_mark.line + 1
            lines.update(_lines(value, f"{name}.", depth - 1))
    return lines


def _place(error: Exception, text: str) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        return f", line {mark.line + 1}"
    position = getattr(error, "position", None)
    return "" if position is None else f", line {text.count(chr(10), 0, position) + 1}"
