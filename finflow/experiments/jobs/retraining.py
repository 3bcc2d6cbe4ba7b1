"""`--mode retrain`: an agent trained further on the newest prices, which replaces the old one where it is shown better.

Walk-forward over the bars that the old agent has not seen: docs/guide/retrain.md. The old run is only read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from finflow.config import Config, ProtocolConfig, replace_values
from finflow.errors import ConfigError, MarketError
from finflow.evaluation.backtest import BASELINE, Backtest
from finflow.evaluation.multi_run.repeated_trainings import joined
from finflow.evaluation.statistics.bootstrap import CONFIDENCE, MINIMUM_BLOCKS, Resampling
from finflow.evaluation.statistics.metrics import sharpe_of, summarise
from finflow.experiments.jobs.independent_trainings import Job, Training, mark_of, train_all
from finflow.experiments.jobs.retrain_results import (
    NEW,
    OLD,
    REPLACE,
    FoldNumbers,
    ReplacementRule,
    RetrainNumbers,
    headline_figures,
    measure_lead,
    retrain_page,
)
from finflow.experiments.jobs.walk_forward import FEWEST, Fold, history_of
from finflow.files import write_together
from finflow.json_text import parse_json
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from finflow.offline.collection import refuse_own_decisions
from finflow.trading.live_market import read_part
from finflow.trading.price_checks import check_history
from finflow.training.checkpoints.checkpoint_reader import Checkpoint, check_same_features, read_best
from finflow.training.checkpoints.run_folder import MANIFEST, Kind, resolve_run
from finflow.training.data.training_data import TrainingData, device_here, prepare_from, process_on
from finflow.training.judging.agent_strategy import Agents, policy_identity
from finflow.training.judging.held_out import EvaluationOutcome, maker_of
from finflow.training.phases.stopping import stopping_at_once

FOLDER = "retrainings"
NUMBERS, PAGE, RETURNS = "retrain.json", "retrain.html", "returns.csv"


@dataclass(frozen=True)
class KnownBars:
    """Sizes that decide the windows, in bars of the newest panel."""

    seen: int  # up to the last one that the old agent was trained on or chosen by
    bars: int  # all of them
    history: int  # before a window, that its first feature looks back on
    window: int  # that a retraining learns from and is chosen by
    purge: int  # before an evaluated window, that are not learned from
    fewest_evaluated: int  # of all folds together, without which there is no interval


def retrain_folds(known: KnownBars, count: int, settings: ProtocolConfig) -> tuple[Fold, ...]:
    """Folds of consecutive evaluated windows up to the newest bar, each with the bars of its retraining.

    Raises MarketError if the new bars are too few to learn from and to be evaluated on; the line says how many it
    takes.
    """
    new = known.bars - known.seen
    evaluated = new - int(settings.first_share * new)
    size = evaluated // count
    first = known.bars - size * count - known.purge
    if size < FEWEST or size * count < known.fewest_evaluated or first - known.seen < FEWEST:
        wanted = max(FEWEST * count, known.fewest_evaluated) / (1.0 - settings.first_share)
        raise MarketError(
            f"there are {new} new bars, of which {max(first - known.seen, 0)} can be learned from and "
            f"{size * count} evaluated on: {count} folds with an interval take about "
            f"{int(wanted) + known.purge + count} new bars; wait for them, or use fewer trading.retrain.folds "
            "or a smaller evaluation.protocol.first_share or evaluation.block_length"
        )
    folds = []
    for number in range(1, count + 1):
        start = known.bars - size * (count - number + 1)
        piece, validation = newest_window(known, start - known.purge, settings)
        folds.append(Fold(number, (piece,), validation, (range(start, start + size),)))
    return tuple(folds)


def newest_window(known: KnownBars, stop: int, settings: ProtocolConfig) -> tuple[range, int]:
    """Bars of a retraining that ends before a bar, its features' history included, and how many of them validate."""
    piece = range(max(0, stop - known.window - known.history), stop)
    validation = min(int(settings.validation_share * (stop - known.seen)), known.window // 2)
    return piece, max(FEWEST, validation)


@dataclass(frozen=True, kw_only=True)
class Retraining(Job):
    """Retrainings of an agent on newer prices, one for each fold, and their comparison with it."""

    run: Path
    old: Checkpoint
    old_data: TrainingData
    known: KnownBars
    folds: tuple[Fold, ...]

    @property
    def trainings(self) -> list[Training]:
        return [self._training(f"fold-{fold.number:02d}", fold) for fold in self.folds]

    def lines(self) -> list[str]:
        """The bars that are new, and the dates of each fold."""
        dates = self.panel.dates
        lines = [f"{self.known.bars - self.known.seen} bars since {dates[self.known.seen - 1]}, up to {dates[-1]}"]
        for fold in self.folds:
            (piece,), (test,) = fold.pieces, fold.tests
            lines.append(
                f"fold {fold.number} is trained up to {dates[piece.stop - 1]} and evaluated from {dates[test.start]} "
                f"to {dates[test.stop - 1]}"
            )
        return lines

    def judge(self, checkpoints: Sequence[Path]) -> EvaluationOutcome:
        """Compare the retrained agents with the old one, and train the new agent where it replaces the old one.

        The outcome's folder is the run to go on with.
        """
        numbers, runs = self.compare(checkpoints)
        run = self.run
        if numbers.answer == REPLACE:
            print("the new agent is better than the old one; training it on the newest window")
            final = self.final()
            (best,) = train_all([final], {"": load_panel(final.config.market)})
            run = resolve_run(best).folder
            numbers = replace(numbers, run=run.relative_to(self.folder.resolve()).as_posix())
        page = retrain_page(numbers, runs)
        table = pd.DataFrame({one.name: one.returns for one in runs}, pd.Index(runs[0].dates.astype(str), name="date"))
        files: dict[str, bytes | str] = {RETURNS: table.to_csv(lineterminator="\n").encode()}
        files |= {PAGE: page.html(), NUMBERS: page.json()}
        write_together({self.folder / name: content for name, content in files.items()})
        return EvaluationOutcome(run, self.folder / PAGE, {one.name: summarise(one) for one in runs}, page)

    @stopping_at_once()
    def compare(self, checkpoints: Sequence[Path]) -> tuple[RetrainNumbers, list[Backtest]]:
        """Backtest the retrained agents and the old one, each in the window of its fold."""
        config, device, evaluation = self.config, device_here(self.config.train.device), self.config.evaluation
        rule = ReplacementRule(CONFIDENCE, config.trading.retrain.margin, _number_of(self.folder))
        before, backtests, folds = Agents.of([self.old], config, device), [], []
        process = process_on(self.old_data, self.panel)
        for fold, training, path in zip(self.folds, self.trainings, checkpoints, strict=True):
            after = Agents.of([read_best(path)], config, device)
            ((new,),) = fold.judge(process_on(training.training_data(self.panel), self.panel), after)
            ((old, baseline),) = fold.judge(process, before, [maker_of(BASELINE, config)()])
            backtests.append((replace(new, name=NEW), replace(old, name=OLD), baseline))
            folds.append(self._fold_numbers(fold, new, old))
        runs = [joined(parts) for parts in zip(*backtests, strict=True)]
        resampling = Resampling(evaluation.bootstrap_samples, evaluation.block_length, config.train.seed)
        lead = measure_lead(runs[0], runs[1], rule, resampling)
        history = check_history(self.panel, (), read_part(self.old.run_folder / MANIFEST, "data"))
        gaps = self.old_data.gap_note()
        numbers = RetrainNumbers(
            answer=rule.answer(lead),
            until=str(self.panel.dates[-1]),
            old_until=str(self.panel.dates[self.known.seen - 1]),
            new_bars=self.known.bars - self.known.seen,
            old_sha256=policy_identity(before.policies[0]),
            panel_sha256=self.panel.sha256,
            lead=lead.value,
            bounds=lead.interval,
            coverage=rule.coverage,
            share_ahead=lead.share_ahead,
            margin=rule.margin,
            comparison=rule.comparison,
            returns=len(runs[0].returns),
            figures=headline_figures(runs),
            folds=folds,
            run=None,
            notes=[f"history: {history.said}"] * (not history.passed) + ([gaps] if gaps else []),
        )
        return numbers, runs

    def final(self) -> Training:
        """Training on the newest window; the last bars, too few to evaluate on, are left to be its test window."""
        piece, validation = newest_window(self.known, self.known.bars - FEWEST, self.config.evaluation.protocol)
        dates = self.panel.dates
        days = {
            "market.train_end": dates[piece.stop - validation - 1].item(),
            "market.validation_end": dates[piece.stop - 1].item(),
            "market.start": dates[piece.start].item(),
        }
        newest = replace(self, config=replace_values(self.config, days))
        return replace(newest._training("agent"), name="new agent")

    def _training(self, folder: str, fold: Fold | None = None) -> Training:
        return self.training(folder, folder, self.config.train.seed, fold, warm_start=self.old.path)

    def _fold_numbers(self, fold: Fold, new: Backtest, old: Backtest) -> FoldNumbers:
        (piece,), (test,), dates = fold.pieces, fold.tests, self.panel.dates
        ratios = [sharpe_of(one) for one in (old, new)]
        ends = (piece.start, piece.stop - 1, test.start, test.stop - 1)
        begin, end, judged_from, judged_until = (str(dates[bar]) for bar in ends)
        return FoldNumbers(begin, end, fold.validation, judged_from, judged_until, len(new.returns), *ratios)


def prepare_retraining(run: Path, config: Config, parent: Path | None = None) -> Retraining:
    """Read the old agent and the newest prices, cut the folds, and check that each can be trained.

    Raises FinflowError, one line, where there is nothing to retrain, nothing new to evaluate on, or another universe.
    """
    saved = resolve_run(run)
    if saved.kind not in (Kind.RUN, Kind.CHECKPOINT):
        raise ConfigError(
            f"{run} is a {saved.kind}, and --mode retrain takes one training: name one of its run folders"
        )
    refuse_own_decisions(config)
    old = read_best(run)
    panel = load_panel(config.market)
    _check_universe(panel, read_part(old.run_folder / MANIFEST, "data").get("assets"), run)
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
        purge=config.env.execution_lag,
        fewest_evaluated=MINIMUM_BLOCKS * config.evaluation.block_length,
    )
    protocol = config.evaluation.protocol
    retrain_folds(known, settings.folds, protocol)  # its refusal says more than that of the windows below
    old_data = prepare_from(panel, config)
    check_same_features(old, old_data.features)
    known = replace(known, window=settings.window or seen - old_data.features.first_bar)
    folds = retrain_folds(known, settings.folds, protocol)
    folder = parent or saved.folder.parent / FOLDER / saved.folder.name
    cuts = [[fold.pieces[0].start, fold.pieces[0].stop, fold.validation, fold.tests[0].start] for fold in folds]
    mark = mark_of(config, panel.sha256, hashlib.sha256(old.path.read_bytes()).hexdigest(), cuts)
    folder = folder / f"{panel.dates[-1]}-{mark}"
    retraining = Retraining(config, panel, folder, run=run, old=old, old_data=old_data, known=known, folds=folds)
    for training in retraining.trainings:  # before any of them runs
        training.training_data(panel)
    return retraining


def _check_universe(panel: MarketPanel, trained: Sequence[str] | None, run: Path) -> None:
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


def _number_of(folder: Path) -> int:
    """Number of a comparison among those of an agent: its own where it has been made, else the next."""
    try:
        return int(parse_json((folder / NUMBERS).read_text("utf-8"))["comparison"])
    except (OSError, ValueError, KeyError, TypeError):
        return 1 + sum(1 for path in folder.parent.glob(f"*/{NUMBERS}") if path.parent != folder)
