"""Make the evidence that takes long, and the tables in docs/evidence.md: `make evidence`. Resumes where it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from finflow.cli.safety import run_safely
from finflow.config import Config
from finflow.experiments.evidence import Variant, classical_results, code_hash, run_missing, table
from finflow.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
VARIANTS = (Variant("default", seeds=(0, 1, 2)),)
HEAD = """# Evidence

<!-- Made by scripts/evidence.py (`make evidence`) from docs/evidence/*.json: change nothing here. -->

The embedded market, validation window (2012 to 2015), net of costs, on the ledger of training. Hand-over: IQL alone,
as B-Cell takes over. End: after all online updates. Best: the checkpoint that the run would judge, which was chosen on
this very window and so looks better here than it is. Over several seeds: mean, and least to greatest.

"""


def main(arguments: Sequence[str]) -> None:
    """Train what is missing, then write the page."""
    results = run_missing(VARIANTS, ROOT / "docs" / "evidence", ROOT / "data" / "evidence")
    seconds = [sum(result["seconds"].values()) for result in results]
    made = f"\nCode {code_hash()}; {len(results)} trainings of {min(seconds):.0f} to {max(seconds):.0f} s each.\n"
    write_atomically(ROOT / "docs" / "evidence.md", HEAD + table(results, classical_results(Config())) + made)


if __name__ == "__main__":
    raise SystemExit(run_safely(main))
