"""Results of a study: the outcomes of its trials, and the best of them as configurations."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState

from finflow.config import Config, TuneConfig, changed_config, dump_config, replace_values
from finflow.errors import ConfigError
from finflow.experiments.tuning.trial_store import LOST
from finflow.files import write_atomically

BEST = "best.yaml"
PARETO = "pareto"
LONGEST_RETURNS = 1 << 26  # bytes, of a text of any length


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
    """Returns from their text.

    Raises
    ------
    ConfigError
        If it is none: something else has written to the storage.
    """
    try:
        content = zlib.decompressobj().decompress(base64.b64decode(text), LONGEST_RETURNS)
        return np.frombuffer(content, dtype="<f4").astype(np.float64)
    except (ValueError, TypeError, zlib.error) as error:
        raise ConfigError(f"the storage of the study holds returns of a trial that are damaged ({error})") from None


def reason_of(trial: FrozenTrial) -> str:
    """Reason why a trial failed."""
    return str(trial.user_attrs.get(ATTRIBUTES.reason, LOST))


def describe_outcome(trial: FrozenTrial, objective: Sequence[str]) -> str:
    if trial.state == TrialState.COMPLETE:
        return ", ".join(f"{name} {value:.4g}" for name, value in zip(objective, trial.values, strict=True))
    if trial.state == TrialState.PRUNED:
        last = max(trial.intermediate_values, default=0)
        return f"stopped at level {last}" + (f", {objective[0]} {trial.intermediate_values[last]:.4g}" if last else "")
    return f"failed: {reason_of(trial)}"


def front(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The Pareto front of the finished trials; of one objective the best, the earliest where several are."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if not complete:
        return []
    values = np.array([trial.values for trial in complete])
    if values.shape[1] == 1:
        return [complete[int(np.argmax(values[:, 0]))]]
    dominated = [bool(((values >= row).all(axis=1) & (values > row).any(axis=1)).any()) for row in values]
    return [trial for trial, is_dominated in zip(complete, dominated, strict=True) if not is_dominated]


def best_trial(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """The best trial; of several objectives the one of the front that ranks best over them on average."""
    best = front(trials)
    if not best:
        return None
    ranks = scipy.stats.rankdata(-np.array([trial.values for trial in best]), axis=0).mean(axis=1)
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
    chosen = changed_config(config, trial.params)
    tried = {"evaluation.configurations_tried": count_tried(config, trials)}
    chosen = replace_values(chosen, {"train.seeds": 1, "tune": TuneConfig(), **tried})
    outcome = describe_outcome(trial, config.tune.objective)
    heading = f"# Trial {trial.number} of the study {folder.name}: {outcome} on validation.\n"
    write_atomically(path, heading + dump_config(chosen))
