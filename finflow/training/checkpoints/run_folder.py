"""Folders of runs: the resolver of paths that users give, the making of a new folder, its manifest, and the runtime.

A path is that of a checkpoint file, or of the folder of a run, a job or a study. A new folder is filled when training
begins, and removed if nothing came of it.
"""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from finflow.config import config_hash, dump_run
from finflow.errors import CheckpointError, OutputError, refuse
from finflow.files import check_writable, missing_folders, reason, remove_empty, write_atomically, write_together
from finflow.guard.checkpoint_folder import BEST, LATEST, MODELS, PRETRAINED, SUFFIX, CheckpointFolder
from finflow.json_text import format_json, read_object
from finflow.offline.dataset import OfflineDataset, card_file
from finflow.provenance import code_hash
from finflow.training.data.training_data import CARD, TrainingData

CONFIG = "config.yaml"
MANIFEST = "manifest.json"
JOB = "job.json"
NOTE = "training.json"
"""In the folder of each training of a job: what made it, the run's name, and whether it is finished."""
STUDY = "study.yaml"
LIBRARIES = ("finflow", "torch", "numpy", "pandas", "gymnasium", "skfolio", "safetensors", "pydantic")


class Kind(StrEnum):
    """Kinds of saved results; a job of several universes is a job, too."""

    CHECKPOINT = "checkpoint"
    RUN = "run"
    JOB = "job"
    STUDY = "study"


def is_plain_name(name: str) -> bool:
    """True for a name that leads to nowhere but a folder's own entry: no path, no way up."""
    return Path(name).name == name and name not in ("", "..") and "\0" not in name and "\\" not in name


def _plain_name(name: str) -> str:
    if not is_plain_name(name):
        raise ValueError("it is no plain name")
    return name


class JobNote(BaseModel):
    """Seeds of a job, or the names of its universes."""

    model_config = ConfigDict(strict=True)

    seed: int = 0
    seeds: Annotated[int, Field(gt=0, le=100_000)] = 1  # more are a mistake
    universes: list[Annotated[str, AfterValidator(_plain_name)]] = []


@dataclass(frozen=True)
class SavedRun:
    path: Path
    kind: Kind
    folder: Path

    @property
    def checkpoints(self) -> CheckpointFolder:
        """The run's checkpoints; those of a folder without ``models`` lie in the folder itself."""
        folder = self.path.parent if self.kind is Kind.CHECKPOINT else self.path
        return CheckpointFolder(folder / MODELS if (folder / MODELS).is_dir() else folder)

    def find_checkpoint(self, best: bool = False) -> Path:
        """The checkpoint file meant: the one given, or of a run folder the latest, or the best by validation.

        Raises CheckpointError if there is none.
        """
        if self.kind is Kind.CHECKPOINT:
            return self.path
        models = self.checkpoints
        wanted = [models.path(name) for name in ((BEST, LATEST) if best else (LATEST,))]
        for candidate in (*wanted, *models.numbered(), models.path(BEST), models.path(PRETRAINED)):
            if candidate.is_file():
                return candidate
        raise CheckpointError(
            f"{self.path} has no checkpoint; give a run folder of finflow or one of its checkpoint files"
        )

    @cached_property
    def note(self) -> JobNote:
        """The note that makes a folder a job's; a CheckpointError if it cannot be read, or says something else."""
        found = read_object(self.path / JOB)
        refuse(found is None, f"{self.path / JOB} cannot be read; start a new job", CheckpointError)
        try:
            return JobNote.model_validate(found)
        except ValidationError:
            raise CheckpointError(f"{self.path / JOB} is not one of a job; start a new job") from None

    @property
    def universes(self) -> list[str]:
        """Names of a job's universes, each with a job folder of that name; none where it has a single market."""
        return self.note.universes if self.kind is Kind.JOB else []

    def find_agents(self) -> list[Path]:
        """Checkpoints to evaluate together: the best of each agent of a job, in the order of their seeds; else `path`.

        Raises CheckpointError if an agent of the job is not finished, or the job is in several universes.
        """
        if self.kind is not Kind.JOB:
            return [self.path]
        if universes := self.universes:
            raise CheckpointError(
                f"{self.path} holds {len(universes)} universes: name one of them, as {self.path / universes[0]}"
            )
        first, count = self.note.seed, self.note.seeds
        found = [_finished_agent(self.path / f"seed-{seed}") for seed in range(first, first + count)]
        agents = [agent for agent in found if agent is not None]
        if len(agents) < count:
            raise CheckpointError(
                f"{self.path} has {len(agents)} of {count} agents; make the others with --mode train "
                f"--resume {self.path}"
            )
        return agents


