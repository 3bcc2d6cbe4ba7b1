"""A reward model as a reward: the scores that were learned, NumPy and torch alike, and gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from finflow.config import Config
from finflow.env.decision_process import DecisionProcess
from finflow.env.rewards.chosen_reward import RewardSum, RewardTerm, with_reward
from finflow.errors import CheckpointError
from finflow.preferences.judges import make_judge
from finflow.preferences.model_files import save_model
from finflow.preferences.model_report import learn_model
from finflow.preferences.pair_tensors import PairTensors
from finflow.preferences.preference_reward import PreferenceReward
from finflow.preferences.segment_paths import SegmentMarket
from finflow.training.data.rollouts import as_tensors
from finflow.training.data.training_data import TrainingData
from tests.preferences.conftest import judged_pairs


@pytest.fixture(scope="module")
def pairs(small_market: SegmentMarket, small_config: Config) -> PairTensors:
    settings = small_config.preferences.judge
    return judged_pairs(small_market, make_judge("log-growth", settings, 252), 80, settings)


@pytest.fixture(scope="module")
def reward(pairs: PairTensors, small_data: TrainingData, tmp_path_factory: pytest.TempPathFactory) -> PreferenceReward:
    config = small_data.config.preferences.model.model_copy(update={"epochs": 2})
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_model(path, learn_model(pairs, small_data.shape, config, seed=0), config, ("a",))
    return PreferenceReward(path)


@pytest.fixture(scope="module")
def rewarded(reward: PreferenceReward, small_data: TrainingData) -> DecisionProcess:
    return with_reward(small_data.process, RewardSum([RewardTerm("desk:Desk", reward)]))


def test_rewards_of_a_segment_sum_to_its_score(
    pairs: PairTensors, reward: PreferenceReward, rewarded: DecisionProcess
) -> None:
    rows = slice(int(pairs.offsets[0, 4]), int(pairs.offsets[0, 4] + pairs.lengths[4]))
    held, filled = (one[rows].double().numpy() for one in (pairs.decisions.held, pairs.decisions.filled))
    state = rewarded.start(pairs.bars[rows].numpy(), held)
    # a target is stated at the prices of the held weights: drifted to the fill it is what was filled
    growth = rewarded.growth[pairs.bars[rows].numpy()]
    target = filled / growth
    step = rewarded.step(state, target / target.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(step.filled, filled, atol=1e-5)
    model = reward._saved.model
    score = pairs.all_scores(model, np.array([4]))[0].mean() / model.temperature
    assert float(step.reward.sum()) == pytest.approx(float(score), abs=5e-3)


def test_torch_gives_what_numpy_gives_with_gradients(rewarded: DecisionProcess) -> None:
    bars = np.arange(300, 306)
    rng = np.random.default_rng(0)
    held, target = (rng.dirichlet(np.ones(rewarded.n_weights), size=len(bars)) for _ in range(2))
    plain = rewarded.step(rewarded.start(bars, held), target).reward
    action = torch.from_numpy(target).requires_grad_()
    found = rewarded.step(as_tensors(rewarded.start(bars, held), torch.device("cpu")), action).reward
    np.testing.assert_allclose(found.detach().numpy(), plain, atol=1e-5)
    (gradient,) = torch.autograd.grad(found.sum(), action)
    assert torch.isfinite(gradient).all()
    assert float(gradient.abs().min(dim=1).values.max()) > 0.0


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        PreferenceReward(tmp_path / "none.safetensors")
