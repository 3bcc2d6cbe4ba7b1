"""Cache of downloaded prices on disk, by the hash of their content."""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from finflow.errors import OutputError
from finflow.files import write_atomically

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredPrices:
    """Prices from the store.

    Attributes
    ----------
    frame : DataFrame
        Equal to the one stored.
    facts : dict
        Facts stored with it.
    sha256 : str
        Hash of the Parquet file.
    """

    frame: pd.DataFrame
    facts: dict[str, Any]
    sha256: str


class PriceStore:
    """A folder of Parquet files named by their SHA-256, and one JSON manifest a request that points to one of them.

    The Parquet file is in place before the manifest that names it, and both appear by an atomic rename: a process
    killed at any moment leaves the old state or the new one. A file whose hash has changed is never returned, nor is
    a manifest whose own has. Processes that write at once do not disturb each other: the last manifest counts.

    Parameters
    ----------
    folder : Path
        Created at the first write.
    read : bool
        Whether to return stored prices; if False the store only writes (`--no-cache`).
    """

    def __init__(self, folder: Path, read: bool = True) -> None:
        self.folder = folder
        self.read = read
        self.damaged = False
        """Whether the last `get` found damaged data."""

    def get(self, request: Mapping[str, Any]) -> StoredPrices | None:
        """Return the prices stored for a request, or None if there are none, or damaged ones (with a warning)."""
        self.damaged = False
        manifest_path = self._manifest(request)
        if not self.read or not manifest_path.exists():
            return None
        try:
            manifest = json.loads(manifest_path.read_text("utf-8"))
            if manifest.pop("manifest_sha256", None) != _hash(manifest):
                raise ValueError("the SHA-256 of their manifest has changed")
            if _hash(manifest["request"]) != _hash(request):
                raise ValueError("their manifest answers another request")
            digest, facts = str(manifest["sha256"]), dict(manifest["facts"])
            content = (self.folder / f"{digest}.parquet").read_bytes()
            if hashlib.sha256(content).hexdigest() != digest:
                raise ValueError(f"the SHA-256 of {digest[:12]}.parquet has changed")
            return StoredPrices(pd.read_parquet(io.BytesIO(content)), facts, digest)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.damaged = True
            logger.warning("stored prices in %s are damaged (%s); fetching them again", self.folder, error)
            return None

    def put(self, request: Mapping[str, Any], frame: pd.DataFrame, facts: Mapping[str, Any]) -> StoredPrices:
        """Store a frame for a request, in place of an earlier one.

        Raises
        ------
        OutputError
            If the folder cannot be written.
        """
        buffer = io.BytesIO()
        frame.to_parquet(buffer)
        content = buffer.getvalue()
        digest = hashlib.sha256(content).hexdigest()
        manifest: dict[str, Any] = {"request": dict(request), "sha256": digest, "facts": dict(facts)}
        manifest["manifest_sha256"] = _hash(manifest)
        try:
            write_atomically(self.folder / f"{digest}.parquet", content)
            write_atomically(self._manifest(request), json.dumps(manifest, indent=1, sort_keys=True))
        except OutputError as error:
            raise OutputError(f"downloaded prices cannot be stored (market.cache_dir): {error}") from None
        return StoredPrices(frame, dict(facts), digest)

    def _manifest(self, request: Mapping[str, Any]) -> Path:
        return self.folder / f"{_hash(request)[:32]}.json"


def _hash(content: Mapping[str, Any]) -> str:
    """SHA-256 of canonical JSON."""
    canonical = json.dumps(dict(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