def resolve_run(path: Path) -> SavedRun:
    """Find out what lies at a path.

    ``path``: a checkpoint file; a run folder, or its ``models`` folder; the folder of a job or of a study. A folder
    that is none of these is taken for that of a run without checkpoints.

    Raises CheckpointError if there is nothing.
    """
    beside = path.with_suffix(SUFFIX)
    if path.suffix in (".pt", ".pth", ".pkl") and beside.is_file():
        raise CheckpointError(f"{path} is a pickle, which finflow never reads: name {beside}, which lies beside it")
    if not path.exists():
        raise CheckpointError(
            f"{path} does not exist: name a run folder such as logs/20260131_120000, or a file in its models folder"
        )
    folder = path.resolve()
    if path.is_file():
        return SavedRun(path, Kind.CHECKPOINT, run_folder_of(path))
    for kind, name in ((Kind.JOB, JOB), (Kind.STUDY, STUDY)):
        if (path / name).is_file():
            return SavedRun(path, kind, folder)
    return SavedRun(path, Kind.RUN, folder.parent if folder.name == MODELS else folder)


def run_folder_of(checkpoint: Path) -> Path:
    """The run folder that a checkpoint file lies in, or the file's own folder; absolute."""
    parent = checkpoint.resolve().parent
    return parent.parent if parent.name == MODELS else parent


def best_in(run: Path) -> Path | None:
    """The checkpoint to evaluate of a run folder, as `SavedRun.find_checkpoint` finds it; None where it has none."""
    try:
        return resolve_run(run).find_checkpoint(best=True)
    except CheckpointError:
        return None


def _finished_agent(place: Path) -> Path | None:
    note = read_object(place / NOTE) or {}
    run = str(note.get("run"))
    return best_in(place / run) if note.get("finished") and is_plain_name(run) else None


def write_manifest(folder: Path, training_data: TrainingData, device: torch.device, **facts: object) -> None:
    """Write the configuration of a folder, and its manifest with ``facts`` added.

    Raises OutputError if they cannot be written.
    """
    config = training_data.config
    content = {
        "data": training_data.panel.describe(),
        "data_sha256": training_data.panel.sha256,
        "configuration_sha256": config_hash(config),
        "seed": config.train.seed,
        "device": str(device),
        "threads": config.train.threads,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "versions": {name: version(name) for name in LIBRARIES},
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        **facts,
    }
    write_together({folder / CONFIG: dump_run(config), folder / MANIFEST: format_json(content)})


def runtime(device: torch.device) -> dict[str, str]:
    """Code, versions and device that a result depends on; checkpoints record them."""
    return {
        "finflow": version("finflow"),
        "code": code_hash(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "python": platform.python_version(),
        "device": device.type,
        "threads": str(torch.get_num_threads()),
        "compile": "eager",  # updates are not compiled
    }


def changed(before: dict[str, str], now: dict[str, str]) -> str | None:
    """One line that says what differs between two runtimes; None where nothing does."""
    differences = [
        f"{name} was {before[name]}, is {now[name]}" for name in now if name in before and before[name] != now[name]
    ]
    if not differences:
        return None
    return (
        f"this run was written elsewhere or by other code ({'; '.join(differences)}): it goes on, but what follows may "
        "differ in the last bits, or in more, from a run that never stopped"
    )


class RunFolder:
    """The folder of a run; raises OutputError if it cannot be made or written to; nothing is left of it then."""

    def __init__(self, logs: Path, existing: Path | None = None) -> None:
        missing = missing_folders(logs)
        self.path = existing or new_run_folder(logs)
        self._made = [] if existing else [self.path, *missing]
        try:
            check_writable(self.path / MODELS)
            (self.path / MODELS).mkdir(exist_ok=True)
        except BaseException:
            self.discard_if_unused()
            raise

    def describe(self, training_data: TrainingData, dataset: OfflineDataset, device: torch.device) -> None:
        """Write the configuration, the data card and the manifest, and clear what a killed process left."""
        CheckpointFolder(self.path / MODELS).sweep()
        write_atomically(self.path / CARD, card_file(dataset))
        write_manifest(self.path, training_data, device)

    @property
    def is_unused(self) -> bool:
        """True if it was made here and holds no checkpoint: there is nothing in it to go on from."""
        return bool(self._made) and not any((self.path / MODELS).glob("checkpoint_*"))

    def discard_if_unused(self) -> None:
        if self.is_unused:
            shutil.rmtree(self.path, ignore_errors=True)
            remove_empty(self._made)
            self._made = []


def new_run_folder(logs: Path) -> Path:
    """A folder named after now, ``YYYYMMDD_HHMMSS``; numbered where there is one already.

    Raises OutputError if it cannot be made.
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
