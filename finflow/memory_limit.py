"""Limits on what reading a file may take of the machine's memory: some formats make gigabytes of a few kilobytes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

SHARE = 4  # of the memory: the bytes, what is read of them, and what is made of that
CELL = 8  # bytes


def fits_memory(size: int) -> bool:
    """True for so many bytes as one file may take: a quarter of the machine's memory."""
    return size <= machine_memory() // SHARE


def machine_memory() -> int:
    """Bytes of this machine's memory; a large number where the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return 1 << 36


def read_table(path: Path) -> pd.DataFrame:
    """Read a Parquet file, unless it would take more memory than a file may.

    A few kilobytes can hold billions of rows of one value, so the rows that its footer declares are counted first.

    Raises
    ------
    ValueError
        If it would.
    OSError, pyarrow.ArrowException
        If it cannot be read as Parquet.
    """
    import pandas as pd
    from pyarrow.parquet import read_metadata

    footer = read_metadata(path)
    if footer.num_rows < 0 or not fits_memory(footer.num_rows * max(footer.num_columns, 1) * CELL):
        raise ValueError(
            f"it holds {footer.num_rows:,} rows of {footer.num_columns:,} columns, more than this machine can take"
        )
    return pd.read_parquet(path)
