"""What a search would do, and about how long it would take: a dry run."""

from __future__ import annotations

from pathlib import Path

from finflow.config import Config
from finflow.experiments.jobs.duration_estimate import estimate, tasks_at_once
from finflow.experiments.jobs.independent_trainings import Cut, Training, own_settings
from finflow.experiments.tasks.task_runner import Where
from finflow.experiments.tuning.search_space import space_of
from finflow.experiments.tuning.study_folder import STUDIES, open_study
from finflow.experiments.tuning.trial_store import reaching, shown_url
from finflow.experiments.tuning.trial_training import Arena, arena_of

__all__ = ["lines_of_plan"]


def lines_of_plan(config: Config, where: Where, folder: Path | None = None) -> list[str]:
    """How many trainings a search makes, and about how long that takes: what a dry run tells.

    Parameters
    ----------
    config : Config
    where : Where
    folder : Path, optional
        Of a study that goes on: of its trials, those that are over take no more time.
    """
    space = space_of(config)
    arena = arena_of(config, tuple(space), config.tune.n_trials)
    trials, over = _counted(config, arena, folder)
    left, units, done = trials - over, len(arena.units), f", {over} of them over" if over else ""
    counted = (
        f"{trials} trials of {units} trainings each ({config.tune.folds} folds, {config.tune.seeds} seeds){done}: "
        f"{left * units:,} trainings over {len(space)} searched keys"
    )
    if not left:
        return [counted]
    workers = min(tasks_at_once(where), left)
    seconds = _seconds_of_a_trial(config, arena) * -(-left // workers)
    took = f"{seconds / 3600.0:.1f} hours" if seconds >= 3600.0 else f"{max(seconds / 60.0, 1.0):.0f} minutes"
    pruned = "" if config.tune.pruner == "none" or len(config.tune.objective) > 1 else ", less what pruning saves"
    return [
        counted,
        f"about {took} on {workers} worker{'s' if workers > 1 else ''}{pruned}, by a probe of the configuration as it "
        "is; larger networks and batches take longer",
    ]


def _counted(config: Config, arena: Arena, folder: Path | None) -> tuple[int, int]:
    """How many trials there will be, and how many of them are over."""
    if folder is None:
        return config.tune.n_trials, 0
    book, _ = open_study(config, folder, arena, create=False)
    with reaching(shown_url(config.tune.storage, folder)):
        counts = book.counts
    return max(config.tune.n_trials, counts.all), counts.finished


def _seconds_of_a_trial(config: Config, arena: Arena) -> float:
    nowhere = config.output.logs_dir / STUDIES / "dry-run"
    trainings = [
        Training(
            f"fold {fold.number}", nowhere, own_settings(config, nowhere, seed), cut=Cut(fold.pieces, fold.validation)
        )
        for fold, seed in arena.units
    ]
    return estimate(trainings, {"": arena.panel}).seconds
