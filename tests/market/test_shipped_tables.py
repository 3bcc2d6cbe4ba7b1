"""The tables that skfolio ships, read without importing it."""

from __future__ import annotations

import pandas as pd
import pytest
import skfolio.datasets

from finflow.market.sources.shipped_tables import shipped_table


@pytest.mark.parametrize("name", ["sp500_dataset", "sp500_index", "factors_dataset"])
def test_a_shipped_table_is_what_skfolio_loads(name: str) -> None:
    expected = getattr(skfolio.datasets, f"load_{name}")()
    pd.testing.assert_frame_equal(shipped_table(name), expected, check_exact=True)
