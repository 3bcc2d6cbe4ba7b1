"""Losses of preferences against closed forms, finite differences and TRL's formula with numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from finflow.preferences.preference_losses import dpo_loss, preference_loss, simpo_loss


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_loss_is_that_of_trls_reward_trainer() -> None:
    # RewardTrainer: -logsigmoid(rewards_chosen - rewards_rejected).mean(), here for leads 1, -1 and 0.5
    chosen, rejected = double(2.0, 0.0, 1.0), double(1.0, 1.0, 0.5)
    found = preference_loss(chosen, rejected, double(1.0, 1.0, 1.0)).mean()
    # log(1 + e^-1) = 0.3132616875, log(1 + e) = 1.3132616875, log(1 + e^-0.5) = 0.4740769842
    assert float(found) == pytest.approx((0.3132616875182228 + 1.3132616875182228 + 0.4740769841801067) / 3, abs=1e-15)


def test_a_tie_is_half_of_each_answer_and_turning_a_pair_round_changes_nothing() -> None:
    first, second = double(0.3, -1.2), double(-0.5, 0.4)
    one, other = (preference_loss(first, second, double(target, target)) for target in (1.0, 0.0))
    tie = preference_loss(first, second, double(0.5, 0.5))
    torch.testing.assert_close(tie, 0.5 * (one + other), atol=1e-15, rtol=0.0)
    torch.testing.assert_close(preference_loss(second, first, double(0.0, 0.0)), one, atol=1e-15, rtol=0.0)


def test_gradients_agree_with_finite_differences() -> None:
    scores = [double(0.3, -1.2, 4.0).requires_grad_(), double(-0.5, 0.4, -3.0).requires_grad_()]
    targets = double(1.0, 0.0, 0.5)
    assert torch.autograd.gradcheck(lambda a, b: preference_loss(a, b, targets), scores)
    assert torch.autograd.gradcheck(lambda a, b: dpo_loss(a, b, 0.3), scores)
    lengths = double(2.0, 3.0, 4.0)
    assert torch.autograd.gradcheck(lambda a, b: simpo_loss(a, b, (lengths, lengths), 2.0, 0.5), scores)


def test_with_mistakes_no_pair_weighs_more_than_their_share() -> None:
    first, second, targets = double(0.7, -1e4, 1e4), double(-0.2, 0.0, 0.0), double(1.0, 1.0, 1.0)
    found = preference_loss(first, second, targets, mistakes=0.1)
    expected = [-math.log(0.1 + 0.8 / (1.0 + math.exp(-0.9))), -math.log(0.1), -math.log(0.9)]
    torch.testing.assert_close(found, double(*expected), atol=1e-14, rtol=0.0)
    scores = [double(0.3, -1.2, 4.0).requires_grad_(), double(-0.5, 0.4, -3.0).requires_grad_()]
    assert torch.autograd.gradcheck(lambda a, b: preference_loss(a, b, double(1.0, 0.0, 0.5), 0.1), scores)


def test_far_scores_have_finite_losses() -> None:
    found = preference_loss(double(1e4, -1e4), double(0.0, 0.0), double(1.0, 1.0))
    assert found.tolist() == [0.0, 1e4]


def test_dpo_in_closed_form() -> None:
    chosen, rejected = double(1.5, -0.5), double(0.5, 1.0)
    expected = [math.log1p(math.exp(-0.1 * lead)) for lead in (1.0, -1.5)]
    torch.testing.assert_close(dpo_loss(chosen, rejected, 0.1), double(*expected), atol=1e-15, rtol=0.0)
    assert dpo_loss(chosen, chosen, 0.1).tolist() == pytest.approx([math.log(2.0)] * 2)


def test_simpo_in_closed_form() -> None:
    chosen, rejected, lengths = double(6.0), double(2.0), (double(3.0), double(4.0))
    # 2 * 6 / 3 - 2 * 2 / 4 - 0.5 = 2.5
    assert float(simpo_loss(chosen, rejected, lengths, 2.0, 0.5)) == pytest.approx(math.log1p(math.exp(-2.5)))
