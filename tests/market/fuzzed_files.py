"""Files of prices with random faults, and what must come of every one: a panel, or one line that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from finflow.cli.modes import main
from finflow.config import MarketConfig
from finflow.errors import MarketError
from finflow.market.sources.cash import read_rates
from finflow.market.sources.panel_loader import load_panel
from tests.market.made_price_files import FILES

_KINDS = tuple(FILES)
_CELLS = (
    *(
        b"",
        b"0",
        b"-1",
        b"1e400",
        b"nan",
        b"NA",
        b"1.234",
        b"1,234.5",
        b"1.234.567",
        b"inf",
        b"True",
        b"#",
        b'"',
        b"\0",
    ),
    *(
        b"2015-13-45",
        b"2015-01-06",
        b"20150106",
        b"0001-01-01",
        b"9999-12-31",
        b"2015-01-06T23:00:00Z",
        b"\xff",
        b"\xef",
    ),
    *(
        b"Close",
        b"Date",
        b"ticker",
        b"Price",
        b"=1+1",
        b"'",
        b"9" * 400,
        b"\r",
        b" ",
        b";",
        b"\t",
        b"\xe2\x88\x92" + b"5",
    ),
)


def faulty(content: bytes, rng: np.random.Generator) -> bytes:
    """A file with up to four faults: of cells, of lines, of bytes, or of its end."""
    for _ in range(rng.integers(1, 5)):
        lines = content.split(b"\n")
        row = int(rng.integers(0, min(len(lines), 6))) if rng.random() < 0.5 else int(rng.integers(0, len(lines)))
        kind = rng.integers(0, 7)
        if kind == 0:
            cells = lines[row].split(b",")
            cells[int(rng.integers(0, len(cells)))] = _CELLS[int(rng.integers(0, len(_CELLS)))]
            lines[row] = b",".join(cells)
        elif kind == 1:
            lines.insert(row, lines[int(rng.integers(0, len(lines)))])
        elif kind == 2:
            del lines[row]
        elif kind == 3:
            lines[row] = lines[row].replace(b",", (b";", b"\t", b" ", b",,")[int(rng.integers(0, 4))])
        elif kind == 4:
            place = int(rng.integers(0, len(lines[row]) + 1))
            lines[row] = lines[row][:place] + bytes([int(rng.integers(0, 256))]) + lines[row][place:]
        elif kind == 5:
            lines = lines[: row + 1]
        content = b"\n".join(lines)
        if kind == 6:
            content = content[: int(rng.integers(0, len(content) + 1))]
    return content


def written(folder: Path, seed: int) -> tuple[Path, dict[str, Any]]:
    """One of the made files with faults, and its settings; a Parquet file and a folder as they are but for bytes."""
    rng = np.random.default_rng(seed)
    file = FILES[_KINDS[int(rng.integers(0, len(_KINDS)))]]
    path = folder / f"{seed}.csv"
    path = file.write(file.right, path) or path
    for part in sorted(path.iterdir()) if path.is_dir() else [path]:
        part.write_bytes(faulty(part.read_bytes(), rng))
    return path, {"source": "csv", "path": path, **file.settings}


def read_or_refused(read: Callable[[], object]) -> str:
    """Name of what came: read, or refused in one line. Anything else is an error."""
    try:
        read()
    except MarketError as error:
        return "refused" if "\n" not in str(error) and len(str(error)) < 3000 else f"more than a line: {error}"
    return "read"


def readers(folder: Path, seed: int) -> list[str]:
    """Outcomes of the readers of prices and of rates for one seed."""
    path, settings = written(folder, seed)
    found = [read_or_refused(lambda: load_panel(MarketConfig(**settings)))]
    if path.is_file():
        found.append(read_or_refused(lambda: read_rates(path)))
    return found


def inspected(folder: Path, seed: int) -> str:
    """Outcome of --mode inspect for one seed: it answers, or ends with status 2."""
    path, _ = written(folder, seed)
    return {0: "read", 2: "refused"}[main(["--mode", "inspect", str(path)])]
