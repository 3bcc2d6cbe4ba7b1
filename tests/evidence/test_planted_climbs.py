"""A policy that climbs its critics: it finds the signal that was planted in a made-up market."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finflow.agent.networks.policy import EXPERTS
from scripts.evidence.planted_signals import LEARNING, OWN
from tests.training.planted_markets import Learned, learn

pytestmark = pytest.mark.learning

CLIMB = {
    "bcell.iql_extraction": "gradient",
    "train.offline_episodes": 500,
    "train.offline_batch_size": 256,
    "train.offline_training_epochs": 2,
    "bcell.actor_lr": 4e-3,
    "bcell.critic_lr": 3e-3,
}


def climbs(folder: Path, kind: str, least: float, **changes: Any) -> Learned:
    """Most of what the optimal policy earns over equal weight and holding; and more than anybody it learned from."""
    learned = learn(folder, **{**LEARNING, **OWN[kind], **CLIMB, "market.synthetic.kind": kind, **changes})
    families = [learned.data.reward[learned.data.family == family].mean() for family in range(6)]
    assert learned.own.rewards.mean() > max(families)
    assert learned.scores["finflow"].score > least
    return learned


def test_a_climb_finds_a_spread_that_it_costs_to_trade_on(tmp_path: Path) -> None:
    climbs(tmp_path, "mean-reverting", least=0.5)  # seen: 0.72, with a standard error of 0.06


def test_in_the_bad_regime_the_gate_turns_to_the_experts_that_defend(tmp_path: Path) -> None:
    """Experts that stay what they are called leave it to the gate to say which of them is right now."""
    learned = climbs(tmp_path, "regime", least=0.7, bcell__expert_cloning=1.0)  # seen: 0.78, standard error 0.03
    assert learned.own.explanation is not None
    gate = learned.own.explanation["gate"]
    bad, good = gate[learned.beliefs > 0.8].mean(axis=0), gate[learned.beliefs < 0.2].mean(axis=0)
    defending = [EXPERTS.index("defensive"), EXPERTS.index("volatility")]
    assert bad[defending].sum() > good[defending].sum() + 0.3  # seen: 0.95 and 0.06
