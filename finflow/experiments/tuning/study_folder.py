"""The folder of a study, and the best of its trials.

It holds `study.yaml`, by which the study goes on; `best.yaml`, which a training takes as it is, and `pareto/`; and
`reports/`. The trials are in an Optuna storage, all of them from the beginning on, and any number of workers take them
from there.
"""

from __future__ import annotations

import base64
import json
import shlex
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState
from scipy import stats

from finflow.config import Config, EvaluationConfig, TuneConfig, config_hash, dump_config, load_config
from finflow.errors import ConfigError
from finflow.experiments.tuning.optuna_storage import display_url, storage_errors
from finflow.experiments.tuning.search_space import configured, described, of_configuration, space_of
from finflow.experiments.tuning.trial_store import Counts, TrialStore, open_store
from finflow.experiments.tuning.trial_training import TrialContext, trial_context
from finflow.files import LOCK, check_writable, exclusively, write_atomically
from finflow.training.checkpoints.run_resolver import STUDY
from finflow.training.trainer import new_run_folder

__all__ = [
    "ATTRIBUTES",
    "BEST",
    "SCRATCH",
    "STUDY",
    "TRIES",
    "Tuning",
    "begin",
    "best_trial",
    "count_tried",
    "decode_returns",
    "describe_outcome",
    "encode_returns",
    "front",
    "open_study",
    "stored_study",
    "write_best",
]

BEST = "best.yaml"
PARETO = "pareto"
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
    context : TrialContext
    store : TrialStore
    """

    config: Config
    folder: Path
    context: TrialContext
    store: TrialStore

    @property
    def where(self) -> str:
        """The storage, for people."""
        return display_url(self.config.tune.storage, self.folder)

    @property
    def counts(self) -> Counts:
        """Number of trials in each state.

        Raises
        ------
        ConfigError
            If the storage cannot be reached.
        """
        with storage_errors(self.where):
            return self.store.counts


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
    context = trial_context(config, tuple(space), config.tune.n_trials)
    made = folder is None
    folder = (new_run_folder(config.output.logs_dir / STUDIES) if folder is None else folder).absolute()
    store, fresh = None, False
    try:
        check_writable(folder)
        store, fresh = open_study(config, folder, context, create=made)
        name = store.study.study_name
        tune = config.tune.model_copy(update={"name": name})
        config = config.model_copy(update={"tune": tune})
        with storage_errors(display_url(tune.storage, folder)), exclusively(folder / LOCK):
            head = HEAD.format(folder=shlex.quote(str(folder)))
            write_atomically(folder / STUDY, head + dump_config(config), mode=0o600)
            if fresh:
                store.study.set_user_attr(TRIES, tune.n_trials)
            if fresh or not made:
                store.fill(of_configuration(config, space))
            else:
                store.wait_until_filled()
            context = replace(context, config=config, tries=int(store.study.user_attrs.get(TRIES, tune.n_trials)))
    except BaseException:
        if store is not None and fresh:
            store.discard()
        if made:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return Tuning(config, folder, context, store)


def open_study(config: Config, folder: Path, context: TrialContext, create: bool) -> tuple[TrialStore, bool]:
    name = config.tune.name or folder.resolve().name
    return open_store(config.tune, folder, name, _identity(config, context), context.levels, create)


def _identity(config: Config, context: TrialContext) -> dict[str, str]:
    """Settings that may not change while the trials are compared with each other, in words."""
    tune = config.tune
    learning = config.model_copy(update={"evaluation": EvaluationConfig(protocol=config.evaluation.protocol)})
    return {
        "objective": ", ".join(tune.objective),
        "space": json.dumps({key: described(values) for key, values in space_of(config).items()}, sort_keys=True),
        "market": f"{context.panel.sha256[:16]}, {context.panel.dates[0]} to {context.panel.dates[-1]}",
        "tune.folds": str(tune.folds),
        "tune.seeds": f"{tune.seeds} from {config.train.seed}",
        "tune.aggregate": f"{tune.aggregate}, {tune.deviations:g} deviations",
        "configuration": config_hash(learning)[:16],
    }


class _Attributes(NamedTuple):
    """Names of what is kept with a trial."""

    seeds: str = "seeds"
    updates: str = "updates"
    units: str = "units"
    excess: str = "excess"
    reason: str = "reason"
    code: str = "code"


ATTRIBUTES = _Attributes()


def encode_returns(returns: NDArray[np.float64]) -> str:
    """Returns as text for a storage, in single precision."""
    return base64.b64encode(zlib.compress(returns.astype("<f4").tobytes(), 9)).decode("ascii")


def decode_returns(text: str) -> NDArray[np.float64]:
    """Returns from their text."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<f4").astype(np.float64)


