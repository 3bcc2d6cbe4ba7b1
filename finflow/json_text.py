"""JSON of files that anybody may have changed: every mistake in it is one kind of error; and JSON of notes."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Read JSON; text that nests deeper than Python reads is a mistake like any other.

    Raises ValueError if it is none, or not UTF-8; `json` alone raises RecursionError for deep nesting.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_object(path: Path) -> dict[str, Any] | None:
    """Read a file of one JSON object; None where it is not there, not readable, or holds something else."""
    with suppress(OSError, ValueError):
        found = parse_json(path.read_text("utf-8"))
        return found if isinstance(found, dict) else None
    return None


def format_json(content: object) -> str:
    """Write JSON with sorted keys, a line each."""
    return json.dumps(content, indent=2, sort_keys=True) + "\n"
