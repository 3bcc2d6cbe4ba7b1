"""Evidence about the search: on markets whose optimum is known, scores of its best configurations on fresh seeds.

Each pair has a sample of the market of its own. On it a search of the demo's configuration, with the sampler and the
pruner that are the default, and no search at all; then the best is trained anew with seeds that no search has seen, and
scored on the test window as docs/reference/synthetic.md has it. Nothing was chosen by that window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finflow.config import Config, changed_config, flatten
from finflow.config.yaml_text import parse_file
from finflow.evaluation.backtest import run_backtests
from finflow.experiments.tasks import ComputeResources
from finflow.experiments.tuning.study import DEFAULT_SPACE, UPDATES, begin, best_trial, stored_study
from finflow.experiments.tuning.tuning import tune
from finflow.guard.checkpoint_folder import BEST, MODELS, CheckpointFolder
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.logs.progress_display import ProgressDisplay
from scripts.evidence.optimality import judge_of, window_of
from scripts.evidence.results import Variant, train_both
from scripts.evidence.rollouts import GROWTH
from scripts.evidence.tables import markdown_table, mean_interval

PAIRS, TRIALS, FRESH = 3, 14, 3
FRESH_FROM = 1000  # seeds of the trainings that are scored
WAYS: dict[str, dict[str, object]] = {"pruned": {"tune.sampler": "tpe", "tune.pruner": "median"}, "default": {}}
WORDS = {"pruned": "best of TPE with pruning", "default": "no search"}
MARKET = {
    "market.source": "synthetic",
    "market.synthetic.kind": "regime",
    "market.synthetic.defensive_ratio": 0.5,
    "market.synthetic.bars": 7000,
    "market.train_end": "2010-12-31",
    "market.validation_end": "2012-12-31",
    **GROWTH,
}
SEARCH = {
    "out_of_fold.blocks": 1,
    "tune.folds": 1,
    "tune.seeds": 1,
    "tune.startup_trials": 6,
    "train.updates_per_vector_step": 16,  # as many as there are exact decisions by default
    "train.validation_updates": 24,
    "offline.evaluation_updates": 0,
    "tune.space": {
        **{
            key: searched.model_dump(exclude_defaults=True)
            for key, searched in DEFAULT_SPACE.items()
            if not key.startswith("objectives.")
        },
        "bcell.alpha_init": {"low": 0.01, "high": 1.5, "log": True},
        "bcell.n_quantiles": {"choices": [8, 16, 32]},
        "bcell.hidden_dim": {"choices": [32, 64, 128]},
        "train.offline_batch_size": {"choices": [64, 128, 256]},
        "train.online_batch_size": {"choices": [32, 64, 128]},
    },
}
"""Without blocks of years that are held out, since trainings of this size find nothing that holds there, and every
trial would end with the same portfolio. The default space, but: no weights of the objective, since the score is one of
log growth; sizes about the demo's; and a temperature that may be small, since where a signal is strong, entropy helps
little."""


def tuning_variants(
    demo: Path, pairs: int = PAIRS, trials: int = TRIALS, more: Mapping[str, object] | None = None
) -> list[Variant]:
    """Each way on the market of each pair."""
    base = flatten(parse_file(demo)[0])
    return [
        Variant(
            f"tune-{way}-{trials}",
            seeds=(pair,),
            overrides={
                **base,
                **MARKET,
                **SEARCH,
                "tune.n_trials": trials,
                "tune.seed": pair,
                "market.synthetic.seed": pair,
                **settings,
                **(more or {}),
            },
            measure=search_and_retrain if settings else retrain,
        )
        for pair in range(pairs)
        for way, settings in WAYS.items()
    ]


def search_and_retrain(config: Config) -> dict[str, Any]:
    """Search, and train the best of it anew."""
    outcome = tune(config, None, ComputeResources(), lambda line: None)
    store = begin(stored_study(outcome.folder), outcome.folder).store
    trials, best = store.trials, best_trial(store.study)
    if best is None:
        raise ValueError("a search without a result has none to be measured")
    return {
        **retrain(changed_config(config, best.params)),
        "updates": sum(int(trial.user_attrs.get(UPDATES, 0)) for trial in trials),
        "finished": len(trials),
        "value": best.values[0],
        "best": dict(best.params),
    }


def retrain(config: Config) -> dict[str, Any]:
    """Train with seeds that no search has seen; scores against the optimum on the test window."""
    scores = []
    for seed in range(FRESH_FROM, FRESH_FROM + FRESH):
        trainer = train_both(changed_config(config, {"train.seed": seed}), progress=_Silent())
        path = CheckpointFolder(trainer.run_folder / MODELS).path(BEST)
        policy = read_checkpoint(path).agent.policy(trainer.device) if path.is_file() else trainer.policy
        process, window = window_of(trainer.training_data, test=True)
        (run,) = run_backtests(process, window, [AgentStrategy(policy, trainer.device)])
        scores.append(judge_of(trainer.training_data, test=True)(run))
    return {"scores": scores, "score": float(np.mean(scores))}


class _Silent(ProgressDisplay):
    """Shows nothing."""

    def note(self, text: str, quiet_when_live: bool = False) -> None:
        pass


def tuning_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: each way's score over the pairs, and the difference, paired."""
    way_of = {result["variant"]: str(result["variant"]).split("-")[1] for result in results}
    by_way = {way: {result["seed"]: result for result in results if way_of[result["variant"]] == way} for way in WAYS}
    ways: list[list[object]] = []
    for way, found in by_way.items():
        own = list(found.values())
        searched = [one for one in own if "updates" in one]
        updates = f"{np.mean([one['updates'] for one in searched]):,.0f}" if searched else "none"
        value = f"{np.mean([one['value'] for one in searched]):.2f}" if searched else ""
        if own:
            ways.append([WORDS[way], len(own), mean_interval([one["score"] for one in own], 3), updates, value])
    pairs = sorted(by_way["pruned"].keys() & by_way["default"].keys())
    gaps = [by_way["pruned"][pair]["score"] - by_way["default"][pair]["score"] for pair in pairs]
    page = markdown_table(("", "pairs", "score", "updates of a search", "value on validation"), ways) + "\n"
    if gaps:
        better = f"better in {sum(gap > 0 for gap in gaps)} of {len(gaps)}"
        page += f"The {WORDS['pruned']} less {WORDS['default']}: {mean_interval(gaps, 3)}, {better}.\n"
    return page
