"""Behaviour data for a training: reused where they are what would be collected now, collected otherwise."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from finflow.config import Config
from finflow.files import check_writable
from finflow.offline.card import card_lines
from finflow.offline.collection import collect
from finflow.offline.dataset import OfflineDataset, load_dataset, made_by, save_dataset
from finflow.training.materials import Materials

CARD = "dataset.json"
"""The data card's name in a run folder."""


class OfflineData(NamedTuple):
    """A dataset and where it lies.

    Attributes
    ----------
    dataset : OfflineDataset
    path : Path
    reused : bool
        Whether the file was there before.
    """

    dataset: OfflineDataset
    path: Path
    reused: bool

    def lines(self) -> list[str]:
        """What to tell whoever waits for it: where the data come from, and the table of the data card."""
        card = self.dataset.meta["card"]
        how = "reused" if self.reused else "collected"
        head = f"behaviour data: {card['transitions']:,} decisions in {card['episodes']:,} episodes, {how}: {self.path}"
        return [head, *card_lines(card)]


def offline_data(
    config: Config, materials: Materials, path: Path | None = None, recollect: bool = False
) -> OfflineData:
    """Collect the behaviour data, or reuse what was collected by the same code from the same market.

    Parameters
    ----------
    config : Config
    materials : Materials
    path : Path, optional
        The npz file; one named after what made it, under ``output.offline_dir``, when left out.
    recollect : bool
        Collect even where the file is there, and write over it.

    Raises
    ------
    FinflowError
        If the file was made by something else; it is never overwritten then.
    """
    window = materials.split.train
    expected = made_by(config, materials.process, window)
    given = path
    if path is None:
        name = hashlib.sha256(json.dumps(expected, sort_keys=True).encode()).hexdigest()[:16]
        path = config.output.offline_dir / f"dataset-{name}.npz"
    if path.exists() and not recollect:
        return OfflineData(load_dataset(path, expected), path, reused=True)
    check_writable(path.parent, "output.offline_dir" if given is None else "folder", keep=False)
    dataset = collect(config, materials.process, window)
    save_dataset(path, dataset)
    return OfflineData(dataset, path, reused=False)
