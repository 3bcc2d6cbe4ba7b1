"""Evidence is made once, kept while code and configuration stay, and shown as it was measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.evidence import offline_methods
from scripts.evidence import variants as evidence
from scripts.evidence.results import kept_results
from scripts.evidence.stale_pages import unmarked
from scripts.evidence.variants import Variant, run_missing
from tests.short_trainings import SHORT, write_prices

ROOT = Path(__file__).parents[2]
SMALL = SHORT | {"market.source": "csv", "market.train_end": "2011-06-30", "market.validation_end": "2011-10-31"}


@pytest.fixture
def variant(tmp_path: Path) -> Variant:
    """A training of a second."""
    keys = {**SMALL, "market.path": str(write_prices(tmp_path / "prices.csv"))}
    return Variant("small", (0, 1), keys, measure=offline_methods.pretrain_and_measure)


def test_what_was_measured_is_kept_until_code_or_configuration_change(
    variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, trained = tmp_path / "page.json", []

    def results(seeds: tuple[int, ...]) -> list[dict[str, Any]]:
        measured = dataclasses.replace(variant, seeds=seeds, measure=lambda config: {"n": trained.append(1)})
        return run_missing([measured], path, tmp_path / "runs")

    first = results((0,))
    assert results((0,)) == first
    again = results((0, 1))
    assert again[0] == first[0]
    assert kept_results(path) == {"small-0": first[0], "small-1": again[1]}
    assert len(trained) == 2
    monkeypatch.setattr(evidence, "code_hash", lambda: "other")
    assert results((0,))[0]["code"] == "other"


def test_the_offline_phase_is_measured_alone_and_tabled_beside_its_families(variant: Variant, tmp_path: Path) -> None:
    keys = {**variant.overrides, "offline.method": "bc", "offline.evaluation_updates": 3}
    own = Variant("offline-bc", (0,), keys, measure=offline_methods.pretrain_and_measure)
    (first,) = run_missing([own], tmp_path / "page.json", tmp_path / "runs")
    measured = first["validation"]["end"]
    assert set(measured) == set(offline_methods.SHOWN)
    results = [first, {**first, "seed": 1, "validation": {"end": {**measured, "sharpe": measured["sharpe"] + 0.1}}}]
    families = offline_methods.family_results(own.config(0, tmp_path))
    assert all(len(variants) == 6 for variants in families.values())
    shown = offline_methods.offline_table(results, families)
    mean = np.mean([result["validation"]["end"]["sharpe"] for result in results])
    assert f"| offline-bc | 2 seeds | {mean:.2f} ± " in shown
    assert shown.count("6 variants") == len(families)


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "evidence").glob("*.md")), ids=lambda path: path.stem)
def test_a_page_of_evidence_begins_with_its_text(path: Path) -> None:
    text = (ROOT / "scripts" / "evidence" / "pages" / path.name).read_text("utf-8")
    assert unmarked(path.read_text("utf-8")).startswith(text[: text.index("{{")] if "{{" in text else text)
