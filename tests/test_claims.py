"""The page of claims: it is that of the kept results, puts claims where their intervals say, and prose quotes it."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from scripts.evidence.claims import Claim, Kept, claims_facts, codes_line, kept_pages, minutes_of, read_claims
from scripts.evidence.stale_pages import unmarked

ROOT = Path(__file__).resolve().parents[1]
PROSE = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
EVIDENCE = runpy.run_module("scripts.evidence.__main__", run_name="evidence")
FOLDER: Path = EVIDENCE["FOLDER"]
QUOTE = re.compile(r"\[([^\]]+)\]\((?:[\w./]*evidence/)?index\.md#([\w-]+)\)")


@pytest.fixture(scope="module")
def kept() -> Kept:
    return kept_pages(EVIDENCE["KEPT"])


@pytest.fixture(scope="module")
def claims(kept: Kept) -> dict[str, Claim]:
    return read_claims(kept)


def wrong_quotes(text: str, claims: Mapping[str, Claim]) -> Iterator[str]:
    """Figures that link to a claim which is not or no longer theirs."""
    for figure, name in QUOTE.findall(text):
        if name not in claims or figure not in claims[name].quotes:
            yield f"{figure} for {name}, which is {claims[name].figure if name in claims else 'no claim'}"


def rollouts(variant: str, *ends: float, **entries: object) -> dict[str, Any]:
    made = {"variant": variant, "code": "a" * 16, **entries}
    return {f"{variant}-{seed}": {**made, "seed": seed, "end": end, "own": end} for seed, end in enumerate(ends)}


def test_the_page_is_that_of_the_kept_results(kept: Kept) -> None:
    page = unmarked((FOLDER / "index.md").read_text("utf-8")).rpartition("\nDefaults ")[0]
    (present,) = re.findall(r"^The present code is ([0-9a-f]{16})\.$", page, re.MULTILINE)
    made = EVIDENCE["_text"]("index", **claims_facts(kept, FOLDER, present)) + codes_line(kept)
    assert page == made, "run python -m scripts.evidence index"


def test_every_figure_that_prose_quotes_is_that_of_the_page(claims: dict[str, Claim]) -> None:
    assert not [wrong for path in PROSE for wrong in wrong_quotes(path.read_text("utf-8"), claims)]
    quoted = {name for _, name in QUOTE.findall((ROOT / "README.md").read_text("utf-8"))}
    assert {"planted-fast", "nulls", "verdict-false"} <= quoted


def test_a_figure_that_the_page_no_longer_has_is_found() -> None:
    claims = read_claims({"rollouts": rollouts("rollouts-mean-reverting", 0.91, 0.93, 0.92)})
    link = "(docs/evidence/index.md#planted-fast)"
    assert not list(wrong_quotes(f"[0.92]{link}, [0.9 to 0.9]{link}, [0.92 ± 0.02]{link}", claims))
    assert list(wrong_quotes(f"[0.93]{link}", claims)) == ["0.93 for planted-fast, which is 0.92 ± 0.02"]
    assert list(wrong_quotes("[1](evidence/index.md#other)", claims)) == ["1 for other, which is no claim"]


def test_no_claim_whose_interval_includes_its_bound_is_shown(claims: dict[str, Claim]) -> None:
    page = (FOLDER / "index.md").read_text("utf-8")
    shown, missing = page.split("## What is not shown")
    for claim in claims.values():
        assert (f'<a id="{claim.name}">' in shown) != (f'<a id="{claim.name}">' in missing)
    for mean, half in re.findall(r"\| (-?[\d.]+) ± ([\d.]+)[^|]* \| above 0 \|", shown):
        assert float(mean) >= float(half)


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        ((0.1, -0.1, 0.1), "the interval includes the bound"),
        ((-0.1, -0.11, -0.1), "beyond the bound on the other side"),
        ((0.9,), "one value has no interval"),
        ((), "not measured"),
    ],
)
def test_a_claim_that_is_not_shown_says_why(ends: tuple[float, ...], reason: str) -> None:
    claim = read_claims({"rollouts": rollouts("rollouts-lognormal", *ends)})["planted-lognormal"]
    assert (claim.is_shown, claim.reason) == (False, reason)


def test_differences_are_of_the_same_seed_and_shares_are_exact(tmp_path: Path) -> None:
    """Differences of .1 and .12: mean .11, half of the interval 12.7 times .01."""
    nulls = rollouts("rollouts-permuted-monthly", *[0.0] * 20, confidence=0.0)
    nulls["rollouts-permuted-monthly-7"]["confidence"] = 0.9
    parts = rollouts("control-default", 0.8, 0.7, 0.1) | rollouts("control-no-expansion", 0.7, 0.58)
    kept = {"rollouts": parts | nulls}
    claims = read_claims(kept)
    assert claims["part-expansion"].figure == "0.11 ± 0.13"
    assert not claims["part-expansion"].is_shown
    assert claims["nulls"].figure == "1 of 20: 5.0% (0.1% to 24.9%)"
    assert not claims["nulls"].is_shown
    (tmp_path / "rollouts.md").touch()
    assert "| present |" in claims_facts(kept, tmp_path, "a" * 16)["missing"]
    assert f"| earlier ({'a' * 8}) |" in claims_facts(kept, tmp_path, "b" * 16)["missing"]


def test_minutes_are_as_kept_or_as_stated_and_peers_are_apart() -> None:
    results: dict[str, dict[str, Any]] = {
        "told-0": {"code": "a", "seconds": {"offline": 30.0, "online": 60.0}},
        "untold-0": {"code": "a"},
        "peer-0": {"seconds": {"processor": 6.0}},
    }
    assert minutes_of(results, {"untold": 90.0}) == (3.0, 0.1)
