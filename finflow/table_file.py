"""Parquet files as tables, of a size that this machine can take."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from finflow.memory_limit import fits_memory

CELL = 8  # bytes


def read_table(path: Path) -> pd.DataFrame:
    """Read a Parquet file, unless it would take more memory than a file may.

    A few kilobytes can hold billions of rows of one value, so the rows that its footer tells are counted first.

    Raises
    ------
    ValueError
        If it would.
    OSError, pyarrow.ArrowException
        If it cannot be read as Parquet.
    """
    from pyarrow.parquet import read_metadata

    told = read_metadata(path)
    if told.num_rows < 0 or not fits_memory(told.num_rows * max(told.num_columns, 1) * CELL):
        raise ValueError(
            f"it holds {told.num_rows:,} rows of {told.num_columns:,} columns, more than this machine can take"
        )
    return pd.read_parquet(path)
