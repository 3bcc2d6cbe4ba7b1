"""Losses of preferences against closed forms, finite differences and TRL's formula with numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from finflow.config.preferences_section import PolicyLearningConfig
from finflow.preferences.model_training import preference_loss
from finflow.preferences.policy_training import DirectObjective


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_loss_is_that_of_trls_reward_trainer() -> None:
    # RewardTrainer: -logsigmoid(rewards_chosen - rewards_rejected).mean()
    found = preference_loss(double(1.0, -1.0, 0.5), double(1.0, 1.0, 1.0)).mean()
    # log(1 + e^-1) = 0.3132616875, log(1 + e) = 1.3132616875, log(1 + e^-0.5) = 0.4740769842
    assert float(found) == pytest.approx((0.3132616875182228 + 1.3132616875182228 + 0.4740769841801067) / 3, abs=1e-15)


def test_a_tie_is_half_of_each_answer_and_turning_a_pair_round_changes_nothing() -> None:
    lead = double(0.8, -1.6)
    one, other, tie = (preference_loss(lead, double(target, target)) for target in (1.0, 0.0, 0.5))
    torch.testing.assert_close(tie, 0.5 * (one + other), atol=1e-15, rtol=0.0)
    torch.testing.assert_close(preference_loss(-lead, double(0.0, 0.0)), one, atol=1e-15, rtol=0.0)


def test_with_mistakes_no_pair_weighs_more_than_their_share() -> None:
    found = preference_loss(double(0.9, -1e4, 1e4), double(1.0, 1.0, 1.0), mistakes=0.1)
    expected = [-math.log(0.1 + 0.8 / (1.0 + math.exp(-0.9))), -math.log(0.1), -math.log(0.9)]
    torch.testing.assert_close(found, double(*expected), atol=1e-14, rtol=0.0)


@pytest.mark.parametrize(("mistakes", "margin"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.5)])
def test_gradients_agree_with_finite_differences_and_far_leads_have_finite_losses(
    mistakes: float, margin: float
) -> None:
    targets = double(1.0, 0.0, 0.5)
    lead = double(0.8, -1.6, 7.0).requires_grad_()
    assert torch.autograd.gradcheck(lambda one: preference_loss(one, targets, mistakes, margin), [lead])
    assert torch.isfinite(preference_loss(double(1e4, -1e4, 1e4), targets, mistakes, margin)).all()
    assert preference_loss(double(1e4, -1e4), double(1.0, 1.0)).tolist() == [0.0, 1e4]


def objective(method: str, reference: torch.Tensor, *lengths: float) -> DirectObjective:
    config = PolicyLearningConfig(dpo_beta=0.1)
    return DirectObjective(method, config, reference, double(*lengths), torch.ones(len(lengths)))  # type: ignore[arg-type]


def test_dpo_in_closed_form() -> None:
    reference = torch.stack([double(1.0, 2.0), double(-1.0, 3.0)])
    ratios = torch.stack([double(1.5, -0.5), double(0.5, 1.0)])
    found = objective("dpo", reference, 3.0, 3.0).losses(reference + ratios, np.arange(2))
    expected = [math.log1p(math.exp(-0.1 * lead)) for lead in (1.0, -1.5)]
    torch.testing.assert_close(found, double(*expected), atol=1e-15, rtol=0.0)


def test_simpo_in_closed_form() -> None:
    found = objective("simpo", torch.zeros(2, 1), 4.0).losses(double(8.0, 2.0)[:, None], np.arange(1))
    # 2 * 8 / 4 - 2 * 2 / 4 - 0.5 = 2.5
    assert float(found) == pytest.approx(math.log1p(math.exp(-2.5)))
