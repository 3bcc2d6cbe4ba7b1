"""Compute a published table anew and compare it with the published figures.

======== =============================================================================================================
demiguel monthly Sharpe ratios of 1/N, minimum variance and others: table 3 of DeMiguel, Garlappi and Uppal (2009)
olmar    wealth of OLMAR on the sets of Li and Hoi (2012), without costs
pamr     wealth of PAMR on the sets of Li, Zhao, Hoi and Gopalkrishnan (2012), without costs
======== =============================================================================================================

Examples:
  python -m scripts.replicate demiguel                       # factors that arch and linearmodels ship
  python -m scripts.replicate olmar --data universal_portfolios-0.4.17-py3-none-any.whl
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from finflow.cli.exit_status import run_safely
from finflow.cli.options import Parser
from scripts.evidence.results import write_result
from scripts.replicate.comparison import Comparison, as_result, comparison_table

NAMES = ("demiguel", "olmar", "pamr")
KEPT = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "results" / "replication.json"


def main(arguments: Sequence[str]) -> None:
    """Read the options, compute, and print; `--save` keeps the figures for the page of evidence."""
    parser = Parser(__doc__ or "", usage="python -m scripts.replicate NAME [--data FILE] [--save]")
    parser.add_argument("name", nargs="?", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--data", type=Path, metavar="FILE", help="data that you have; not for demiguel")
    parser.add_argument("--save", action="store_true", help="keep the figures in docs/evidence/results")
    parser.add_argument("--verbose", action="store_true", help="show where an error came from")
    given = parser.parse(arguments)
    if given.name not in NAMES:
        parser.error(f"name a replication: {', '.join(NAMES)}")
    if given.name == "demiguel" and given.data:
        parser.error("demiguel reads the factors that arch and linearmodels ship, and no --data")
    rows, origin = _computed(given.name, given.data)
    print(comparison_table(rows), end="")
    print(f"data: {origin}")
    if given.save:
        content = as_result(given.name, {"data": origin}, rows)
        write_result(KEPT, given.name, content)
        print(f"kept in {KEPT.name}; python -m scripts.evidence replication makes the page")


def _computed(name: str, data: Path | None) -> tuple[list[Comparison], str]:
    """Figures of a replication, and the origin of its data."""
    if name == "demiguel":
        from scripts.replicate.naive_diversification import compare_policies, shipped_sets

        tables = shipped_sets()
        return compare_policies(tables), f"Kenneth R. French's data library: {'; '.join(tables)}"
    from scripts.replicate.online_wealth import compare_wealth, read_sets

    sets, origin = read_sets(data)
    return compare_wealth(name, sets), origin


if __name__ == "__main__":
    sys.exit(run_safely(main))
