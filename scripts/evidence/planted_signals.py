"""Evidence about what offline learning finds of a planted signal, on markets whose optimum is known.

Each seed draws its own sample of the market. Scores are those of docs/reference/synthetic.md, on the validation window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from finflow.config import Config
from finflow.evaluation.analysis.decision_quality import score_runs
from finflow.evaluation.backtest import run_backtests
from finflow.market.bar_frequency import BARS_PER_YEAR
from finflow.strategies.classical import named_strategy
from finflow.strategies.optimal_policy import optimum_of
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.offline_methods import family_rules
from scripts.evidence.results import OFFLINE_ALONE, Variant, grouped
from scripts.evidence.tables import mean_interval, table_of

FIRST_SAMPLE = 20  # others were used when `LEARNING` and `OWN` were chosen
MARKETS = ("constant-drift", "lognormal", "mean-reverting", "regime")
EXTRACTIONS = {"awr": "as published", "gradient": "critics' gradient"}
#: Nothing held back: what is planted is to be found, not to be guarded against.
PLAIN: dict[str, object] = {
    "features.filters": "none",
    "features.regimes": False,
    "bcell.anchor.weight": 0.0,
    "bcell.averaging.kind": "none",
}
#: The objective is log return alone, of which the optimum is known.
GROWTH: dict[str, object] = {
    "objectives.sharpe_beta": 0.0,
    "objectives.lambda_turn": 0.0,
    "objectives.lambda_cvar": 0.0,
}
LEARNING: dict[str, object] = {
    **PLAIN,
    **GROWTH,
    "market.train_end": "2010-12-31",
    "market.validation_end": "2014-12-31",
    "train.offline_episodes": 1500,
    "train.offline_training_epochs": 8,
    "offline.patience": 0,
    "train.validation_updates": 100_000,
    "offline.evaluation_updates": 0,
    "bcell.hidden_dim": 64,
    "bcell.n_quantiles": 1,
    "bcell.expert_cloning": 0.0,  # what is planted is sought, whatever the experts are called
    "bcell.gamma": 0.9,  # a signal is gone within days: what lies further ahead is noise
    "bcell.actor_lr": 3e-3,
    "bcell.critic_lr": 1e-3,
    "bcell.iql_cloning": 0.3,
}
#: What a market has of its own: a spread that reverts faster and assets that differ, so that the signal can be seen;
#: and little that holds a policy to its data where one asset is the best throughout.
OWN: dict[str, dict[str, object]] = {
    "constant-drift": {"bcell.iql_cloning": 0.03},
    "mean-reverting": {"market.synthetic.persistence": 0.8},
    "regime": {"market.synthetic.defensive_ratio": 0.5},
}


def planted_variants(seeds: int) -> list[Variant]:
    """Each market with each way of reading a policy off the values."""
    return [
        Variant(
            f"planted-{kind}-{extraction}",
            range(FIRST_SAMPLE, FIRST_SAMPLE + seeds),
            {
                **LEARNING,
                **OFFLINE_ALONE,
                **OWN.get(kind, {}),
                "market.source": "synthetic",
                "market.synthetic.kind": kind,
                "bcell.iql_extraction": extraction,
            },
            measure=learn_and_score,
            first_sample=0,
        )
        for kind in MARKETS
        for extraction in EXTRACTIONS
    ]


def learn_and_score(config: Config) -> dict[str, Any]:
    """Run the offline phase; its policy's score and turnover, and what the behaviour's families earn, on validation."""
    trainer = FinFlowTrainer(config)
    trainer.train_iql()
    process, window = trainer.training_data.process, trainer.training_data.split.validation
    best = optimum_of(config.market, config.env)
    agent = AgentStrategy(trainer.policy, trainer.device)
    classical = [named_strategy(name, config.evaluation) for name in ("equal-weight", "buy-and-hold")]
    families = family_rules(process.panel)
    runs = run_backtests(process, window, [agent, best.policy, *classical, *chain.from_iterable(families.values())])
    known = score_runs(process, window, runs, best)
    ranked = {family: [known.scores[rule.name].score for rule in rules] for family, rules in families.items()}
    own = known.scores[agent.name]
    return {
        "kind": config.market.synthetic.kind,
        "extraction": config.bcell.iql_extraction,
        "score": own.score,
        "standard_error": own.standard_error,
        "turnover": float(runs[0].turnover.mean() * BARS_PER_YEAR),
        "optimal_turnover": float(runs[1].turnover.mean() * BARS_PER_YEAR),
        "best_family_score": max(float(np.mean(scores)) for scores in ranked.values()),
        "best_variant_score": max(max(scores) for scores in ranked.values()),
    }


def planted_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: a row for each market and extraction, means over seeds with 95 % intervals."""
    rows = []
    trainings = grouped(results, "kind", "extraction")
    for kind in MARKETS:
        for extraction, words in EXTRACTIONS.items():
            own = trainings.get((kind, extraction), [])
            scores, best, variant, turnover, optimal = (
                [one[name] for one in own]
                for name in ("score", "best_family_score", "best_variant_score", "turnover", "optimal_turnover")
            )
            row = {
                "market": kind,
                "policy": words,
                "score": mean_interval(scores),
                "each seed": ", ".join(f"{score:.2f}" for score in scores),
                "best family": f"{np.mean(best):.2f}",
                "beaten": f"{int(np.greater(scores, best).sum())} of {len(own)}",
                "best variant": f"{np.mean(variant):.2f}",
                "turnover a year": f"{np.mean(turnover):.1f}",
                "optimal turnover": f"{np.mean(optimal):.1f}",
            }
            rows.append(row)
    return table_of(rows)
