"""A study: its search space, its folder, and its trials in an Optuna storage.

The folder holds `study.yaml`, from which the study resumes; `best.yaml` and `pareto/`, configurations to train with;
and `reports/`. All trials are in the storage from the beginning on, and any number of workers take them from there.
"""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from finflow.arrays import FloatArray
from finflow.config import (
    Config,
    EvaluationConfig,
    SearchedConfig,
    TuneConfig,
    changed_config,
    config_hash,
    dump_config,
    holds_whole_numbers,
    load_config,
    replace_values,
)
from finflow.config.loading import values_by_key
from finflow.errors import ConfigError, command
from finflow.experiments.tuning.trial_store import LOST, TrialStore, open_store
from finflow.experiments.tuning.trial_training import TrialContext, trial_context
from finflow.files import LOCK, check_writable, exclusively, write_atomically
from finflow.training.checkpoints.run_folder import STUDY
from finflow.training.trainer import new_run_folder

STUDIES = "studies"
SCRATCH = "scratch"
LONGEST_RETURNS = 1 << 26  # bytes: a short text may unpack to any length
HEAD = "# A search for better values; it continues with: {command}\n"

Value: TypeAlias = bool | int | float | str
Distribution: TypeAlias = CategoricalDistribution | FloatDistribution | IntDistribution
Space: TypeAlias = Mapping[str, Distribution]

DEFAULT_SPACE: dict[str, SearchedConfig] = {
    "bcell.alpha_init": SearchedConfig(low=0.1, high=1.5, log=True),
    "bcell.cql_alpha": SearchedConfig(low=0.5, high=20.0, log=True),
    "bcell.expansion": SearchedConfig(choices=(8, 16, 32)),
    "bcell.actor_lr": SearchedConfig(low=5e-4, high=1e-2, log=True),
    "bcell.critic_lr": SearchedConfig(low=2e-4, high=5e-3, log=True),
    "bcell.iql_expectile": SearchedConfig(low=0.5, high=0.95),
    "bcell.iql_temperature": SearchedConfig(low=0.5, high=10.0, log=True),
    "bcell.gamma": SearchedConfig(low=0.9, high=0.999),
    "bcell.tau": SearchedConfig(low=0.003, high=0.03, log=True),
    "bcell.n_quantiles": SearchedConfig(choices=(8, 16, 32, 64)),
    "bcell.hidden_dim": SearchedConfig(choices=(64, 128, 256)),
    "train.offline_batch_size": SearchedConfig(choices=(128, 256, 512)),
    "train.online_batch_size": SearchedConfig(choices=(64, 128, 256, 512)),
    "objectives.sharpe_beta": SearchedConfig(low=0.0, high=2.0),
    "objectives.lambda_turn": SearchedConfig(low=0.01, high=1.0, log=True),
    "objectives.lambda_cvar": SearchedConfig(low=0.0, high=10.0),
    "objectives.lambda_dd": SearchedConfig(low=0.0, high=2.0),
}
"""Search space where ``tune.space`` is not given and the online phase is soft actor-critic."""

_SAC_ONLY = ("bcell.alpha_init", "bcell.cql_alpha", "bcell.expansion", "bcell.tau", "train.online_batch_size")
ON_POLICY_SPACE: dict[str, SearchedConfig] = {
    **{key: value for key, value in DEFAULT_SPACE.items() if key not in _SAC_ONLY},
    "online.learning_rate": SearchedConfig(low=3e-5, high=3e-3, log=True),
    "online.clip": SearchedConfig(low=0.05, high=0.4),
    "online.gae_lambda": SearchedConfig(low=0.8, high=1.0),
    "online.entropy_coefficient": SearchedConfig(low=1e-4, high=0.1, log=True),
}
"""The same where it learns on-policy."""


def space_of(config: Config) -> dict[str, Distribution]:
    """Distributions of the keys that a configuration searches, in the order of their names."""
    default = ON_POLICY_SPACE if config.online.on_policy else DEFAULT_SPACE
    space = default if config.tune.space is None else config.tune.space
    return {key: _distribution(key, space[key]) for key in sorted(space)}


