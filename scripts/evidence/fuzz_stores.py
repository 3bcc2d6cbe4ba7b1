"""Checkpoints and databases of studies, as `fuzz_readers` has the other kinds of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import optuna
from numpy.random import Generator
from optuna.trial import TrialState

from finflow.config import TuneConfig
from finflow.errors import CheckpointError
from finflow.experiments.tuning import trial_store
from finflow.experiments.tuning.optuna_storage import JOURNAL, display_url, storage_errors
from finflow.experiments.tuning.study_report import returns_of
from finflow.experiments.tuning.study_results import ATTRIBUTES, best_trial, describe_outcome, encode_returns
from scripts.evidence.fuzz_checkpoints import Fuzzer, facts_replaced, header_entries, header_size, tensors_replaced
from scripts.evidence.fuzz_mutations import Mutation, json_changed, sqlite_changed
from scripts.evidence.fuzz_readers import Reader

IDENTITY = {"objective": "sharpe", "space": '{"bcell.tau": "0.1 to 1"}', "market": "m"}
PATIENCE = 0.5
"""Seconds, in place of 60, for a study that another process may be beginning just now."""


def _study(folder: Path, journal: bool) -> Reader:
    """A study with trials in every state, opened and summed up as a search does that goes on."""
    path = folder / ("study.journal" if journal else "study.db")
    tune = TuneConfig(storage=f"{JOURNAL}{path}" if journal else f"sqlite:///{path}", n_trials=6, objective=("sharpe",))
    store, _ = trial_store.open_store(tune, folder, "study", IDENTITY, 4, create=True)
    store.fill({"bcell.tau": 0.2})
    rng = np.random.default_rng(0)
    for state in (TrialState.COMPLETE, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL):
        trial = store.claim()
        if trial is None:
            raise RuntimeError("a study that was begun has no trial that waits")
        trial.suggest_float("bcell.tau", 0.1, 1.0)
        trial.report(float(rng.random()), 1)
        trial.set_user_attr(ATTRIBUTES.excess, encode_returns(rng.random(20)))
        done = state == TrialState.COMPLETE
        store.study.tell(trial, float(rng.random()) if done else None, state)
    _close(store)

    def read(found: Path) -> None:
        trial_store.__dict__["WRITE_TIMEOUT"] = PATIENCE
        opened = None
        try:
            opened, _ = trial_store.open_store(tune, folder, "study", IDENTITY, 4, create=False)
            with storage_errors(display_url(tune.storage, folder)):
                trials, _ = opened.trials, opened.counts
                best = best_trial(trials)
                for trial in [*trials, *([] if best is None else [best])]:
                    describe_outcome(trial, tune.objective)
                returns_of(trials)
        finally:
            if opened is not None:
                _close(opened)

    def by_sql(rng: Generator, content: bytes) -> bytes:
        return sqlite_changed(rng, content, folder / "changed.db")

    return Reader(path, (path.read_bytes(),), (json_changed,) if journal else (by_sql,), read)


def _close(store: trial_store.TrialStore) -> None:
    """Leave no connection behind: there are thousands of studies to open."""
    engine = getattr(store.storage, "engine", None)
    if engine is not None:
        engine.dispose()


def _sqlite(folder: Path) -> Reader:
    return _study(folder, journal=False)


def _journal(folder: Path) -> Reader:
    return _study(folder, journal=True)


def _checkpoint(folder: Path) -> Reader:
    """Checkpoints of both phases, opened as a resume opens them, with a restored state."""
    fuzzer = Fuzzer.trained(folder)

    def by_hash(change: Callable[[Generator, bytes, Path], bytes]) -> Mutation:
        return lambda rng, content: change(rng, content, fuzzer.base)

    return Reader(
        fuzzer.path,
        tuple(fuzzer.originals),
        (header_size, header_entries, by_hash(facts_replaced), by_hash(tensors_replaced)),
        lambda path: _said(fuzzer.opened(path.read_bytes())),
    )


def _said(outcome: str) -> None:
    """Raise the outcome of `Fuzzer.opened` as other readers raise theirs."""
    if outcome == "refused":
        raise CheckpointError("refused")
    if outcome != "taken":
        raise RuntimeError(outcome)


STORES: dict[str, Callable[[Path], Reader]] = {
    "safetensors: checkpoint": _checkpoint,
    "study: SQLite": _sqlite,
    "study: journal": _journal,
}
optuna.logging.set_verbosity(optuna.logging.ERROR)
