"""The pinball loss: its formula and gradient, what it learns, and the same bits by tensors and by the compiled loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from finflow.agent.losses.pinball import compiled_losses, pinball_loss, tensor_losses
from finflow.agent.precision import no_denormals


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_pinball_loss_equals_the_unfused_formula_and_its_gradient() -> None:
    quantiles, samples = normal(2, 5, 8).requires_grad_(), normal(2, 5, 6, seed=1)
    levels = ((torch.arange(8, dtype=torch.float64) + 0.5) / 8)[:, None]
    difference = samples.unsqueeze(-2) - quantiles.unsqueeze(-1)
    width = 0.05
    size = difference.abs()
    huber = torch.where(size <= width, 0.5 * difference**2, width * (size - 0.5 * width)) / width
    direct = ((levels - (difference < 0).double()).abs() * huber).mean(dim=(1, 2, 3)).sum()
    fused = pinball_loss(quantiles, samples, width)
    assert fused.item() == pytest.approx(direct.item(), rel=1e-12)
    (expected,) = torch.autograd.grad(direct, quantiles)
    (found,) = torch.autograd.grad(fused, quantiles)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)
    assert torch.autograd.gradcheck(lambda q: pinball_loss(q, samples, width), quantiles)


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


@settings(deadline=None, max_examples=60)
@given(
    counts=st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)),
    scale=st.sampled_from([1e-41, 1e-3, 0.05, 1.0, 1e4]),
    kind=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 100),
)
def test_the_compiled_loop_has_the_bits_of_the_tensor_operations(
    counts: tuple[int, int, int, int], scale: float, kind: torch.dtype, seed: int
) -> None:
    # counts could differ where samples tie with each other or with a quantile; denormal numbers are zero in both
    critics, batch, n_quantiles, n_samples = counts
    quantiles = (normal(critics, batch, n_quantiles, seed=seed) * scale).to(kind)
    samples = (normal(critics, batch, n_samples, seed=seed + 1) * scale).to(kind)
    samples[..., -1] = samples[..., 0]
    quantiles[..., 0] = samples[..., 0]
    ordered = samples.sort(dim=-1).values
    levels = ((torch.arange(n_quantiles) + 0.5) / n_quantiles).to(kind)
    with no_denormals():
        expected = tensor_losses(quantiles, ordered, levels, 0.05)
        found = compiled_losses(quantiles, ordered, levels, 0.05)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


def test_the_compiled_loop_takes_quantiles_in_any_layout() -> None:
    quantiles, ordered = normal(8, 3, 2).transpose(0, 2), normal(2, 3, 5, seed=1).sort(dim=-1).values
    levels = (torch.arange(8, dtype=torch.float64) + 0.5) / 8
    found = compiled_losses(quantiles, ordered, levels, 0.05)
    for mine, theirs in zip(found, tensor_losses(quantiles.contiguous(), ordered, levels, 0.05), strict=True):
        assert torch.equal(mine, theirs)


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
