"""Behaviour data for a training: reused where they are what would be collected now, collected otherwise."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from finflow.config import Config
from finflow.env.decision_process import DecisionProcess
from finflow.errors import FinflowError
from finflow.files import check_writable, missing_folders, remove_empty
from finflow.offline.collection import collect
from finflow.offline.data_card import card_lines
from finflow.offline.dataset import OfflineDataset, load_dataset, made_by, save_dataset
from finflow.offline.minari_files import export_minari, import_minari, minari_folder
from finflow.training.data.training_data import TrainingData, prepare

CARD = "dataset.json"
"""The data card's name in a run folder."""
SHOWN_BY = ("version", "prices", "training window", "features", "costs and execution")
"""Entries of ``made_by`` that decide the observations of a dataset."""


class OfflineData(NamedTuple):
    """A dataset and where it lies. ``reused``: whether the file was there before."""

    dataset: OfflineDataset
    path: Path
    reused: bool

    def lines(self) -> list[str]:
        """Lines for the user: the source of the data, and the table of the data card."""
        card = self.dataset.meta["card"]
        how = "reused" if self.reused else "collected"
        return [f"behaviour data: {_size(card)}, {how}: {self.path}", *card_lines(card)]


def offline_data(
    config: Config, training_data: TrainingData, path: Path | None = None, recollect: bool = False
) -> OfflineData:
    """Collect the behaviour data, or reuse what was collected by the same code from the same market.

    ``path``: the npz file; one named after what made it, under ``output.offline_dir``, when left out. ``recollect``:
    collect even where the file is there, and write over it.

    Raises FinflowError if the file was made by something else; it is never overwritten then.
    """
    process, window = training_data.learning, training_data.train
    expected = made_by(config, process, window)
    given = path
    if path is None:
        name = hashlib.sha256(json.dumps(expected, sort_keys=True).encode()).hexdigest()[:16]
        path = config.output.offline_dir / f"dataset-{name}.npz"
    if path.exists() and not recollect:
        return OfflineData(load_dataset(path, expected), path, reused=True)
    made = missing_folders(path.parent)
    check_writable(path.parent, "output.offline_dir" if given is None else "folder")
    try:
        dataset = collect(config, process, window)
        save_dataset(path, dataset)
    except BaseException:
        remove_empty(made)
        raise
    return OfflineData(dataset, path, reused=False)


def describe_dataset(path: Path) -> list[str]:
    """The table of a saved dataset's card, whatever made it."""
    card = load_dataset(path).meta["card"]
    made = f"filled {card['first_fill']} to {card['last_fill']}"
    return [f"{path}: {_size(card)}, {made}", *card_lines(card), f"full data card: {path.with_suffix('.json')}"]


def _size(card: Mapping[str, Any]) -> str:
    return f"{card['transitions']:,} decisions in {card['episodes']:,} episodes"


def export_dataset(config: Config, path: Path, name: str, root: Path | None, full: bool) -> list[str]:
    """Write a saved dataset as a Minari dataset; ``full`` observations need the market that it was made from."""
    folder = minari_folder(name, root)
    process: DecisionProcess | None = None
    if full:
        training_data = prepare(config)
        process = training_data.learning
        expected = made_by(config, process, training_data.train)
        dataset = load_dataset(path, {name: expected[name] for name in SHOWN_BY})
    else:
        dataset = load_dataset(path)
    size = export_minari(dataset, folder, name, process)
    return [f"exported {len(dataset):,} decisions to {folder} ({size:,.0f} MB)"]


def import_dataset(path: Path, name: str, root: Path | None) -> list[str]:
    """Save a Minari dataset of ours as npz, with its data card; a file that is there is not written over."""
    if path.exists():
        raise FinflowError(f"{path} is there already; use another name, or delete it")
    folder = minari_folder(name, root)
    dataset = import_minari(folder)
    save_dataset(path, dataset)
    return [f"imported {len(dataset):,} decisions from {folder}", *describe_dataset(path)]
