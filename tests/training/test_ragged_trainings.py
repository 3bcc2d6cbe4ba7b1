"""Trainings on a market where assets list late and end early decide and learn over what is listed at the time."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finflow.training.trainer import FinFlowTrainer
from tests.short_trainings import market_prices
from tests.training.whole_trainings import Make, train_through

#: B ends within the training window, C lists within it, D lists within it and ends in the test window.
ENDED, LATE, LATER = 520, 400, 450
SHORT: dict[str, Any] = {
    "offline__evaluation_updates": 0,
    "train__online_episodes": 6,
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "sac": {"bcell__cql_samples": 4, "out_of_fold__blocks": 2},
    "ppo": {"online__rollout": 32, "online__portfolios": 4, "online__minibatch": 16, "online__epochs": 2},
}


@pytest.fixture(autouse=True)
def _every_update_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finflow.training.phases.training_run.LOG_EVERY", 1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_agent_learns_across_listings_and_ends(algorithm: str, tiny: Make, tmp_path: Path) -> None:
    close = market_prices(assets="ABCDEF")
    close.iloc[ENDED:, 1] = np.nan
    close.iloc[:LATE, 2] = np.nan
    close.iloc[:LATER, 3] = np.nan
    close.iloc[680:, 3] = np.nan
    close.to_csv(tmp_path / "ragged.csv")
    keys = {"market__path": str(tmp_path / "ragged.csv"), "market__benchmark": "A", "online__algorithm": algorithm}
    trainer = train_through(tiny(**{**SHORT, **keys, **ALGORITHMS[algorithm]}))
    rows = [json.loads(line) for line in (trainer.run_folder / "metrics.jsonl").read_text().splitlines()]
    names = [name for row in rows for name in row if "loss" in name or "entropy" in name or "gradient" in name]
    assert {"offline", "online"} <= {row["phase"] for row in rows}
    assert len(names) > 20
    assert all(math.isfinite(row[name]) for row in rows for name in row if name in names)
    process, agent = trainer.training_data.process, trainer.agent
    listed = process.panel.listed
    for bar in (LATE - 1, LATE + 1, LATER + 1, ENDED, ENDED + 1, ENDED + 2, 610):
        state = process.start(np.full(3, bar), np.random.default_rng(bar).dirichlet(np.ones(6), 3))
        observation = process.observe(state)
        for deterministic in (True, False):
            weights = agent.act(observation, deterministic)
            known = listed[bar - 1]
            assert (weights[:, :-1][:, ~known] == 0.0).all(), bar
            assert (weights[:, :-1][:, known] > 0.0).all()
            np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-5)
    if algorithm == "sac":
        check_stored_decisions(trainer)


def check_stored_decisions(trainer: FinFlowTrainer) -> None:
    """Stored decisions name what is listed and nothing else."""
    learners, process = trainer._begin().state.learners, trainer.training_data.process
    assert learners is not None
    for one in learners.everyone:
        columns, count = one.replay.columns, len(one.replay)
        known = torch.tensor(process.panel.listed)[columns["bar"][:count] - 1]
        weights = columns["action"][:count, :-1]
        assert (~known).any()
        assert bool((weights[~known] == 0.0).all())
        assert bool((weights[known] > 0.0).all())
