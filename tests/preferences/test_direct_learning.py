"""Losses of preferences by hand; DPO and SimPO of a policy: toward what is preferred, as far as beta lets it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from finflow.agent.learners.offline_learner import make_policy
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.networks.policy_ensemble import FrozenPolicy
from finflow.config.evaluation_sections import PolicyLearningConfig
from finflow.errors import FinflowError
from finflow.preferences.judged_pairs import synthetic_judge
from finflow.preferences.model_training import LearningReport, preference_loss
from finflow.preferences.pairs import SegmentMarket
from finflow.preferences.policy_training import (
    DirectObjective,
    Method,
    all_densities,
    learn_policy,
    segment_density,
)
from finflow.preferences.preference_reward import PairTensors, states_holding
from finflow.training.data.training_data import TrainingData
from tests.preferences.conftest import judged_pairs

Learn = Callable[..., tuple[ExpertPolicy, LearningReport]]
QUICK = {"learning_rate": 1e-2}


@pytest.fixture(scope="module")
def pairs(small_market: SegmentMarket) -> PairTensors:
    """Answers of a judge who prefers what holds more cash."""
    judge = synthetic_judge(lambda path: float(path.filled[:, -1].mean()))
    return judged_pairs(small_market, judge, 300)


@pytest.fixture(scope="module")
def learn(small_data: TrainingData, pairs: PairTensors) -> Learn:
    """Learns by a method, with keys of ``preferences.policy`` changed."""

    def learned(method: Method, **keys: float) -> tuple[ExpertPolicy, LearningReport]:
        policy = fresh(small_data)
        own = small_data.config.preferences.policy.model_copy(update={**QUICK, **keys})
        reference = FrozenPolicy.of(policy, small_data.log_volatility)
        return policy, learn_policy(policy, reference, pairs, method, own, seed=0)

    return learned


def fresh(small_data: TrainingData) -> ExpertPolicy:
    return make_policy(small_data.shape, small_data.config.bcell, torch.Generator().manual_seed(0))


@torch.no_grad()
def cash_of(policy: ExpertPolicy, pairs: PairTensors) -> float:
    """Mean weight of cash that a policy decides on, from equal weight."""
    bars = torch.arange(400, 600)
    states = states_holding(pairs.assets[bars], pairs.market[bars], torch.full((200, 4), 0.25))
    return float(policy(states).distribution.centre()[:, -1].mean())


@pytest.mark.parametrize("method", ["dpo", "simpo"])
def test_a_policy_moves_toward_what_is_preferred(
    learn: Learn, small_data: TrainingData, pairs: PairTensors, method: Method
) -> None:
    policy, found = learn(method, dpo_beta=0.03)
    assert cash_of(policy, pairs) > 1.5 * cash_of(fresh(small_data), pairs)
    before, after = (found.figures[name].accuracy or 0.0 for name in ("before", "held_out"))
    assert after > before + 0.15
    assert found.numbers["divergence"] > 0.0


def test_a_larger_beta_stays_nearer_to_the_reference(learn: Learn) -> None:
    free, bound = (learn("dpo", dpo_beta=beta, epochs=5)[1].numbers["divergence"] for beta in (0.03, 0.3))
    assert free > bound > 0.0


def test_a_segment_is_as_likely_as_its_decisions_together(small_data: TrainingData, pairs: PairTensors) -> None:
    policy, chosen = fresh(small_data), np.array([7, 2])
    with torch.no_grad():
        total = segment_density(policy, pairs, chosen)[0]
        rows = slice(int(pairs.offsets[1, 2]), int(pairs.offsets[1, 2] + pairs.lengths[2]))
        bars = pairs.bars[rows]
        states = states_holding(pairs.assets[bars], pairs.market[bars], pairs.decisions.held[rows])
        smoothed = 0.9 * pairs.decisions.filled[rows].double() + 0.1 / 4.0
        each = policy(states).distribution.log_density(smoothed) / 3.0
    torch.testing.assert_close(total[1, 1], each.sum(), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(all_densities(policy, pairs, chosen)[0], total)


def test_dpo_is_relative_to_its_reference_and_simpo_is_not(small_data: TrainingData, pairs: PairTensors) -> None:
    reference, rows = fresh(small_data), np.arange(20)
    config = small_data.config.preferences.policy
    dpo = DirectObjective.of("dpo", config, pairs, reference)
    known = dpo.reference[:, rows]
    assert bool((dpo.leads(known, rows) == 0.0).all())
    torch.testing.assert_close(dpo.losses(known, rows), torch.full((20,), float(np.log(2.0)), dtype=torch.float64))
    assert float(DirectObjective.of("simpo", config, pairs, reference).leads(known, rows).abs().min()) > 0.0


def test_a_policy_that_learns_nothing_is_refused(small_data: TrainingData, pairs: PairTensors) -> None:
    policy = fresh(small_data)
    before = copy.deepcopy(policy.state_dict())
    drawn = torch.from_numpy(np.random.default_rng(1).permutation(pairs.targets.numpy()))
    shuffled = PairTensors(**{**pairs._asdict(), "targets": drawn})
    own = small_data.config.preferences.policy.model_copy(update={"dpo_beta": 5.0, "learning_rate": 0.05})
    with pytest.raises(FinflowError, match=r"lower preferences\.policy\.dpo_beta"):
        learn_policy(policy, FrozenPolicy.of(policy, small_data.log_volatility), shuffled, "dpo", own, seed=0)
    assert all(bool((policy.state_dict()[name] == tensor).all()) for name, tensor in before.items())


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_loss_is_that_of_trls_reward_trainer() -> None:
    # RewardTrainer: -logsigmoid(rewards_chosen - rewards_rejected).mean()
    found = preference_loss(double(1.0, -1.0, 0.5), double(1.0, 1.0, 1.0)).mean()
    # log(1 + e^-1) = 0.3132616875, log(1 + e) = 1.3132616875, log(1 + e^-0.5) = 0.4740769842
    assert float(found) == pytest.approx((0.3132616875182228 + 1.3132616875182228 + 0.4740769841801067) / 3, abs=1e-15)
    assert preference_loss(double(1e4, -1e4), double(1.0, 1.0)).tolist() == [0.0, 1e4]


def test_a_tie_is_half_of_each_answer_and_turning_a_pair_round_changes_nothing() -> None:
    lead = double(0.8, -1.6)
    one, other, tie = (preference_loss(lead, double(target, target)) for target in (1.0, 0.0, 0.5))
    torch.testing.assert_close(tie, 0.5 * (one + other), atol=1e-15, rtol=0.0)
    torch.testing.assert_close(preference_loss(-lead, double(0.0, 0.0)), one, atol=1e-15, rtol=0.0)


def test_with_mistakes_no_pair_weighs_more_than_their_share() -> None:
    found = preference_loss(double(0.9, -1e4, 1e4), double(1.0, 1.0, 1.0), mistakes=0.1)
    expected = [-math.log(0.1 + 0.8 / (1.0 + math.exp(-0.9))), -math.log(0.1), -math.log(0.9)]
    torch.testing.assert_close(found, double(*expected), atol=1e-14, rtol=0.0)


def loss_of(method: Method, totals: torch.Tensor, reference: torch.Tensor, length: float) -> torch.Tensor:
    """Losses of pairs of segments of a length whose first one is better, of densities (2, pairs)."""
    pairs = totals.shape[1]
    config = PolicyLearningConfig(dpo_beta=0.1)
    objective = DirectObjective(method, config, reference, double(*[length] * pairs), torch.ones(pairs))
    return objective.losses(totals, np.arange(pairs))


def test_dpo_and_simpo_in_closed_form() -> None:
    reference = torch.stack([double(1.0, 2.0), double(-1.0, 3.0)])
    ratios = torch.stack([double(1.5, -0.5), double(0.5, 1.0)])
    expected = [math.log1p(math.exp(-0.1 * lead)) for lead in (1.0, -1.5)]
    torch.testing.assert_close(
        loss_of("dpo", reference + ratios, reference, 3.0), double(*expected), atol=1e-15, rtol=0
    )
    # 2 * 8 / 4 - 2 * 2 / 4 - 0.5 = 2.5
    found = loss_of("simpo", double(8.0, 2.0)[:, None], torch.zeros(2, 1), 4.0)
    assert float(found) == pytest.approx(math.log1p(math.exp(-2.5)))
