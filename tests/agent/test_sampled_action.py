"""The density of a policy, and portfolios taken from it: temperature, smallest set of assets, and draws by date."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy.special import digamma, gammaln, polygamma

from finflow.agent.networks.decision import acted_portfolio, nucleus
from finflow.agent.networks.logistic_normal import (
    UNLISTED,
    LogisticNormal,
)
from finflow.config import ActingConfig

DAY = np.datetime64("2011-12-14")
LOCATION = torch.tensor([[1.2, -0.4, 0.3, 0.0], [-2.0, 0.5, 0.1, 1.0]], dtype=torch.float64)
LAW = LogisticNormal(LOCATION, torch.full_like(LOCATION, math.log(0.3)))


def acted(date: np.datetime64 = DAY, **settings: float) -> torch.Tensor:
    return acted_portfolio(LAW, ActingConfig(**settings), date)  # type: ignore[arg-type]


def test_by_default_a_decision_is_the_centre_bit_for_bit() -> None:
    assert torch.equal(acted(), LAW.centre())


@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
def test_the_log_ratios_of_draws_have_the_policys_mean_and_the_temperature_times_its_variance(
    temperature: float,
) -> None:
    days = np.arange("1966-01-01", "1975-01-01", dtype="datetime64[D]")  # before 1970 too
    drawn = torch.stack([acted(day, temperature=temperature) for day in days])
    ratios = (drawn[..., :-1] / drawn[..., -1:]).log()
    deviation = 0.3 * math.sqrt(temperature)
    error = deviation / math.sqrt(len(days))
    torch.testing.assert_close(ratios.mean(dim=0), LOCATION, rtol=0.0, atol=4.5 * error)
    torch.testing.assert_close(ratios.std(dim=0), torch.full_like(LOCATION, deviation), rtol=0.0, atol=3.5 * error)
    following = torch.stack([ratios[:-1, 0, 0], ratios[1:, 0, 0]])
    assert abs(float(torch.corrcoef(following)[0, 1])) < 4.0 / math.sqrt(len(days))


def test_a_draw_depends_on_seed_and_date_alone() -> None:
    first = acted(temperature=1.0)
    acted(np.datetime64("2011-12-15"), temperature=1.0)
    assert torch.equal(acted(temperature=1.0), first)
    assert not torch.equal(acted(temperature=1.0, seed=1), first)
    assert not torch.equal(acted(np.datetime64("2011-12-15"), temperature=1.0), first)
    alone = LogisticNormal(LOCATION[1:], LAW.log_scale[1:])  # whoever else is drawn for
    assert torch.equal(acted_portfolio(alone, ActingConfig(temperature=1.0), DAY), first[1:])


def test_a_draw_without_a_date_is_refused() -> None:
    with pytest.raises(ValueError, match="date"):
        acted_portfolio(LAW, ActingConfig(temperature=1.0), None)


@given(
    st.lists(st.floats(0.0, 1.0, width=32), min_size=1, max_size=8),
    st.floats(0.01, 1.0),
)
def test_the_set_has_the_share_and_no_smaller_one_has(weights: list[float], top_p: float) -> None:
    found = nucleus(torch.tensor(weights), top_p)
    total, size = math.fsum(weights), int(found.sum())
    largest = sorted(weights, reverse=True)
    share = math.fsum(w for w, kept in zip(weights, found.tolist(), strict=True) if kept)
    assert share == pytest.approx(math.fsum(largest[:size]), abs=1e-12)  # the largest are kept
    assert share >= (top_p - 2e-6) * total
    if size:
        assert math.fsum(largest[: size - 1]) < top_p * total
    else:
        assert total == 0.0


def test_equal_weights_are_kept_to_the_share_in_single_precision() -> None:
    for count in range(1, 60):
        for kept in range(1, count + 1):
            assert int(nucleus(torch.full((count,), 1.0 / count), kept / count).sum()) == kept


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@given(top_p=st.floats(0.05, 1.0))
def test_assets_that_are_left_out_leave_their_weight_to_the_others_and_cash_as_it_is(
    temperature: float, top_p: float
) -> None:
    whole, chosen = acted(temperature=temperature), acted(temperature=temperature, top_p=top_p)
    torch.testing.assert_close(chosen.sum(dim=-1), torch.ones(2, dtype=torch.float64))
    assert torch.equal(chosen[:, -1], whole[:, -1])
    kept = nucleus(LAW.centre()[:, :-1], top_p)  # of the centre: a draw changes no names
    assert torch.equal(chosen[:, :-1] > 0.0, kept)
    ratios = chosen[:, :-1] / whole[:, :-1]
    for row, held in zip(ratios, kept, strict=True):
        assert float(row[held].max() - row[held].min()) < 1e-12


def test_assets_that_are_not_listed_are_never_held() -> None:
    listed = torch.tensor([[True, False, True, False], [False, False, False, False]])
    law = LogisticNormal(LOCATION.masked_fill(~listed, UNLISTED), LAW.log_scale, listed)
    for top_p in (0.3, 1.0):
        found = acted_portfolio(law, ActingConfig(temperature=2.0, top_p=top_p), DAY)
        assert torch.equal(found[:, :-1][~listed], torch.zeros(6, dtype=torch.float64))
        torch.testing.assert_close(found.sum(dim=-1), torch.ones(2, dtype=torch.float64))
    assert float(found[1, -1]) == 1.0


@pytest.mark.parametrize("n_weights", [5, 21])
def test_density_integrates_to_one_over_many_weights_by_importance_sampling(n_weights: int) -> None:
    # drawn from a Dirichlet, whose log ratios have mean digamma(a_i) - digamma(a_K) and variance about trigamma(a_i)
    # where a_K is large; the law is made to be near it, and a little narrower, so that no draw weighs much
    rng = np.random.default_rng(0)
    alpha = np.append(rng.uniform(20.0, 60.0, n_weights - 1), 600.0)
    location = torch.from_numpy(digamma(alpha[:-1]) - digamma(alpha[-1]) + 0.02)
    log_scale = torch.from_numpy(0.5 * np.log(polygamma(1, alpha[:-1])) + np.log(0.97))
    draws = rng.dirichlet(alpha, size=40_000)
    log_proposal = gammaln(alpha.sum()) - gammaln(alpha).sum() + (np.log(draws) * (alpha - 1)).sum(axis=1)
    many = LogisticNormal(location.expand(len(draws), -1), log_scale.expand(len(draws), -1))
    ratio = np.exp(many.log_density(torch.from_numpy(draws)).numpy() - log_proposal)
    standard_error = ratio.std() / math.sqrt(len(ratio))
    assert standard_error < 0.01  # seen: 0.0014 and 0.0035
    assert abs(ratio.mean() - 1.0) < 4.0 * standard_error


def test_samples_carry_their_own_density() -> None:
    location = torch.tensor([[0.2, -0.3, 0.1]], dtype=torch.float64)
    law = LogisticNormal(location, torch.full_like(location, math.log(0.5)))
    noise = torch.randn(1, 64, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    portfolios, log_density = law.sample(noise)
    many = LogisticNormal(law.location.expand(64, -1), law.log_scale.expand(64, -1))
    torch.testing.assert_close(many.log_density(portfolios[0]), log_density[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(portfolios.sum(-1), torch.ones(1, 64, dtype=torch.float64))


def test_entropy_is_of_the_density_in_log_ratios() -> None:
    """That of z itself: the density of weights times the Jacobian of the map to them, which is their product."""
    noise = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    location, log_scale = (torch.randn(5, 3, generator=torch.Generator().manual_seed(n)).double() for n in (1, 2))
    law = LogisticNormal(location, log_scale)
    portfolios, log_density = law.sample(noise.unsqueeze(1))
    of_ratios = torch.distributions.Normal(location, log_scale.exp())
    expected = of_ratios.log_prob(location + log_scale.exp() * noise).sum(dim=1)
    torch.testing.assert_close(law.entropy_density(noise), expected)
    torch.testing.assert_close(law.entropy_density(noise), log_density[:, 0] + portfolios[:, 0].log().sum(dim=1))
