"""The decision process in torch is the one in NumPy, and its rewards have true gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from finflow.config import CostsConfig
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState
from tests.env.conftest import EVERYTHING, LAGS, build_process, in_torch, random_prices

BARS, ASSETS, BATCH = 40, 5, 6
K, CRASH = ASSETS + 1, 30
LIMITS = {"max_weight": 0.5, "max_turnover": 0.4, "no_trade_band": 0.02}
PENALTIES = {"lambda_dd": 2.0, "lambda_cvar": 5.0, "lambda_turn": 1.0}


def made(seed: int, ragged: bool = False, paying: bool = False, **env: Any) -> DecisionProcess:
    """A market with volume and a crash; where it is ragged one asset lists at bar 14 and one ends at bar 18.

    Where it is paying, assets pay a tenth of their price in cash every few bars.
    """
    close = random_prices(bars=BARS, assets=ASSETS, seed=seed, deviation=0.05)
    close[CRASH:] *= 0.85
    volume = np.random.default_rng(seed).lognormal(12.0, 1.0, size=close.shape)
    if ragged:
        for table in (close, volume):
            table[:14, 0] = table[18:, 1] = np.nan
    fields = {"volume": volume}
    if paying:
        pays = np.arange(BARS)[:, None] % (np.arange(ASSETS) + 4) == 0
        fields |= {"dividends": 0.1 * pays + 0.0 * close, "quoted": close}
    return build_process(close, 1e-4, PENALTIES, fields, **env)


def assert_equal(theirs: Any, ours: Any) -> None:
    """Tensors of the same kind of number, equal to 1e-10."""
    assert isinstance(theirs, torch.Tensor)
    assert theirs.numpy().dtype == ours.dtype
    np.testing.assert_allclose(theirs.numpy(), ours, rtol=1e-10, atol=1e-10)


@LAGS
@pytest.mark.parametrize("costs", [CostsConfig(), EVERYTHING], ids=["proportional", "every cost"])
@pytest.mark.parametrize("limits", [{}, LIMITS], ids=["free", "limited"])
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32 - 1), ragged=st.booleans(), paying=st.booleans(), capital=st.sampled_from([20.0, 1e6]))
def test_torch_sees_and_does_what_numpy_does(
    lag: int, costs: CostsConfig, limits: dict[str, float], seed: int, ragged: bool, paying: bool, capital: float
) -> None:
    """Batched, over random decisions on the simplex and off it; with a capital of 20 some orders cannot be paid for."""
    process = made(seed, ragged, paying, execution_lag=lag, costs=costs, initial_capital=capital, **limits)
    rng = np.random.default_rng(seed)
    state = process.start(rng.integers(8, 20, size=BATCH), rng.dirichlet(np.full(K, 0.5), size=BATCH))
    tensors = in_torch(state)
    for step in range(12):
        seen, known = process.observe(tensors), process.observe(state)
        assert seen.keys() == known.keys()
        for name, value in known.items():
            assert_equal(seen[name], value)
        action = rng.dirichlet(np.full(K, 0.4), size=BATCH) if step % 3 else rng.normal(size=(BATCH, K))
        left, right = process.step(state, action), process.step(tensors, torch.from_numpy(action))
        for name, value in left._asdict().items():
            if name == "state":
                for field, number in vars(value).items():
                    assert_equal(getattr(right.state, field), number)
            elif value is None:
                assert getattr(right, name) is None
            else:
                assert_equal(getattr(right, name), value)
        state, tensors = left.state, right.state


@pytest.mark.parametrize(
    ("lag", "costs", "limits"),
    [
        (0, CostsConfig(), {"max_weight": 0.4}),
        (1, CostsConfig(), {"max_turnover": 0.2}),
        (2, CostsConfig(), {}),
        (0, EVERYTHING, {"max_turnover": 0.2}),
        (1, EVERYTHING, {}),
        (2, EVERYTHING, {"max_weight": 0.4}),
    ],
)
def test_a_reward_has_its_true_gradient(lag: int, costs: CostsConfig, limits: dict[str, float]) -> None:
    """By the decision, the weights held, the wealth and the state of the reward; away from kinks, with every component.

    All are below their highest; the third one's next day is the crash, which costs more than the target of the CVaR.
    """
    process = made(4, execution_lag=lag, costs=costs, **limits)
    rng = np.random.default_rng(1)
    state = process.start(np.array([24, 27, CRASH - 1]), rng.dirichlet(np.ones(K), size=3))
    below = np.array([-0.2, -0.3, -0.1])
    moved = np.concatenate([state.objective[:, :2] * 1.1, below[:, None]], axis=1)
    inputs = (rng.dirichlet(np.ones(K), size=3), state.weights, state.wealth / 1e6, moved)
    leaves = tuple(torch.from_numpy(np.array(value)).requires_grad_() for value in inputs)

    def reward(action: Any, weights: Any, millions: Any, objective: Any) -> Any:
        portfolio = weights / weights.sum(-1, keepdim=True)
        held = PortfolioState(state.bar, portfolio, 1e6 * millions, objective, objective)
        outcome = process.step(held, action / action.sum(-1, keepdim=True))
        assert outcome.refused is None
        return outcome.reward, outcome.components

    assert torch.autograd.gradcheck(reward, leaves, eps=1e-7, atol=1e-5)
    total, components = reward(*leaves)
    assert (components[2, 3] < 0.0).item()
    assert (components[:, 4] < 0.0).any().item()
    *others, of_wealth, of_state = torch.autograd.grad(total.sum(), leaves, allow_unused=True)
    assert all((gradient != 0.0).any().item() for gradient in (*others, of_state))
    assert (of_wealth is not None) == (costs is EVERYTHING)  # of the account's size only where costs are


def test_a_chain_of_decisions_is_differentiated_through_the_account() -> None:
    """What the first of three decisions changes in the wealth after all of them: costs, drift and all."""
    process = made(4)
    rng = np.random.default_rng(2)
    start = in_torch(process.start(np.array([12, 15]), rng.dirichlet(np.ones(K), size=2)))
    targets = tuple(torch.from_numpy(rng.dirichlet(np.ones(K), size=2)).requires_grad_() for _ in range(3))

    def wealth(*actions: Any) -> Any:
        state = start
        for action in actions:
            state = process.step(state, action / action.sum(-1, keepdim=True)).state
        return torch.log(state.wealth)

    assert torch.autograd.gradcheck(wealth, targets, eps=1e-7, atol=1e-6)
