"""The page of the fuzzing of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scripts.evidence.tables import markdown_table


def fuzz_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Outcomes by kind of file, the cases that were wrong, and by which code; as Markdown."""
    made = [result for result in results if result["cases"]]
    rows: list[tuple[object, ...]] = []
    for result in results:
        said = {name: result["said"].get(name, 0) for name in ("refused", "taken", "crash", "hang", "written outside")}
        counts = [f"{result['cases']:,} of {result['goal']:,}", *(f"{count:,}" for count in said.values())]
        rows.append((result["kind"], *counts, f"{result['longest']:.1f} s", f"{result['memory']:,} MB"))
    heads = ("file", "cases", "refused", "taken", "crashes", "hangs", "written outside", "longest", "memory")
    wrong = [f"    {result['kind']}, {line}\n" for result in made for line in result["wrong"][:5]]
    total, seconds = sum(result["cases"] for result in made), sum(result["seconds"] for result in made)
    missing = sum(result["goal"] - result["cases"] for result in results)
    left = f"**{missing:,} of the cases are still to be made.** The command above goes on where it stopped.\n\n"
    codes = ", ".join(sorted({result["code"] for result in made}))
    return (
        f"{left if missing else ''}{markdown_table(heads, rows)}\n"
        + ("Cases that ended otherwise, five of a kind at most:\n\n" + "".join(wrong) + "\n" if wrong else "")
        + f"Code {codes}; {total:,} cases in {seconds:,.0f} s.\n"
    )
