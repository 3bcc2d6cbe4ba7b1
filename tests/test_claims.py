"""The page of claims: it is that of the kept results, puts claims where their intervals say, and prose quotes it."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from scripts.evidence import stale_pages
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
def present() -> str:
    """The code that was the present one when the page was made."""
    (found,) = re.findall(
        r"^The present code is ([0-9a-f]{16})\.$", (FOLDER / "index.md").read_text("utf-8"), re.MULTILINE
    )
    return str(found)


@pytest.fixture(scope="module")
def claims(kept: Kept, present: str) -> dict[str, Claim]:
    return read_claims(kept, present)


def wrong_quotes(text: str, claims: Mapping[str, Claim]) -> Iterator[str]:
    """Figures that link to a claim which is not or no longer theirs."""
    for figure, name in QUOTE.findall(text):
        if name not in claims or figure not in claims[name].quotes:
            yield f"{figure} for {name}, which is {claims[name].figure if name in claims else 'no claim'}"


def rollouts(variant: str, *ends: float, **entries: object) -> dict[str, Any]:
    made = {"variant": variant, "code": "a" * 16, **entries}
    return {f"{variant}-{seed}": {**made, "seed": seed, "end": end, "own": end} for seed, end in enumerate(ends)}


def test_the_page_is_that_of_the_kept_results(kept: Kept, present: str) -> None:
    page = unmarked((FOLDER / "index.md").read_text("utf-8")).rpartition("\nDefaults ")[0]
    made = EVIDENCE["_text"]("index", **claims_facts(kept, FOLDER, present)) + codes_line(kept, present)
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
        low, high = (0.0, 0.0) if claim.found is None else claim.found.bounds
        beyond = claim.found is not None and (low > (claim.above or 0.0) if claim.below is None else high < claim.below)
        assert (f'<a id="{claim.name}">' in shown) == beyond
        assert (f'<a id="{claim.name}">' in missing) == (not beyond)


def test_results_of_earlier_code_do_not_mix_with_those_of_the_present() -> None:
    """Sixty nulls without a find, of which ten are of the present code: those ten alone are counted."""
    nulls = rollouts("rollouts-permuted-monthly", *[0.0] * 60, confidence=0.0)
    for seed in range(10):
        nulls[f"rollouts-permuted-monthly-{seed}"]["code"] = "b" * 16
    shares = [read_claims({"rollouts": nulls}, code)["nulls"] for code in ("a" * 16, "b" * 16, "c" * 16)]
    assert [claim.found is not None and len(claim.found.values) for claim in shares] == [50, 10, 60]
    assert [claim.is_shown for claim in shares] == [True, False, True]  # below 10 %: exact bounds of 7.1, 30.8 and 6 %


def test_results_of_the_same_bits_count_with_those_of_the_present(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "codes.txt").write_text(f"{'a' * 16}\n{'b' * 16}\n")
    monkeypatch.setattr(stale_pages, "SAME", tmp_path / "codes.txt")
    nulls = rollouts("rollouts-permuted-monthly", *[0.0] * 60, confidence=0.0)
    for seed, code in enumerate(["b", *"c" * 9]):
        nulls[f"rollouts-permuted-monthly-{seed}"]["code"] = code * 16
    claim = read_claims({"rollouts": nulls}, "b" * 16)["nulls"]
    assert claim.found is not None
    assert len(claim.found.values) == 51
    (tmp_path / "rollouts.md").touch()
    assert f"| same bits ({'a' * 8}), present |" in claims_facts({"rollouts": nulls}, tmp_path, "b" * 16)["shown"]
    assert len(read_claims({"rollouts": nulls}, "c" * 16)["nulls"].found.values) == 9


def test_a_page_without_results_has_claims_that_are_not_measured(kept: Kept) -> None:
    assert all(claim.found is None for claim in read_claims({page: {} for page in kept}).values())


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
    claim = read_claims({"rollouts": rollouts("rollouts-mean-reverting", *ends)})["planted-fast"]
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
