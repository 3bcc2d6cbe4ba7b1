"""Advantages against returns computed by hand and against their definitions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from finflow.agent.on_policy.on_policy_losses import (
    generalised_advantages,
    normalised,
)
from finflow.errors import ConfigError

GAMMA = 0.9


def episode(seed: int, steps: int = 7, environments: int = 3) -> dict[str, Tensor]:
    """Random rewards, values and ends; some episodes terminate, some are truncated."""
    generator = torch.Generator().manual_seed(seed)
    shape = (steps, environments)
    terminated = (torch.rand(shape, generator=generator) < 0.2).double()
    truncated = (torch.rand(shape, generator=generator) < 0.2).double()
    values, following, rewards = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    ended = torch.maximum(terminated, truncated)
    return {"rewards": rewards, "values": values, "next_values": following, "terminated": terminated, "ended": ended}


@given(st.integers(0, 1000))
def test_lambda_one_is_the_monte_carlo_return_less_the_value(seed: int) -> None:
    parts = episode(seed)
    steps = len(parts["rewards"])
    # between steps of an episode the next value is that of the next observation
    for step in range(steps - 1):
        going_on = parts["ended"][step] == 0
        parts["next_values"][step][going_on] = parts["values"][step + 1][going_on]
    found = generalised_advantages(**parts, gamma=GAMMA, lam=1.0)
    for environment in range(parts["rewards"].shape[1]):
        for start in range(steps):
            total, weight = 0.0, 1.0
            for step in range(start, steps):
                total += weight * float(parts["rewards"][step, environment])
                weight *= GAMMA
                if parts["ended"][step, environment] or step == steps - 1:
                    if not parts["terminated"][step, environment]:
                        total += weight * float(parts["next_values"][step, environment])
                    break
            assert float(found[start, environment]) == pytest.approx(
                total - float(parts["values"][start, environment]), abs=1e-12
            )


def test_truncation_is_bootstrapped_and_termination_is_not() -> None:
    one = torch.ones(1, 2)
    ends = {"terminated": torch.tensor([[1.0, 0.0]]), "ended": one}
    found = generalised_advantages(one, 0 * one, 10 * one, **ends, gamma=GAMMA, lam=0.95)
    torch.testing.assert_close(found, torch.tensor([[1.0, 10.0]]))


def test_shapes_that_do_not_fit_are_one_line() -> None:
    parts = episode(0)
    parts["values"] = parts["values"][:-1]
    with pytest.raises(ConfigError, match="one shape"):
        generalised_advantages(**parts, gamma=GAMMA, lam=0.95)


def test_normalised_advantages_have_mean_zero_and_deviation_one() -> None:
    found = normalised(torch.tensor([3.0, 5.0, 10.0]))
    assert float(found.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(found.std()) == pytest.approx(1.0, abs=1e-6)
    assert normalised(torch.tensor([3.0])).tolist() == [3.0]
    assert normalised(torch.ones(4)).tolist() == [0.0] * 4
