"""The tables that skfolio ships, read without importing it."""

from __future__ import annotations

from importlib.machinery import ModuleSpec

import pandas as pd
import pytest
import skfolio.datasets

from finflow.market.sources import shipped_tables


@pytest.mark.parametrize("name", ["sp500_dataset", "sp500_index", "factors_dataset"])
@pytest.mark.parametrize("found", [True, False], ids=["its file", "its loader"])
def test_a_shipped_table_is_what_skfolio_loads(name: str, found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file lies elsewhere, as another version may have it, skfolio's own loader reads it."""
    expected = getattr(skfolio.datasets, f"load_{name}")()
    if found:
        monkeypatch.setattr(shipped_tables, "import_module", None)
    else:
        elsewhere = ModuleSpec("skfolio", None, is_package=True)
        elsewhere.submodule_search_locations = ["nowhere"]
        monkeypatch.setattr(shipped_tables, "find_spec", lambda package: elsewhere)
    pd.testing.assert_frame_equal(shipped_tables.shipped_table(name), expected, check_exact=True)
