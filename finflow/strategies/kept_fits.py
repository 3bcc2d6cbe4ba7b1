"""Fits of skfolio's optimisers on disk, so that a later report on the same prices need not make them again.

A file holds the fits for one panel, a line each: the optimiser, the SHA-256 of the returns, the weights (float64) in
hexadecimal, and the SHA-256 of all that. It is that of the code, the versions of libraries and the processor's kernels
that made the fits: they are the same to the bit as fits made again. Several processes may append to it. A line that is
not what was written is left out, and its fit made again; the folder may be removed at any time.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from finflow.arrays import FloatArray
from finflow.config import MarketConfig
from finflow.files import reason
from finflow.provenance import code_hash, package_version
from finflow.strategies.strategy import Memo

LIBRARIES = ("skfolio", "cvxpy-base", "clarabel", "scikit-learn", "scipy", "numpy")  # whose versions may change a fit

logger = logging.getLogger(__name__)


class KeptFits(dict[tuple[str, bytes], FloatArray]):
    """Fits by optimiser and digest of the returns; one that is set is appended to the file too.

    ``update`` takes those that another process has made, and kept; a pickle holds the fits alone. Without ``read`` it
    begins with none. Where the file cannot be written, a warning says so.
    """

    def __init__(self, path: Path, read: bool = True) -> None:
        super().__init__()
        self._path: Path | None = path
        self._append(b"\n")  # closes off a line that a crash has cut short
        with suppress(OSError):  # of which `_append` has warned
            for line in path.read_bytes().splitlines() if read else ():
                content, _, digest = line.rpartition(b" ")
                if hashlib.sha256(content).hexdigest().encode() == digest:
                    name, returns, weights = content.decode().split(" ")
                    super().__setitem__((name, bytes.fromhex(returns)), np.frombuffer(bytes.fromhex(weights)))

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def __setitem__(self, key: tuple[str, bytes], fit: FloatArray) -> None:
        super().__setitem__(key, fit)
        content = f"{key[0]} {key[1].hex()} {fit.tobytes().hex()}".encode()
        self._append(content + b" " + hashlib.sha256(content).hexdigest().encode() + b"\n")

    def _append(self, line: bytes) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a+b", buffering=0) as stream:
                stream.write(line)
        except OSError as error:
            logger.warning("fits cannot be kept in %s: %s", self._path.parent, reason(error, "market.cache_dir"))
            self._path = None


def kept_fits(market: MarketConfig, panel_sha256: str) -> Memo:
    """Give the fits made before for a panel; without `market.use_cache` none, and those made anew replace them."""
    kernels = sorted({one.get("architecture", "") for one in threadpool_info()})
    versions = [f"{name} {package_version(name)}" for name in LIBRARIES]
    deciding = "\n".join([panel_sha256, code_hash(("strategies",)), *versions, *kernels])
    name = hashlib.sha256(deciding.encode()).hexdigest()[:32]
    return KeptFits(market.cache_dir / "fits" / f"{name}.txt", market.use_cache)
