"""The pinball loss: its formula and gradient, and what it learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from finflow.agent.losses.quantiles import pinball_loss


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def direct_loss(quantiles: torch.Tensor, samples: torch.Tensor, width: float) -> torch.Tensor:
    """The formula over all pairs."""
    count = quantiles.shape[-1]
    levels = ((torch.arange(count, dtype=torch.float64) + 0.5) / count)[:, None]
    difference = samples.unsqueeze(-2) - quantiles.unsqueeze(-1)
    size = difference.abs()
    huber = torch.where(size <= width, 0.5 * difference**2, width * (size - 0.5 * width)) / width
    return ((levels - (difference < 0).double()).abs() * huber).mean(dim=(1, 2, 3)).sum()


@settings(deadline=None, max_examples=60)
@given(
    counts=st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)),
    scale=st.sampled_from([1e-3, 0.05, 1.0, 1e4]),
    seed=st.integers(0, 100),
)
def test_pinball_loss_equals_the_unfused_formula_and_its_gradient(
    counts: tuple[int, int, int, int], scale: float, seed: int
) -> None:
    # samples tie with each other; quantiles come in any layout of memory
    critics, batch, n_quantiles, n_samples = counts
    quantiles = (normal(n_quantiles, batch, critics, seed=seed) * scale).transpose(0, 2).requires_grad_()
    samples = normal(critics, batch, n_samples, seed=seed + 1) * scale
    samples[..., -1] = samples[..., 0]
    direct, found = (loss(quantiles, samples, 0.05) for loss in (direct_loss, pinball_loss))
    assert found.item() == pytest.approx(direct.item(), rel=1e-10)
    (expected,) = torch.autograd.grad(direct, quantiles)
    (slope,) = torch.autograd.grad(found, quantiles)
    torch.testing.assert_close(slope, expected, rtol=1e-8, atol=1e-12)


def test_pinball_loss_converges_to_the_quantiles_of_a_skewed_law() -> None:
    # fresh draws of an exponential at every step, as targets are in learning; its quantiles are -log(1 - level)
    generator = torch.Generator().manual_seed(0)
    quantiles = torch.ones(1, 1, 8, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([quantiles], lr=0.05)
    rates = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.995)
    for _ in range(1200):
        samples = -torch.rand(1, 1, 500, generator=generator, dtype=torch.float64).log()
        optimiser.zero_grad()
        pinball_loss(quantiles, samples, width=0.005).backward()
        optimiser.step()
        rates.step()
    levels = (np.arange(8) + 0.5) / 8
    # a quantile from n draws errs by sqrt(level (1 - level) / n) / density; some hundred steps are averaged
    error = np.sqrt(levels / (1.0 - levels) / (500 * 100))
    assert (np.abs(quantiles.detach().numpy().ravel() + np.log(1.0 - levels)) < 4.0 * error + 0.005).all()


@pytest.mark.parametrize("place", ["quantiles", "samples"])
def test_a_number_that_is_not_finite_is_not_hidden(place: str) -> None:
    # the optimiser skips a step whose gradient is not finite, so the loss has to show it
    numbers = {"quantiles": normal(2, 3, 8), "samples": normal(2, 3, 8, seed=1)}
    numbers[place][0, 1, 2] = float("nan")
    quantiles = numbers["quantiles"].requires_grad_()
    loss = pinball_loss(quantiles, numbers["samples"])
    loss.backward()
    assert quantiles.grad is not None
    assert not loss.isfinite()
    assert not quantiles.grad.isfinite().all()
