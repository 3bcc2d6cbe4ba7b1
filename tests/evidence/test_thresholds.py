"""Every mode and preset judges the same looks of a training, and the table says at how many it found a reason."""

from __future__ import annotations

from pathlib import Path

from scripts.evidence.thresholds import count_reasons, reasons_in, threshold_table, threshold_variants
from tests.short_trainings import SHORT, config_in, write_prices

LOOKS = [{"loss": 1.0, "kl": 0.2, "reward": 0.1}] * 12


def test_looks_are_judged_by_mode_and_preset() -> None:
    assert reasons_in([LOOKS], "strict", "standard") == {"kl": 12, "critic": 0, "actor": 0, "reward": 0, "any": 12}
    assert reasons_in([LOOKS], "robust", "standard")["any"] == 0
    spiked = [*LOOKS, {"loss": 4.0, "kl": 0.0, "reward": 0.0}]
    assert reasons_in([spiked], "strict", "aggressive") == {"kl": 12, "critic": 0, "actor": 0, "reward": 1, "any": 13}


def test_a_small_training_is_counted(tmp_path: Path) -> None:
    keys = {"market.source": "csv", "market.path": str(write_prices(tmp_path / "prices.csv"))}
    dates = {"market.train_end": "2011-06-30", "market.validation_end": "2011-10-31"}
    found = count_reasons(config_in(tmp_path, {**SHORT, **keys, **dates, "guard.stability.quiet": 0}))
    assert found["looks"] > 0
    names = [variant.name for variant in threshold_variants(1)]
    table = threshold_table([{"variant": names[0], **found}])
    assert "| embedded |" in table
    assert "| strict | conservative |" in table
