"""The measurements of durability, made once for a state of the code, and their page."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finflow.config import Config, config_hash
from finflow.files import write_atomically
from finflow.provenance import code_hash
from scripts.evidence.broker_kills import Market, compare, live
from scripts.evidence.durability import measure, small_config, train
from scripts.evidence.results import kept_result
from scripts.evidence.tables import markdown_table

BEGIN, TRAIN_END, VALIDATION_END = "2017-01-02", "2020-12-31", "2021-06-30"
STAGES = ("before the decision", "before its orders", "among its orders", "after its orders")


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


def prepared(folder: Path, days: int) -> Callable[[str], Market]:
    """Train a small agent on drawn prices; gives copies of its run folder, each with a name of its own.

    Parameters
    ----------
    days : int
        Evenings after the years that the agent learns from.
    """
    rng = np.random.default_rng(0)
    known = len(pd.bdate_range(BEGIN, VALIDATION_END))
    dates = pd.bdate_range(BEGIN, periods=known + days)
    moves = rng.normal(0.0004, 0.01, (len(dates), 4)) + rng.normal(0.0, 0.006, (len(dates), 1))
    prices = pd.DataFrame(100.0 * np.exp(np.cumsum(moves, axis=0)), dates.strftime("%Y-%m-%d"), list("ABCD"))
    prices.index.name = "Date"
    write_atomically(folder / "prices.csv", prices.to_csv())
    learned = {"market.source": "csv", "market.path": str(folder / "prices.csv"), "market.train_end": TRAIN_END}
    run = train(small_config(folder, {**learned, "market.validation_end": VALIDATION_END}))

    def copy(name: str) -> Market:
        shutil.copytree(run, folder / name)
        return Market(folder / name, prices, tuple(prices.index[-days:]))

    return copy


def kills_made_once(path: Path, runs: Path, kills: int) -> dict[str, Any]:
    """The measurement; the one in ``path`` where the same code made it."""
    stamp = {"code": code_hash(), "configuration": config_hash(Config()), "asked": kills}

    def measured() -> dict[str, Any]:
        shutil.rmtree(runs, ignore_errors=True)
        copy = prepared(runs, days=kills + 10)
        return compare(live(copy("undisturbed")), live(copy("killed"), kills))

    return kept_result(path, "kills", stamp, measured)


def kills_page(result: Mapping[str, Any]) -> str:
    """Tables and figures of the page, as Markdown."""
    words = {"request": "while a request was under way", "line": "at a line of the log", "clock": "by the clock"}
    rows: list[tuple[object, ...]] = []
    seconds = result["seconds"]
    for kind, word in words.items():
        own = [kill for kill in result["kills"] if kill["kind"] == kind]
        stages = Counter(_stage(kill) for kill in own)
        rows.append((word, len(own), *(stages[stage] for stage in STAGES)))
    parts = [
        markdown_table(("killed", "kills", *STAGES), rows),
        "The stage is that of the evening that the kill interrupted. While a request was under way: the broker had "
        "it, and the kill came before it was carried out or after that, but before the answer.\n",
        markdown_table(
            ("", "undisturbed", "killed"),
            [
                ("evenings", result["days"], result["days"]),
                ("orders", result["orders"], result["orders"] + result["added"] - result["lost"]),
                ("orders lost", "", result["lost"]),
                ("orders twice, or others", "", result["added"]),
                ("orders or fills that differ", "", result["changed"]),
                ("money that differs", "", f"{result['money']:.2f}"),
                ("log", f"{result['lines']} lines", "identical, byte for byte" if result["identical"] else "differs"),
            ],
        ),
        f"Orders that were sent again although the broker had them, and that it refused: {result['duplicates']}; the "
        "look for their id comes first.\n",
        f"Code {result['code']}; {seconds['undisturbed']:.0f} s undisturbed, {seconds['killed']:.0f} s with kills.\n",
    ]
    return "\n".join(parts)


def _stage(kill: Mapping[str, Any]) -> str:
    if not kill["decided"]:
        return STAGES[0]
    if kill["noted"]:
        return STAGES[3]
    return STAGES[1] if kill["placed"] == 0 else STAGES[2]
