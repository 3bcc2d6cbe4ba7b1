"""Gradient of the wealth factor of a trade: closed forms, where the equation can be solved by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from finflow.config import EnvConfig
from finflow.ledger.accounting import settle
from finflow.ledger.costs import FixedMinimum, Proportional, costs_of

RATE = 0.05  # so high that the iteration's own contribution to the gradient, of the order of the rate, would show


def test_buying_from_cash_has_the_closed_form() -> None:
    """``mu = 1 - c mu a`` has the root ``1 / (1 + c a)``, whose slope in a is ``- c / (1 + c a)^2``."""
    share = torch.tensor([0.3, 0.9], dtype=torch.float64, requires_grad=True)
    target = torch.stack([share, 1.0 - share], dim=-1)
    before = torch.tensor([[0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    factor = settle(before, target, Proportional(RATE), torch.ones(2, dtype=torch.float64)).wealth_factor
    (slope,) = torch.autograd.grad(factor.sum(), share)
    known = share.detach()
    torch.testing.assert_close(factor.detach(), 1.0 / (1.0 + RATE * known), rtol=1e-14, atol=0.0)
    torch.testing.assert_close(slope, -RATE / (1.0 + RATE * known) ** 2, rtol=1e-12, atol=0.0)


def test_a_commission_s_minimum_costs_less_the_richer_the_account() -> None:
    """``mu = 1 - m / W``: its slope in wealth is ``m / W^2``."""
    wealth = torch.tensor([100.0], dtype=torch.float64, requires_grad=True)
    before = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    target = torch.tensor([[0.1, 0.9]], dtype=torch.float64)
    factor = settle(before, target, FixedMinimum(0.0, 2.0), wealth).wealth_factor
    (slope,) = torch.autograd.grad(factor.sum(), wealth)
    assert float(slope) == pytest.approx(2.0 / 100.0**2, rel=1e-12)


def test_the_root_is_the_accounts_own() -> None:
    """Rounding apart, as NumPy's portfolios are settled."""
    rng = np.random.default_rng(0)
    before, target = rng.dirichlet(np.ones(6), 20), rng.dirichlet(np.ones(6), 20)
    costs, wealth = costs_of(EnvConfig()), np.full(20, 1e6)
    exact = settle(before, target, costs, wealth)
    tensors = (torch.from_numpy(before), torch.from_numpy(target).requires_grad_())
    found = settle(*tensors, costs, torch.from_numpy(wealth))
    np.testing.assert_allclose(found.wealth_factor.detach().numpy(), exact.wealth_factor, rtol=1e-15)
    np.testing.assert_allclose(found.weights.detach().numpy(), exact.weights, atol=1e-15)
