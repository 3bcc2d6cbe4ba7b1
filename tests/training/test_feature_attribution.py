"""Features that moved a decision: what a linear policy gives, completeness, and what must not change it."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor, nn

from finflow.agent.batch import States
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.logistic_normal import LogisticNormal, log_ratios
from finflow.agent.networks.policy import ExpertPolicy
from finflow.training.judging.explainer import decide, in_double, integrated_gradients, states_in_double

SHAPE = NetworkShape(n_asset_features=5, n_market_features=3, hidden=32, lenses=((0,), (1,), (2,), (3,), (0, 3)))


def made_policy(seed: int = 0) -> ExpertPolicy:
    policy = ExpertPolicy(SHAPE, Generator().manual_seed(seed))
    with torch.no_grad():  # a trained one is no longer near its beginnings
        for parameter in policy.parameters():
            parameter.mul_(2.0)
    return policy


def made_states(assets: int = 6, seed: int = 1, unlisted: tuple[int, ...] = ()) -> States:
    generator = Generator().manual_seed(seed)
    features = torch.randn((1, assets, 5), generator=generator)
    features[:, :, -1] = 1.0
    for asset in unlisted:
        features[:, asset] = 0.0
    weights = torch.softmax(torch.randn((1, assets + 1), generator=generator), dim=-1)
    portfolio = torch.cat([weights, torch.randn((1, 3), generator=generator)], dim=-1)
    return States(features, torch.randn((1, 3), generator=generator), portfolio, complete=not unlisted)


class Linear(nn.Module):
    """Its centre is linear in two features of each asset and one of the market: the parts are known."""

    def forward(self, states: States) -> object:
        moved = 0.01 * states.assets[:, :, 0] - 0.02 * states.assets[:, :, 2] + 0.005 * states.market[:, 1:2]
        moved = moved + 0.0 * states.reward_state.sum()
        centre = torch.cat([0.1 + moved, 1.0 - (0.1 + moved).sum(-1, keepdim=True)], dim=-1)

        class DecisionViews:
            distribution = LogisticNormal(log_ratios(centre), torch.zeros_like(log_ratios(centre)))

        return DecisionViews


def test_of_a_linear_decision_each_feature_has_its_own_term() -> None:
    states = states_in_double(made_states(4))
    direction = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    found = integrated_gradients(Linear(), states, direction)  # type: ignore[arg-type]
    expected = torch.zeros_like(found.assets)
    expected[0, 0, 0] = 0.01 * states.assets[0, 0, 0]
    expected[0, 0, 2] = -0.02 * states.assets[0, 0, 2]
    torch.testing.assert_close(found.assets, expected, atol=1e-9, rtol=0.0)
    torch.testing.assert_close(found.market, torch.tensor([[0.0, 0.005, 0.0]]).double() * states.market)
    assert float(found.reward_state.abs().max()) == 0.0
    assert float(found.baseline) == pytest.approx(0.1)


@pytest.mark.parametrize("unlisted", [(), (1, 4)])
def test_the_parts_sum_to_the_difference_from_the_baseline(unlisted: tuple[int, ...]) -> None:
    policy, states = in_double(made_policy()), states_in_double(made_states(unlisted=unlisted))
    directions = torch.eye(7, dtype=torch.float64)[:3]
    found = integrated_gradients(policy, states, directions)
    whole = found.assets.sum((1, 2)) + found.market.sum(1) + found.reward_state.sum(1)
    torch.testing.assert_close(whole - (found.value - found.baseline), found.error)
    assert float(found.error.abs().max()) <= 1e-4
    assert float((found.value - found.baseline).abs().max()) > 1e-3, "there is something to explain"
    torch.testing.assert_close(found.value, decide(policy, states).distribution.centre()[0, :3])
    for asset in unlisted:
        assert float(found.assets[:, asset].abs().max()) == 0.0


def test_steps_are_doubled_until_the_error_is_small_or_the_most_is_reached() -> None:
    policy, states = in_double(made_policy()), states_in_double(made_states())
    directions = torch.eye(7, dtype=torch.float64)[:1]
    rough = integrated_gradients(policy, states, directions, tolerance=1.0)
    fine = integrated_gradients(policy, states, directions, tolerance=0.0, most=256)
    assert (rough.steps, fine.steps) == (64, 256)
    assert float(fine.error.abs().max()) < 1e-3


def test_the_policy_itself_is_left_as_it_is() -> None:
    policy, states = made_policy(), made_states()
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    integrated_gradients(in_double(policy), states_in_double(states), torch.eye(7, dtype=torch.float64)[:1])
    for name, tensor in policy.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, before[name])
    parameters: list[Tensor] = list(policy.parameters())
    assert all(parameter.grad is None for parameter in parameters)
