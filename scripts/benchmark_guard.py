"""Cost of the guard: one training with the guard on and off in turn, and the time of its checkpoints."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from benchmark_tools import seconds_of

from finflow.agent.gradient_steps import SkippingAdam
from finflow.config import load_config
from finflow.training.phases.training_run import TrainingRun
from finflow.training.trainer import FinFlowTrainer

BLOCK = 100  # updates with the guard, then as many without: each has as many looks and snapshots as any other
EPISODES = 60  # of behaviour: the size of the data decides nothing here
CHECKPOINTS = 5


class Switch:
    """Switches a run's guard at the end of every block, and keeps the processor time of each."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, bool], list[float]] = {}
        self._began, self._phase, self._updates = 0.0, "", 0

    def after_step(self, run: TrainingRun) -> None:
        """Called where a training may be stopped: after each update, and after each step of the warm-up."""
        counters, guard = run.state.counters, run.guard
        if counters.phase != self._phase or counters.phase_update == 0:
            self._phase, self._updates, self._began = counters.phase, counters.phase_update, time.process_time()
        if counters.phase_update - self._updates < BLOCK:
            return
        self.seconds.setdefault((self._phase, guard.enabled), []).append(time.process_time() - self._began)
        guard.enabled = not guard.enabled
        learner = run.state.bcell or run.state.learner
        for optimiser in (part for part in vars(learner).values() if isinstance(part, SkippingAdam)):
            optimiser.skip_nonfinite = guard.enabled
        self._updates, self._began = counters.phase_update, time.process_time()


def benchmark_guard(given: argparse.Namespace) -> None:
    """Print the seconds of an update with the guard and without, in either phase, and what checkpoints add."""
    updates = 2 * BLOCK * given.rounds + 1
    with tempfile.TemporaryDirectory() as folder:
        keys: dict[str, object] = {
            "train.offline_episodes": EPISODES,
            "out_of_fold.blocks": 1,
            "train.offline_training_epochs": -(-updates // (EPISODES * 252 // 512 - 4)),
            "train.online_episodes": -(-updates * 16 * 16 // 252),  # 16 portfolios, by 16 decisions each
            "train.critic_only_updates": 0,
            "train.validation_updates": 10**6,
            "train.checkpoint_updates": 10**6,
            "train.checkpoint_interval": 10**6,
            "offline.evaluation_updates": 0,
            "output.logs_dir": f"{folder}/logs",
            "output.offline_dir": f"{folder}/offline",
        }
        trainer = FinFlowTrainer(load_config(None, keys, environ={}))
        switch, original = Switch(), TrainingRun.stop_if_asked

        TrainingRun.stop_if_asked = lambda run: switch.after_step(run)  # type: ignore[assignment, method-assign]
        try:
            trainer.train_iql()
            trainer.finetune()
        finally:
            TrainingRun.stop_if_asked = original  # type: ignore[method-assign]
        run = trainer._begin()
        writing = [seconds_of(run.checkpoint).clock for _ in range(CHECKPOINTS)]  # the clock: it waits for the disk
        size = max(path.stat().st_size for path in Path(run.folder / "models").iterdir())
    interval = load_config(None, {}, environ={}).train.checkpoint_updates
    print(f"{'':10}{'ms an update':>14}{'guarded':>10}{'adds':>8}{'checkpoint':>12}{'together':>10}")
    for phase in dict.fromkeys(phase for phase, _ in switch.seconds):
        off, on = (statistics.median(switch.seconds[phase, guarded]) / BLOCK for guarded in (False, True))
        share, written = on / off - 1.0, statistics.median(writing) / (interval * off)
        print(f"{phase:10}{1e3 * off:14.2f}{1e3 * on:10.2f}{share:8.2%}{written:12.2%}{share + written:10.2%}")
    print(
        f"processor time, medians of {given.rounds} blocks of {BLOCK} updates each, in turn; a checkpoint of "
        f"{size / 1e6:.0f} MB takes {statistics.median(writing):.2f} s by the clock, every {interval} updates"
    )
