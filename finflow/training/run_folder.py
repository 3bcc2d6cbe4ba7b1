"""The folder of a run: made under a new name, filled when training begins, removed if nothing came of it."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path

import torch

from finflow.config import dump_run
from finflow.errors import OutputError
from finflow.files import check_writable, missing_folders, reason, remove_empty, write_atomically
from finflow.guard.checkpoint_folder import MODELS, CheckpointFolder
from finflow.offline.dataset import OfflineDataset, card_file
from finflow.training.checkpoints.manifest import MANIFEST, manifest_text
from finflow.training.checkpoints.run_resolver import CONFIG
from finflow.training.data.offline_data import CARD
from finflow.training.data.training_data import TrainingData


class RunFolder:
    """The folder of a run.

    Parameters
    ----------
    logs : Path
        A new folder is made in it.
    existing : Path, optional
        The folder of a run that goes on in place.

    Raises
    ------
    OutputError
        If it cannot be made or written to; nothing is left of it then.
    """

    def __init__(self, logs: Path, existing: Path | None = None) -> None:
        self._made: list[Path] = []
        if existing is None:
            missing = missing_folders(logs)
            self.path = new_run_folder(logs)
            self._made = [self.path, *missing]
        else:
            self.path = existing
        try:
            check_writable(self.path / MODELS)
        except BaseException:
            self.discard_if_unused()
            raise

    def describe(self, training_data: TrainingData, dataset: OfflineDataset, device: torch.device) -> None:
        """Write the configuration, the data card and the manifest, and clear what a killed process left."""
        CheckpointFolder(self.path / MODELS).sweep()
        write_atomically(self.path / CONFIG, dump_run(training_data.config))
        write_atomically(self.path / CARD, card_file(dataset))
        write_atomically(self.path / MANIFEST, manifest_text(training_data, device))

    @property
    def is_unused(self) -> bool:
        """True if it was made here and holds no checkpoint: there is nothing in it to go on from."""
        return bool(self._made) and not any((self.path / MODELS).glob("checkpoint_*"))

    def discard_if_unused(self) -> None:
        """Remove it, and the folders made for it, if it is unused."""
        if self.is_unused:
            shutil.rmtree(self.path, ignore_errors=True)
            remove_empty(self._made)
            self._made = []


def new_run_folder(logs: Path) -> Path:
    """A folder named after now, ``YYYYMMDD_HHMMSS``; numbered where there is one already.

    Raises
    ------
    OutputError
        If it cannot be made.
    """
    name = datetime.now().strftime("%Y%m%d_%H%M%S")
    for suffix in ("", *(f"_{number}" for number in range(2, 1000))):
        folder = logs / f"{name}{suffix}"
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            if isinstance(error, FileExistsError) and folder.is_dir():
                continue
            raise OutputError(f"cannot make {folder}: {reason(error, 'output.logs_dir')}") from error
        return folder
    raise OutputError(f"cannot make a new run folder in {logs}")
