"""Make the evidence that takes long, and the tables in docs: `make evidence`. Resumes where it stopped.

`python scripts/evidence.py offline` makes the table of the offline methods alone, `runs` that of whole trainings,
`durability` those about kills, faults of the disk and files made to mislead.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finflow.cli.safety import run_safely
from finflow.config import Config
from finflow.experiments.durability_page import durability_page, made_once
from finflow.experiments.evidence import Variant, classical_results, run_missing, table
from finflow.experiments.offline_methods import METHODS, FamilyRule, family_results, offline_table
from finflow.files import write_atomically
from finflow.training.code import code_hash

ROOT = Path(__file__).resolve().parent.parent
VARIANTS = (Variant("default", seeds=(0, 1, 2)),)
EPOCHS = 6  # of the offline methods: an eighth of the default, so that fifteen trainings take minutes
OFFLINE = tuple(
    Variant(
        f"offline-{method}",
        seeds=(0, 1, 2, 3, 4),
        overrides={"offline.method": method, "train.offline_training_epochs": EPOCHS},
        offline_only=True,
    )
    for method in METHODS
)
OFFLINE_HEAD = f"""# Evidence about the offline phase

<!-- Made by scripts/evidence.py (`make evidence`) from docs/evidence/*.json: change nothing here. -->

The embedded market, validation window (2012 to 2015), net of costs, on the ledger of training. Families: each of the
six variants moves {100 * FamilyRule.rate:.0f} % of the way to its aim a day; mean, and least to greatest. Methods: the
last policy after {EPOCHS} epochs (the default is 50); mean over seeds, and half the width of its 95 % interval. Reward
and fitted Q value (docs/offline.md) are in basis points a decision.

"""
HEAD = """# Evidence

<!-- Made by scripts/evidence.py (`make evidence`) from docs/evidence/*.json: change nothing here. -->

The embedded market, validation window (2012 to 2015), net of costs, on the ledger of training. Hand-over: IQL alone,
as B-Cell takes over. End: after all online updates. Best: the checkpoint that the run would judge, which was chosen on
this very window and so looks better here than it is. Over several seeds: mean, and least to greatest.

"""


def main(arguments: Sequence[str]) -> None:
    """Train what is missing, then write the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["all", "runs", "offline", "durability"], default="all")
    what = parser.parse_args(arguments).what
    if what in ("all", "durability"):
        result = made_once(ROOT / "docs" / "evidence" / "durability.json", ROOT / "data" / "evidence" / "durability")
        write_atomically(ROOT / "docs" / "durability-evidence.md", durability_page(result))
    if what in ("all", "offline"):
        results = run_missing(OFFLINE, ROOT / "docs" / "evidence", ROOT / "data" / "evidence")
        page = OFFLINE_HEAD + offline_table(results, family_results(Config())) + _made(results)
        write_atomically(ROOT / "docs" / "offline-evidence.md", page)
    if what not in ("all", "runs"):
        return
    results = run_missing(VARIANTS, ROOT / "docs" / "evidence", ROOT / "data" / "evidence")
    page = HEAD + table(results, classical_results(Config())) + _made(results)
    write_atomically(ROOT / "docs" / "evidence.md", page)


def _made(results: Sequence[Mapping[str, Any]]) -> str:
    """What made a table."""
    seconds = [sum(result["seconds"].values()) for result in results]
    return f"\nCode {code_hash()}; {len(results)} trainings of {min(seconds):.0f} to {max(seconds):.0f} s each.\n"


if __name__ == "__main__":
    raise SystemExit(run_safely(main))
