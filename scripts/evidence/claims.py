"""The page of claims: what the kept results of all pages of evidence show, what they do not, and what they cost.

scripts/evidence/claims.yaml lists the claims. One is shown where the whole 95 % interval is beyond its bound.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from scripts.evidence.claim_measures import MEASURES, NOTHING, Found
from scripts.evidence.results import Result, kept_results
from scripts.evidence.stale_pages import same_bits
from scripts.evidence.tables import markdown_table, mean_interval, share_interval

LISTED = Path(__file__).with_name("claims.yaml")
GOAL_HOURS = 6.0
Kept = Mapping[str, Mapping[str, Result]]
"""Page -> name -> result."""


@dataclass(frozen=True)
class Claim:
    """A claim and what was found of it.

    Attributes
    ----------
    name : str
        Its anchor on the page, which prose links to.
    above, below : float, optional
        Bound that the whole interval must be beyond; 0 from above where there is neither.
    found : Found, optional
        None where the page has no results of it.
    """

    name: str
    page: str
    says: str
    above: float | None
    below: float | None
    decimals: int
    found: Found | None

    @property
    def limit(self) -> float:
        """The bound."""
        return self.below if self.below is not None else self.above or 0.0

    @property
    def is_shown(self) -> bool:
        """True where the whole interval is beyond the bound."""
        if self.found is None:
            return False
        low, high = self.found.bounds
        return low > self.limit if self.below is None else high < self.limit

    @property
    def bound(self) -> str:
        """The bound in words."""
        share = self.found is not None and self.found.is_share
        shown = f"{100 * self.limit:.0f} %" if share else f"{round(self.limit, self.decimals):g}"
        return f"{'above' if self.below is None else 'below'} {shown}"

    @property
    def figure(self) -> str:
        """The figure with its interval."""
        if self.found is None:
            return "not measured"
        values = self.found.values
        if self.found.is_share:
            shown = f"{sum(values)} of {len(values)}: {share_interval(int(sum(values)), len(values))}"
        else:
            shown = mean_interval(values, self.decimals)
        return shown + (f"; {self.found.note}" if self.found.note else "")

    @property
    def reason(self) -> str:
        """The reason that it is not shown."""
        if self.found is None:
            return "not measured"
        low, high = self.found.bounds
        if not math.isfinite(low):
            return "one value has no interval"
        return "the interval includes the bound" if low <= self.limit <= high else "beyond the bound on the other side"

    @property
    def codes(self) -> list[str]:
        """Hashes of the code that made its results; results of peers have none."""
        return sorted({one["code"] for one in self.found.used if "code" in one}) if self.found else []

    @property
    def quotes(self) -> set[str]:
        """Forms in which prose may quote it."""
        if self.found is None:
            return set()
        values, (low, high) = self.found.values, self.found.bounds
        if not self.found.is_share:
            mean, span = float(np.mean(values)), f"{min(values):.1f} to {max(values):.1f}"
            return {f"{mean:.{self.decimals}f}", mean_interval(values, self.decimals), span}
        hits, count = int(sum(values)), len(values)
        return {f"{hits or 'none'} of {count}", *(f"{100 * share:.1f} %" for share in (hits / count, low, high))}


def read_claims(kept: Kept, present: str = "") -> dict[str, Claim]:
    """The claims of the list, measured on kept results: of each variant on those of the present code, if it has any."""
    listed = yaml.safe_load(LISTED.read_text("utf-8"))["claims"]
    newest = {page: _newest(results, present) for page, results in kept.items()}
    return {name: _claim(name, dict(given), newest) for name, given in listed.items()}


def _newest(results: Mapping[str, Result], present: str) -> dict[str, Result]:
    """Results without those of other code whose variant the present code, or code of the same bits, made too."""
    codes = same_bits(present)
    made = {one["variant"] for one in results.values() if "variant" in one and one.get("code") in codes}
    return {name: one for name, one in results.items() if one.get("variant") not in made or one.get("code") in codes}


def _claim(name: str, given: dict[str, Any], kept: Kept) -> Claim:
    page, says, decimals = given.pop("page"), given.pop("says"), given.pop("decimals", 2)
    above, below = given.pop("above", None), given.pop("below", None)
    (measure,) = given.keys() & MEASURES.keys()
    found = MEASURES[measure](kept[page], given.pop(measure), **given) if page in kept else NOTHING
    below = found.below if found.below is not None else below
    return Claim(name, page, says, above, below, decimals, found if len(found.values) else None)


def kept_pages(folder: Path) -> Kept:
    """The kept results of every page."""
    return {path.stem: kept_results(path) for path in sorted(folder.glob("*.json"))}


def claims_facts(kept: Kept, pages: Path, present: str) -> dict[str, Any]:
    """The tables of the page, by their names in its text.

    Parameters
    ----------
    pages : Path
        Folder of the pages that are linked to.
    present : str
        Hash of the present code.
    """
    claims = read_claims(kept, present).values()
    shown = [_row(claim, pages, present) for claim in claims if claim.is_shown]
    missing = [[*_row(claim, pages, present), claim.reason] for claim in claims if not claim.is_shown]
    heads = ("claim", "figure, 95 % interval", "bound", "sample", "page", "code")
    return {
        "shown": markdown_table(heads, shown),
        "missing": markdown_table((*heads, "why not"), missing),
        "minutes": _minutes(kept, pages),
        "present": present,
    }


def codes_line(kept: Kept, present: str) -> str:
    """The code that made the figures of the page, as `stale_pages` reads it."""
    codes = {code for claim in read_claims(kept, present).values() for code in claim.codes}
    return f"Code {', '.join(sorted(codes))}.\n"


def _row(claim: Claim, pages: Path, present: str) -> list[object]:
    page = f"[{claim.page}]({claim.page}.md)" if (pages / f"{claim.page}.md").is_file() else claim.page
    told = {code: f"same bits ({code[:8]})" for code in same_bits(present)} | {present: "present"}
    codes = ", ".join(told.get(code, f"earlier ({code[:8]})") for code in claim.codes)
    size = len(claim.found.values) if claim.found else "-"
    return [f'<a id="{claim.name}"></a>{claim.says}', claim.figure, claim.bound, size, page, codes or "-"]


class Minutes(NamedTuple):
    """Processor minutes of a page's results, and of those of peers, which are made with other programs."""

    own: float
    peers: float


