"""Preparation of a retraining: the old agent, the newest prices and the folds, and what is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from finflow.config import Config, EvaluationConfig, config_hash, replace_values
from finflow.errors import ConfigError, MarketError
from finflow.evaluation.statistics.bootstrap import MINIMUM_BLOCKS
from finflow.experiments.jobs.folds import history_of, refuse_own_decisions
from finflow.experiments.retraining.retraining import KnownBars, Retraining, data_of, retrain_folds
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from finflow.provenance import short_hash
from finflow.training.checkpoints.checkpoint_reader import check_same_features, read_best
from finflow.training.checkpoints.run_resolver import Kind, resolve_run
from finflow.training.data.training_data import prepare_from

FOLDER = "retrainings"


def prepare_retraining(run: Path, config: Config, parent: Path | None = None) -> Retraining:
    """Read the old agent and the newest prices, cut the folds, and check that each can be trained.

    Raises
    ------
    FinflowError
        One line, where there is nothing to retrain, nothing new to evaluate on, or another universe.
    """
    saved = resolve_run(run)
    if saved.kind not in (Kind.RUN, Kind.CHECKPOINT):
        raise ConfigError(
            f"{run} is a {saved.kind}, and --mode retrain takes one training: name one of its run folders"
        )
    refuse_own_decisions(config)
    old = read_best(run)
    panel = load_panel(config.market)
    _check_universe(panel, data_of(old).get("assets"), run)
    if config.market.test_end is not None:
        panel = panel.until(panel.bars_until(config.market.test_end))
    settings, seen = config.trading.retrain, panel.bars_until(config.market.validation_end)
    if seen >= panel.n_bars:
        raise MarketError(
            f"{run} was trained on and chosen by bars up to {config.market.validation_end}, and the prices end on "
            f"{panel.dates[-1]}: there are no new bars; bring the prices up to date"
        )
    known = KnownBars(
        seen=seen,
        bars=panel.n_bars,
        history=history_of(panel),
        window=settings.window or seen,
        purge=config.env.execution_lag if settings.purge is None else settings.purge,
        fewest_evaluated=MINIMUM_BLOCKS * config.evaluation.block_length,
    )
    retrain_folds(known, settings)  # its refusal says more than that of the windows below
    old_data = prepare_from(panel, config)
    check_same_features(old, old_data.features)
    known = replace(known, window=settings.window or seen - old_data.features.first_bar)
    folds = retrain_folds(known, settings)
    folder = parent or saved.folder.parent / FOLDER / saved.folder.name
    retraining = Retraining(config, panel, old, old_data, known, folds, folder)
    retraining = replace(retraining, folder=folder / f"{panel.dates[-1]}-{_mark(retraining)}")
    for training in retraining.trainings:  # before any of them runs
        training.training_data(panel)
    return retraining


def _mark(retraining: Retraining) -> str:
    """A hash of everything that decides the retrainings: settings, prices, the old agent and the folds."""
    learning = config_hash(replace_values(retraining.config, {"evaluation": EvaluationConfig()}))
    cuts = [
        [fold.pieces[0].start, fold.pieces[0].stop, fold.validation, fold.tests[0].start] for fold in retraining.folds
    ]
    before = hashlib.sha256(retraining.old.path.read_bytes()).hexdigest()
    return short_hash(json.dumps([learning, retraining.panel.sha256, before, cuts]))


def _check_universe(panel: MarketPanel, trained: Sequence[str] | None, run: Path) -> None:
    """Refuse another universe than the old agent's."""
    if trained is None or set(trained) == set(panel.assets):
        return
    gone, new = (sorted(set(one) - set(other)) for one, other in ((trained, panel.assets), (panel.assets, trained)))
    named = " and ".join(
        f"{'without' if names is gone else 'with'} {', '.join(names[:5])}" for names in (gone, new) if names
    )
    raise MarketError(
        f"the prices are of another universe than that of {run} ({named}): a retraining keeps its universe; train a "
        "new agent with --mode train"
    )
