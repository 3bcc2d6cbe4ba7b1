"""A study's folder: `study.yaml`, by which it goes on; `best.yaml`, which a training takes as it is; `reports/`.

Its trials are in an Optuna storage, all of them from the beginning on, and any number of workers take them from there.
"""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from finflow.config import Config, EvaluationConfig, config_hash, dump_config, load_config
from finflow.errors import ConfigError
from finflow.experiments.tuning.search_space import described, of_configuration, space_of
from finflow.experiments.tuning.trial_store import Book, Counts, open_book, reaching, shown_url, wait_until_filled
from finflow.experiments.tuning.trial_training import Arena, arena_of
from finflow.files import LOCK, check_writable, exclusively, write_atomically
from finflow.training.checkpoints.run_resolver import STUDY
from finflow.training.trainer import new_run_folder

__all__ = ["SCRATCH", "STUDY", "TRIES", "Tuning", "begin", "open_study", "stored_study"]

STUDIES = "studies"
SCRATCH = "scratch"
TRIES = "tries"
HEAD = "# A search for better values; it goes on with: python main.py --mode tune --resume {folder}\n"


@dataclass(frozen=True)
class Tuning:
    """A study that is open.

    Attributes
    ----------
    config : Config
    folder : Path
    arena : Arena
    book : Book
    """

    config: Config
    folder: Path
    arena: Arena
    book: Book

    @property
    def where(self) -> str:
        """The storage, for people."""
        return shown_url(self.config.tune.storage, self.folder)

    @property
    def counts(self) -> Counts:
        """How far it is.

        Raises
        ------
        ConfigError
            If the storage cannot be reached.
        """
        with reaching(self.where):
            return self.book.counts


def stored_study(folder: Path) -> Config:
    """The configuration that a study was begun with.

    Raises
    ------
    ConfigError
        If there is none.
    """
    if not (folder / STUDY).is_file():
        raise ConfigError(f"{folder} is no folder of a study: it has no {STUDY}; name one such as logs/{STUDIES}/...")
    return load_config(folder / STUDY, environ={})


def begin(config: Config, folder: Path | None = None) -> Tuning:
    """Open a study: that of a folder, or a new one, with all its trials.

    Parameters
    ----------
    config : Config
    folder : Path, optional
        Of a study that goes on; a new one under ``output.logs_dir`` when left out.

    Raises
    ------
    FinflowError
        If the storage cannot be used, the study is another, or there is too little data for its folds. A folder and a
        study that were made are removed then.
    """
    space = space_of(config)
    arena = arena_of(config, tuple(space), config.tune.n_trials)
    made = folder is None
    folder = (new_run_folder(config.output.logs_dir / STUDIES) if folder is None else folder).absolute()
    book, fresh = None, False
    try:
        check_writable(folder)
        book, fresh = open_study(config, folder, arena, create=made)
        name = book.study.study_name
        tune = config.tune.model_copy(update={"name": name})
        config = config.model_copy(update={"tune": tune})
        with reaching(shown_url(tune.storage, folder)), exclusively(folder / LOCK):
            head = HEAD.format(folder=shlex.quote(str(folder)))
            write_atomically(folder / STUDY, head + dump_config(config), mode=0o600)
            if fresh:
                book.study.set_user_attr(TRIES, tune.n_trials)
            if fresh or not made:
                book.fill(of_configuration(config, space))
            else:
                wait_until_filled(book)
            arena = replace(arena, config=config, tries=int(book.study.user_attrs.get(TRIES, tune.n_trials)))
    except BaseException:
        if book is not None and fresh:
            book.discard()
        if made:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return Tuning(config, folder, arena, book)


def open_study(config: Config, folder: Path, arena: Arena, create: bool) -> tuple[Book, bool]:
    name = config.tune.name or folder.resolve().name
    return open_book(config.tune, folder, name, _identity(config, arena), arena.levels, create)


def _identity(config: Config, arena: Arena) -> dict[str, str]:
    """What makes a study what it is: what may not change while its trials are compared with each other."""
    tune = config.tune
    learning = config.model_copy(update={"evaluation": EvaluationConfig(protocol=config.evaluation.protocol)})
    return {
        "objective": ", ".join(tune.objective),
        "space": json.dumps({key: described(values) for key, values in space_of(config).items()}, sort_keys=True),
        "market": f"{arena.panel.sha256[:16]}, {arena.panel.dates[0]} to {arena.panel.dates[-1]}",
        "tune.folds": str(tune.folds),
        "tune.seeds": f"{tune.seeds} from {config.train.seed}",
        "tune.aggregate": f"{tune.aggregate}, {tune.deviations:g} deviations",
        "configuration": config_hash(learning)[:16],
    }