def minutes_of(results: Mapping[str, Result], stated: Mapping[str, float]) -> Minutes:
    """Processor minutes that results took: as they hold them, or as stated by the name before its number."""
    seconds = {
        name: sum(one["seconds"].values()) if "seconds" in one else stated.get(re.sub(r"-\d+$", "", name), 0.0)
        for name, one in results.items()
    }
    own, peers = (
        [seconds[name] for name, one in results.items() if ("code" in one) == is_own] for is_own in (True, False)
    )
    return Minutes(sum(own) / 60, sum(peers) / 60)


def _minutes(kept: Kept, pages: Path) -> str:
    """A Markdown table of the minutes of each page, and a sentence on their sum."""
    stated = yaml.safe_load(LISTED.read_text("utf-8"))["seconds"]
    taken = {page: minutes_of(kept[page], stated) for page in kept if (pages / f"{page}.md").is_file()}
    rows: list[Iterable[object]] = [
        (f"[{page}]({page}.md)", len(kept[page]), f"{own:.0f}", f"{peers:.0f}") for page, (own, peers) in taken.items()
    ]
    own, peers = (sum(column) for column in zip(*taken.values(), strict=True))
    rows.append(("sum", sum(len(kept[page]) for page in taken), f"{own:.0f}", f"{peers:.0f}"))
    within = "within" if own / 60 < GOAL_HOURS else "more than"
    hours = f"In all {own / 60:.1f} core-hours, {within} the goal of {GOAL_HOURS:g}, and {peers / 60:.1f} of peers."
    return markdown_table(("page", "results", "processor minutes", "of peers"), rows) + f"\n{hours}\n"
