"""Make the evidence that takes long, and the tables in docs: `make evidence`. Resumes where it stopped.

`python scripts/evidence.py offline` makes the table of the offline methods alone, `runs` that of whole trainings,
`guard` that of faults injected into trainings.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finflow.cli.safety import run_safely
from finflow.config import Config
from finflow.experiments.evidence import Variant, classical_results, code_hash, run_missing, table
from finflow.experiments.guard_faults import FAULT_AT, guard_table, guard_variants
from finflow.experiments.offline_methods import METHODS, FamilyRule, family_results, offline_table
from finflow.files import write_atomically

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
GUARD_HEAD = f"""# Evidence about the guard

<!-- Made by scripts/evidence.py (`make evidence`) from docs/evidence/*.json: change nothing here. -->

Faults injected into online update {FAULT_AT} of small trainings (the demo's networks, embedded market), with the guard
and without it. Value: mean reward of a decision on the validation window, net, in basis points, of the last policy;
mean over seeds. Detected: updates from the fault to the guard's first event, the latest over seeds. Near: seeds that
end within one standard deviation (over the undisturbed seeds) of the same seed undisturbed.

"""


def main(arguments: Sequence[str]) -> None:
    """Train what is missing, then write the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["all", "runs", "offline", "guard"], default="all")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the guard's trainings")
    given = parser.parse_args(arguments)
    what = given.what
    if what in ("all", "guard"):
        results = run_missing(guard_variants(given.seeds), ROOT / "docs" / "evidence", ROOT / "data" / "evidence")
        write_atomically(ROOT / "docs" / "guard-evidence.md", GUARD_HEAD + guard_table(results) + _made(results))
    if what == "guard":
        return
    if what != "runs":
        results = run_missing(OFFLINE, ROOT / "docs" / "evidence", ROOT / "data" / "evidence")
        page = OFFLINE_HEAD + offline_table(results, family_results(Config())) + _made(results)
        write_atomically(ROOT / "docs" / "offline-evidence.md", page)
    if what == "offline":
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
