"""The measurements of durability, made once for a state of the code, and their page."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finflow.config import config_hash
from finflow.provenance import code_hash
from scripts.evidence.durability import measure, small_config
from scripts.evidence.results import kept_result
from scripts.evidence.tables import markdown_table


def made_once(path: Path, runs: Path) -> dict[str, Any]:
    """The measurements; those in ``path`` where the same code made them."""
    stamp = {"configuration": config_hash(small_config(runs)), "code": code_hash()}

    def measured() -> dict[str, Any]:
        shutil.rmtree(runs, ignore_errors=True)
        return measure(runs / "durability")

    return kept_result(path, "durability", stamp, measured)


def durability_page(result: Mapping[str, Any]) -> str:
    """Tables and figures of the page, as Markdown."""
    power = result["power"]
    parts = [
        "## SIGKILL\n",
        markdown_table(
            ("killed", "runs", "offline, online", "left half-written", "identical"), _kills(result["kills"])
        ),
        "Within a write: after half of the bytes, before the flush, before the rename, before the second name.\n",
        "## Faults of the disk\n",
        markdown_table(
            ("fault", "lasts", "runs", "exit status", "every file whole", "updates lost at most", "identical"),
            _faults(result["faults"]),
        ),
        "The fault begins at a drawn step. Where it passes, the run itself ends identical. Where it lasts, the run "
        "goes on to its end, exits with status 2, and is resumed once the disk is well. Updates lost: from the newest "
        "checkpoint on the disk to the fault. What was said, of the first:\n",
        *[f"    {line}\n" for fault in result["faults"] if fault["number"] == 0 for line in _said(fault)],
        "## Loss of power\n",
        f"The newest checkpoint was cut short at {power['cuts']:,} drawn bytes, under one of its names or under both: "
        f"{power['found'].get('right and said', 0):,} times the newest whole one was taken and the damage named. "
        f"{power['identical']} of {power['resumes']} runs resumed after such a cut ended identical.\n",
        f"Code {result['code']}; {result['seconds']['durability']:.0f} s of runs.\n",
    ]
    return "\n".join(parts)


def _kills(kills: Sequence[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    words = {"update": "at an update", "write": "within a write", "clock": "by the clock"}
    rows: list[tuple[object, ...]] = []
    for kind, word in words.items():
        own = [kill for kill in kills if kill["kind"] == kind]
        phases = ", ".join(str(sum(kill["phase"] == phase for kill in own)) for phase in ("offline", "online"))
        left = sum(kill["half-written files left"] for kill in own)
        rows.append((word, len(own), phases, left, f"{sum(kill['identical'] for kill in own)} of {len(own)}"))
    return rows


def _faults(faults: Sequence[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for fault, lasts in dict.fromkeys((one["fault"], one["lasts"]) for one in faults):
        own = [one for one in faults if (one["fault"], one["lasts"]) == (fault, lasts)]
        statuses = ", ".join(sorted({str(one["status"]) for one in own}))
        lost = max(max(one["at update"] - one["on the disk then"], 0) for one in own)
        whole, same = (f"{sum(one[name] for one in own)} of {len(own)}" for name in ("every file whole", "identical"))
        rows.append((fault, lasts, len(own), statuses, whole, lost, same))
    return rows


def _said(fault: Mapping[str, Any]) -> list[str]:
    return [fault[name] for name in ("announced", "ended") if fault[name] and fault["lasts"] == "to the end"]