def describe_outcome(trial: FrozenTrial, objective: Sequence[str]) -> str:
    """Describe the outcome of a trial in a few words."""
    if trial.state == TrialState.COMPLETE:
        return ", ".join(f"{name} {value:.4g}" for name, value in zip(objective, trial.values, strict=True))
    if trial.state == TrialState.PRUNED:
        last = max(trial.intermediate_values, default=0)
        return f"stopped at level {last}" + (f", {objective[0]} {trial.intermediate_values[last]:.4g}" if last else "")
    return f"failed: {trial.user_attrs.get(ATTRIBUTES.reason, 'its worker was lost')}"


def front(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials that no other beats in every objective; of one objective the best, the earliest where several are."""
    found = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if not found:
        return []
    values = np.array([trial.values for trial in found])
    if values.shape[1] == 1:
        return [found[int(np.argmax(values[:, 0]))]]
    beaten = [bool(((values >= row).all(axis=1) & (values > row).any(axis=1)).any()) for row in values]
    return [trial for trial, out in zip(found, beaten, strict=True) if not out]


def best_trial(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """The best trial; of several objectives the one of the front that ranks best over them on average."""
    best = front(trials)
    if not best:
        return None
    ranks = stats.rankdata(-np.array([trial.values for trial in best]), axis=0).mean(axis=1)
    return best[int(np.argmin(ranks))]


def count_tried(config: Config, trials: Sequence[FrozenTrial]) -> int:
    """Configurations that the best was chosen among: all that showed a result, and those tried before the study."""
    seen = sum(trial.state in (TrialState.COMPLETE, TrialState.PRUNED) for trial in trials)
    return config.evaluation.configurations_tried - 1 + max(seen, 1)


def write_best(folder: Path, config: Config, trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """Write the best configuration as ``best.yaml``, and those of a front into ``pareto``; the best trial, if any.

    It says how many configurations it was chosen among, which the deflated Sharpe ratio of its report takes account of.
    """
    best = best_trial(trials)
    if best is None:
        return None
    _write(folder / BEST, folder, config, best, trials)
    if len(config.tune.objective) > 1:
        kept = set()
        for trial in front(trials):
            kept.add(path := folder / PARETO / f"trial-{trial.number}.yaml")
            _write(path, folder, config, trial, trials)
        for path in (folder / PARETO).glob("trial-*.yaml"):
            if path not in kept:
                path.unlink(missing_ok=True)
    return best


def _write(path: Path, folder: Path, config: Config, trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> None:
    chosen = configured(config, trial.params)
    evaluation = chosen.evaluation.model_copy(update={"configurations_tried": count_tried(config, trials)})
    train = chosen.train.model_copy(update={"seeds": 1})
    chosen = chosen.model_copy(update={"train": train, "evaluation": evaluation, "tune": TuneConfig()})
    outcome = describe_outcome(trial, config.tune.objective)
    heading = f"# Trial {trial.number} of the study {folder.name}: {outcome} on validation.\n"
    write_atomically(path, heading + dump_config(chosen))