def _distribution(key: str, searched: SearchedConfig) -> Distribution:
    if searched.choices is not None:
        return CategoricalDistribution(searched.choices)
    if searched.low is None or searched.high is None:
        raise ValueError(f"{key} has neither a range nor choices")
    if holds_whole_numbers(key):
        step = 1 if searched.step is None else int(searched.step)
        return IntDistribution(int(searched.low), int(searched.high), log=searched.log, step=step)
    return FloatDistribution(searched.low, searched.high, log=searched.log, step=searched.step)


def suggest_values(trial: Trial, space: Space) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for key, one in space.items():
        if isinstance(one, IntDistribution):
            values[key] = trial.suggest_int(key, one.low, one.high, step=one.step, log=one.log)
        elif isinstance(one, FloatDistribution):
            values[key] = trial.suggest_float(key, one.low, one.high, step=one.step, log=one.log)
        else:
            values[key] = trial.suggest_categorical(key, one.choices)  # type: ignore[assignment]
    return values


def _initial_values(config: Config, space: Space) -> dict[str, object]:
    """The configuration's values of the searched keys, as far as the space holds them."""
    values, held = values_by_key(config), dict[str, object]()
    for key, distribution in space.items():
        with suppress(ValueError):  # Optuna's, for a value outside of a distribution
            create_trial(value=0.0, params={key: values[key]}, distributions={key: distribution})
            held[key] = values[key]
    return held


def describe_values(distribution: Distribution) -> str:
    if isinstance(distribution, CategoricalDistribution):
        return "one of " + ", ".join(str(choice) for choice in distribution.choices)
    text = f"{distribution.low:g} to {distribution.high:g}"
    if distribution.log:
        text += ", logarithmic"
    step = distribution.step
    return text + (f", step {step:g}" if step is not None and step != 1 else "")


@dataclass(frozen=True)
class Tuning:
    """A study that is open."""

    folder: Path
    context: TrialContext
    store: TrialStore


def stored_study(folder: Path) -> Config:
    """The configuration that a study was begun with; a ConfigError if there is none."""
    if not (folder / STUDY).is_file():
        raise ConfigError(
            f"{folder} is not the folder of a study: it has no {STUDY}; name one such as logs/{STUDIES}/..."
        )
    return load_config(folder / STUDY, environ={})


def begin(config: Config, folder: Path | None = None) -> Tuning:
    """Open a study: that of a folder, or a new one, with all its trials.

    Raises FinflowError if the storage cannot be used, the study is another, or there is too little data for its folds.
    A folder and a study that were made are removed then.
    """
    space = space_of(config)
    context = trial_context(config, tuple(space), config.tune.n_trials)
    new = folder is None
    folder = (new_run_folder(config.output.logs_dir / STUDIES) if folder is None else folder).absolute()
    try:
        check_writable(folder)
        store = open_study(config, folder, context, _initial_values(config, space) if new else None)
        config = replace_values(config, {"tune.name": store.study.study_name})
        with exclusively(folder / LOCK):
            head = HEAD.format(command=command("tune", "--resume", folder))
            write_atomically(folder / STUDY, head + dump_config(config), mode=0o600)
            if not new:
                store.fill({})
    except BaseException:
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return Tuning(folder, replace(context, config=config, tries=store.tries), store)


def open_study(
    config: Config, folder: Path, context: TrialContext, first: Mapping[str, Any] | None = None
) -> TrialStore:
    name = config.tune.name or folder.resolve().name
    return open_store(config.tune, folder, name, _identity(config, context), context.levels, first)


