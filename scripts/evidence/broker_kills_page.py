"""The measurement of kills, made once for a state of the code, and its page."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finflow.config import Config, config_hash
from finflow.files import write_atomically
from finflow.provenance import code_hash
from scripts.evidence.broker_kills import Market, compare, live
from scripts.evidence.durability import small_config, train
from scripts.evidence.results import kept_result
from scripts.evidence.tables import markdown_table

BEGIN, TRAIN_END, VALIDATION_END = "2017-01-02", "2020-12-31", "2021-06-30"
STAGES = ("before the decision", "before its orders", "among its orders", "after its orders")


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


def made_once(path: Path, runs: Path, kills: int) -> dict[str, Any]:
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
