"""The report of a study: its trials as plain tables for the page, and the probability that its choice is overfitted."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from finflow.config import Config
from finflow.errors import EvidenceError
from finflow.evaluation.multi_run.study_figures import Searched, Tried
from finflow.evaluation.multi_run.study_page import PAGE, StudyData, study_files
from finflow.evaluation.statistics.backtest_overfitting import Overfitting, overfitting
from finflow.experiments.tuning.search_space import described, space_of
from finflow.experiments.tuning.study_folder import ATTRIBUTES, best_trial, count_tried, decode_returns, front
from finflow.experiments.tuning.trial_store import LOST
from finflow.experiments.tuning.trial_training import TrialContext
from finflow.files import write_together
from finflow.provenance import code_hash

__all__ = ["REPORTS", "RETURNS", "report_study", "returns_of"]

REPORTS = "reports"
RETURNS = "returns.npz"
FEWEST = 4  # finished trials for importances
_STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def report_study(config: Config, context: TrialContext, folder: Path, name: str, trials: Sequence[FrozenTrial]) -> Path:
    """Write the report into the study's folder: the page, its numbers and figures, and the trials' returns.

    Returns
    -------
    Path
        Of the page.
    """
    space = space_of(config)
    returns = returns_of(trials)
    found, without = _overfitting(returns)
    best = best_trial(trials)
    objective, counted = config.tune.objective, len(trials)
    first, last = context.folds[0].tests[0], context.folds[-1].tests[-1]
    data = StudyData(
        title=f"Search for {' and '.join(objective)}: {name}",
        subtitle=f"{counted} trials, judged from {context.panel.dates[first.start]} to "
        f"{context.panel.dates[last.stop - 1]}, before the test window, net of costs",
        objective=objective,
        trials=tuple(_tried(trial) for trial in sorted(trials, key=lambda trial: trial.number)),
        space=tuple(_searched(key, values) for key, values in space.items()),
        importances=_importances(objective, trials),
        front=tuple(trial.number for trial in front(trials)),
        best=None if best is None else best.number,
        tried=count_tried(config, trials),
        overfit=found,
        without_overfit=without,
        facts=_facts(config, context),
    )
    files: dict[Path, bytes | str] = {folder / REPORTS / name: text for name, text in study_files(data).items()}
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        trials=np.array(list(returns), dtype=np.int64),
        excess=np.stack(list(returns.values()), axis=1) if returns else np.zeros((0, 0)),
    )
    files[folder / REPORTS / RETURNS] = buffer.getvalue()
    write_together(files)
    return folder / REPORTS / PAGE


def returns_of(trials: Sequence[FrozenTrial]) -> dict[int, NDArray[np.float64]]:
    """Trial -> daily returns in excess of cash over the judged windows, of trials that came to their end."""
    return {
        trial.number: decode_returns(trial.user_attrs[ATTRIBUTES.excess])
        for trial in sorted(trials, key=lambda trial: trial.number)
        if trial.state == TrialState.COMPLETE and ATTRIBUTES.excess in trial.user_attrs
    }


def _overfitting(returns: dict[int, NDArray[np.float64]]) -> tuple[Overfitting | None, str]:
    if len(returns) < 2:
        return None, "There is no choice to judge: fewer than two trials came to their end."
    try:
        return overfitting(np.stack(list(returns.values()), axis=1)), ""
    except EvidenceError as error:
        return None, f"There is no probability of overfitting: {error}."


def _tried(trial: FrozenTrial) -> Tried:
    state = _STATES.get(trial.state, trial.state.name.lower())
    reason = str(trial.user_attrs.get(ATTRIBUTES.reason, LOST)) if state == "failed" else ""
    values = tuple(trial.values) if trial.state == TrialState.COMPLETE else None
    updates = trial.user_attrs.get(ATTRIBUTES.updates)
    return Tried(trial.number, state, values, trial.params, trial.intermediate_values, reason, updates)


def _searched(key: str, values: BaseDistribution) -> Searched:
    if isinstance(values, CategoricalDistribution):
        return Searched(key, described(values), choices=tuple(str(choice) for choice in values.choices))
    log = isinstance(values, FloatDistribution | IntDistribution) and values.log
    return Searched(key, described(values), log=log)


def _importances(objective: Sequence[str], trials: Sequence[FrozenTrial]) -> dict[str, dict[str, float]]:
    """fANOVA for each objective; none where trials are too few or all alike."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    found: dict[str, dict[str, float]] = {}
    if len(complete) < FEWEST:
        return found
    study = optuna.create_study(directions=[StudyDirection.MAXIMIZE] * len(objective))
    study.add_trials(sorted(complete, key=lambda trial: trial.number))
    for place, name in enumerate(objective):
        if len({trial.values[place] for trial in complete}) < 2:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shares = get_param_importances(
                study,
                evaluator=FanovaImportanceEvaluator(seed=0),
                target=lambda trial, place=place: trial.values[place],  # type: ignore[misc]
            )
        found[name] = {key: float(share) for key, share in shares.items()}
    return found


def _facts(config: Config, context: TrialContext) -> dict[str, object]:
    """Provenance and settings."""
    tune = config.tune
    windows = [context.panel.dates[[fold.tests[0].start, fold.tests[0].stop - 1]] for fold in context.folds]
    deviations = f", {tune.deviations:g} deviations off" if tune.aggregate == "cautious" else ""
    return {
        "data": context.panel.describe(),
        "judged windows": "; ".join(f"{first} to {last}" for first, last in windows),
        "seeds of each fold": ", ".join(map(str, context.seeds)),
        "together": tune.aggregate + deviations,
        "sampler": f"{tune.sampler}, seed {tune.seed}",
        "pruner": tune.pruner if len(tune.objective) == 1 else "none: several objectives",
        "optuna": optuna.__version__,
        "code": code_hash(),
    }
