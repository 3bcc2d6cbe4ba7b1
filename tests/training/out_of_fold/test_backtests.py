"""Backtests of blends in held-out blocks: played by the ledger, and weighed by what holds out of sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from finflow.agent.batch import states_of
from finflow.agent.networks.decision import REFERENCES, Blend
from finflow.agent.networks.policy import blended
from finflow.evaluation.analysis import training_sections
from finflow.training.data.replay import MarketTensors
from finflow.training.out_of_fold.evidence import CONFIDENCES, Block, BlockPolicy, backtest_blends, weigh_evidence

CPU = torch.device("cpu")
Trained = Any


def test_without_confidence_the_agent_holds_the_reference(trained: Trained) -> None:
    trainer = trained.trainer
    process, policy = trainer.training_data.process, trainer.agent.policy
    volatility = trainer.training_data.log_volatility
    states = states_of(process.observe(process.start(np.array([process.first_bar + 9]))), CPU)
    equal = blended(policy, Blend(0.0, "equal-weight", volatility))(states).aim[0]
    assert torch.allclose(equal, torch.tensor([0.25, 0.25, 0.25, 0.25, 0.0]))
    inverse = blended(policy, Blend(0.0, "inverse-volatility", volatility))(states).aim[0, :-1]
    bar = process.first_bar + 9 - process.lag
    returns = np.diff(np.log(process.panel.close[: bar + 1]), axis=0)[-252:]
    expected = 1.0 / returns.std(axis=0, ddof=1)
    # the feature is clipped at five deviations and stored in float32
    assert np.allclose(inverse.detach().numpy(), expected / expected.sum(), atol=2e-3)
    own = policy(states)
    assert torch.equal(blended(policy, Blend(1.0, "equal-weight", volatility))(states).aim, own.aim)


def test_blends_are_played_by_the_ledger(trained: Trained) -> None:
    """Patient equal weight, played by hand; a blend without confidence is the same whatever the policy."""
    process = trained.trainer.training_data.process
    tensors, volatility = MarketTensors.of(process, CPU), trained.trainer.training_data.log_volatility
    bars = range(process.first_bar, process.first_bar + 40)
    policy = trained.trainer.agent.policy
    blocks = [BlockPolicy(policy, bars), BlockPolicy(policy, bars[:39])]
    whole, shorter = backtest_blends(blocks, process, tensors, volatility)
    assert np.array_equal(shorter, whole[:, :39])
    assert whole.shape == (2 * len(CONFIDENCES), 40)
    state = process.start(np.array([bars.start]), np.array([[0.25, 0.25, 0.25, 0.25, 0.0]]))
    equal = np.array([[0.25, 0.25, 0.25, 0.25, 0.0]])
    for step in range(40):
        taken = process.step(state, state.weights + 0.05 * (equal - state.weights))
        assert whole[0, step] == pytest.approx(taken.reward[0], abs=1e-6)  # decisions are float32
        state = taken.state


def test_evidence_prefers_the_stage_and_the_reference_that_gain() -> None:
    blocks = (Block(range(0, 300), ()), Block(range(300, 600), ()))
    rng = np.random.default_rng(0)
    early = 1e-3 * rng.standard_normal((10, 600))
    early[5] += 2e-3  # inverse volatility is the better reference
    later = early.copy()
    later[6:] = later[5] + 1e-3 * np.array(CONFIDENCES[1:])[:, None] + 2e-4 * rng.standard_normal((4, 600))
    for one in (early, later):
        one[1:5] = one[0]
    early[6:] = early[5]
    evidence = weigh_evidence([early, later], blocks, (0, 1.0), seed=0)
    assert (evidence.look, evidence.blend.reference) == (1, "inverse-volatility")
    assert evidence.blend.confidence > 0.95
    nothing = weigh_evidence([early], blocks, (0, 1.0), seed=0)
    assert nothing.blend.confidence == 0.0
    assert "nothing was found that holds out of sample; this agent holds inverse volatility" in nothing.describe()


def test_the_report_and_the_agent_number_the_references_alike() -> None:
    """The report reads a number that training logged; rooms below training cannot import the agent's list."""
    assert training_sections.REFERENCES == REFERENCES
