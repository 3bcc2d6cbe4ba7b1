"""The experts of a trained agent are what they are called."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from finflow.evaluation.analysis.expert_traits import CLAIMS
from finflow.training.judging.agent_strategy import named_portfolios, traits_on
from finflow.training.trainer import FinFlowTrainer
from tests.short_trainings import config_in

#: The networks and the data of the demo, with updates enough for its experts to learn something.
DEMO_SIZED: dict[str, object] = {
    "market.test_end": "2016-06-30",
    "env.episode_length": 126,
    "train.offline_episodes": 60,
    "features.filters": "none",
    "features.regimes": False,
    "train.offline_training_epochs": 3,
    "train.offline_batch_size": 64,
    "train.online_episodes": 16,
    "train.online_batch_size": 64,
    "train.warmup_episodes": 8,
    "train.critic_only_updates": 20,
    "train.validation_updates": 100_000,
    "offline.group_size": 1,
    "offline.evaluation_updates": 0,
    "bcell.hidden_dim": 64,
    "bcell.expert_cloning": 4.0,  # in so few updates the anchor is quicker than the default: docs/reference/agent.md
    "out_of_fold.blocks": 1,  # in a blend a reference has a share of every aim
    "offline.counterfactual": False,  # of which families' transitions are an eighth
    "bcell.iql_extraction": "awr",  # by the critics' gradient experts may leave their families: docs/limits.md
    "bcell.memory_capacity": 5000,
    "bcell.actor_lr": 2e-3,
    "bcell.critic_lr": 2e-3,
    "bcell.n_quantiles": 8,
    "bcell.cql_samples": 2,
    "evaluation.bootstrap_samples": 100,
    "evaluation.rebalance_every": 252,  # the rivals of the report are not looked at
    "evaluation.sweeps": False,
}


@pytest.mark.learning
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("quick_reports")
def test_the_experts_of_a_trained_agent_are_what_they_are_called(tmp_path: Path) -> None:
    """On the embedded prices, after both phases: of the sleeve and with cash, and none of them mostly in cash."""
    trainer = FinFlowTrainer(config_in(tmp_path, DEMO_SIZED))
    outcome = trainer.train()
    process, window = trainer.training_data.process, trainer.training_data.split.validation
    named = named_portfolios(trainer.policy, process, process.decision_bars(window))
    np.testing.assert_allclose(named.sum(axis=-1), 1.0, atol=1e-5)
    found = traits_on(trainer.policy, process, window)
    assert found is not None
    failing = [(name, of) for name in CLAIMS for of in ("sleeve", "total") if not found.holds(name, of)]
    assert failing == []
    assert all(one["invested"] for one in found.as_called.values())
    numbers = json.loads((outcome.report.parent / "metrics.json").read_text())
    reported, mixed = numbers["expert_traits"], numbers["gate_states"]
    assert reported["days"] == found.days > 900
    assert min(mixed[state]["decisions"] for state in ("calm", "crisis")) > 500
    for state in mixed.values():
        assert sum(state["gate"].values()) == pytest.approx(1.0)  # what a reference decides is its own
    assert all(mixed["calm"]["gate"][name] != mixed["crisis"]["gate"][name] for name in CLAIMS)
    assert "Gate weights by market state" in outcome.report.read_text()
    assert set(reported["as_called"]) == set(CLAIMS)
    assert "Traits of the experts" in outcome.report.read_text()
    untrained = traits_on(FinFlowTrainer(config_in(tmp_path, DEMO_SIZED)).policy, process, window)
    assert untrained is not None
    assert [name for name in CLAIMS if not untrained.holds(name, "sleeve")] != []