def _identity(config: Config, context: TrialContext) -> dict[str, str]:
    """Settings that may not change while the trials are compared with each other, in words."""
    tune = config.tune
    learning = replace_values(config, {"evaluation": EvaluationConfig(protocol=config.evaluation.protocol)})
    return {
        "objective": ", ".join(tune.objective),
        "space": json.dumps({key: describe_values(values) for key, values in space_of(config).items()}, sort_keys=True),
        "market": f"{context.panel.sha256[:16]}, {context.panel.dates[0]} to {context.panel.dates[-1]}",
        "tune.folds": str(tune.folds),
        "tune.seeds": f"{tune.seeds} from {config.train.seed}",
        "configuration": config_hash(learning)[:16],
    }


BEST = "best.yaml"
PARETO = "pareto"


SEEDS, UPDATES, EXCESS, REASON, CODE = "seeds", "updates", "excess", "reason", "code"
"""Attributes of a trial: seeds of its trainings; updates; daily returns less cash; why it failed; hash of the code."""


def encode_returns(returns: FloatArray) -> str:
    """Returns as text for a storage, in single precision."""
    return base64.b64encode(zlib.compress(returns.astype("<f4").tobytes(), 9)).decode("ascii")


def decode_returns(text: str) -> FloatArray:
    """Returns from their text; a ConfigError if it is none: something else has written to the storage."""
    try:
        content = zlib.decompressobj().decompress(base64.b64decode(text), LONGEST_RETURNS)
        return np.frombuffer(content, dtype="<f4").astype(np.float64)
    except (ValueError, TypeError, zlib.error) as error:
        raise ConfigError(f"the storage of the study holds returns of a trial that are damaged ({error})") from None


def reason_of(trial: FrozenTrial) -> str:
    return str(trial.user_attrs.get(REASON, LOST))


def describe_outcome(trial: FrozenTrial, objective: Sequence[str]) -> str:
    if trial.state == TrialState.COMPLETE:
        return ", ".join(f"{name} {value:.4g}" for name, value in zip(objective, trial.values, strict=True))
    if trial.state == TrialState.PRUNED:
        last = max(trial.intermediate_values, default=0)
        return f"stopped at level {last}" + (f", {objective[0]} {trial.intermediate_values[last]:.4g}" if last else "")
    return f"failed: {reason_of(trial)}"


def best_trial(study: Study) -> FrozenTrial | None:
    """The best trial, the first where several are; of several objectives the one of the front that ranks best over
    them on average."""
    front = study.best_trials
    if not front:
        return None
    ranks = scipy.stats.rankdata(-np.array([trial.values for trial in front]), axis=0).mean(axis=1)
    return front[int(np.argmin(ranks))]


def count_tried(config: Config, trials: Sequence[FrozenTrial]) -> int:
    """Configurations that the best was chosen among: all that showed a result, and those tried before the study."""
    seen = sum(trial.state in (TrialState.COMPLETE, TrialState.PRUNED) for trial in trials)
    return config.evaluation.configurations_tried - 1 + max(seen, 1)


def write_best(folder: Path, config: Config, study: Study) -> FrozenTrial | None:
    """Write the best configuration as ``best.yaml``, and those of a front into ``pareto``; the best trial, if any.

    It says how many configurations it was chosen among, which the deflated Sharpe ratio of its report takes account of.
    """
    best = best_trial(study)
    if best is None:
        return None
    chosen = {folder / BEST: best}
    if len(config.tune.objective) > 1:
        front = {folder / PARETO / f"trial-{trial.number}.yaml": trial for trial in study.best_trials}
        chosen |= front
        for path in set((folder / PARETO).glob("trial-*.yaml")) - front.keys():
            path.unlink(missing_ok=True)
    tried = {"evaluation.configurations_tried": count_tried(config, study.get_trials(deepcopy=False))}
    changes = {**tried, "train.seeds": 1, "tune": TuneConfig()}
    for path, trial in chosen.items():
        outcome = describe_outcome(trial, config.tune.objective)
        heading = f"# Trial {trial.number} of the study {folder.name}: {outcome} on validation.\n"
        write_atomically(path, heading + dump_config(replace_values(changed_config(config, trial.params), changes)))
    return best
