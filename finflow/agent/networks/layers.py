"""Layers for any number of assets and for ensembles of networks in one batched call, and bounds of what heads give.

An ensemble of E networks is one set of parameters with E as the first dimension. What depends on the market alone is
computed once per state; portfolios enter late, through their exposures to the embeddings of the assets. Permuting the
assets permutes their outputs and changes nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from finflow.agent.batch import States
from finflow.agent.gradient_steps import at_least_single, full_precision

N_PORTFOLIO_FACTS = 5
N_STATE_FACTS = 5  # cash and concentration of the current portfolio, and the state of the reward
LEAST_RATE = 1e-3  # smallest trade rate: a half-life of 693 decisions
LEAST_SLOPE = 0.02  # smallest slope of the trade rate in its logit: that at a rate of a fiftieth


class EnsembleLinear(nn.Module):
    """E linear maps in one batched product: (E, rows, inputs) to (E, rows, outputs).

    Initial weights are uniform within ``scale / sqrt(inputs)``, by the generator.
    """

    def __init__(
        self, ensemble: int, inputs: int, outputs: int, generator: Generator, scale: float = 1.0, bias: bool = True
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(_uniform((ensemble, inputs, outputs), scale / math.sqrt(inputs), generator))
        self.bias = nn.Parameter(torch.zeros(ensemble, 1, outputs)) if bias else None

    def forward(self, rows: Tensor) -> Tensor:
        """Map ``rows`` of shape (rows, inputs), shared by all networks, or (E, rows, inputs)."""
        if rows.dim() == 2:
            rows = rows.expand(self.weight.shape[0], -1, -1)
        if self.bias is None:
            return torch.bmm(rows, self.weight)
        return torch.baddbmm(self.bias, rows, self.weight)


def _uniform(shape: tuple[int, ...], bound: float, generator: Generator) -> Tensor:
    """Uniform in [-bound, bound], drawn on the generator's device."""
    return (torch.rand(shape, generator=generator) * 2.0 - 1.0) * bound


def linear(inputs: int, outputs: int, generator: Generator, scale: float = 1.0) -> nn.Linear:
    """A linear layer with initial weights as of `EnsembleLinear`."""
    layer = empty_linear(inputs, outputs)
    with torch.no_grad():
        layer.weight.copy_(_uniform(tuple(layer.weight.shape), scale / inputs**0.5, generator))
        layer.bias.zero_()
    return layer


def empty_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer whose parameters have yet to be set, without a draw from torch's global generator.

    ``nn.utils.skip_init`` gives the same, and imports sympy for it.
    """
    layer = nn.Linear(inputs, outputs, device="meta")
    layer.weight = nn.Parameter(torch.empty(outputs, inputs))
    layer.bias = nn.Parameter(torch.empty(outputs))
    return layer


def kept_units(shape: tuple[int, ...], rate: float, generator: Generator | None) -> Tensor | None:
    """Hidden units that dropout keeps, bool of a shape; None, for all, without a generator or at rate zero."""
    if rate == 0.0 or generator is None:
        return None
    return torch.rand(shape, generator=generator, device=generator.device) >= rate


def dropout(hidden: Tensor, rate: float, kept: Tensor | None) -> Tensor:
    """Inverted dropout of all but the ``kept`` units."""
    return hidden if kept is None else hidden * kept.to(hidden.dtype) / (1.0 - rate)


class EnsembleReadout(nn.Module):
    """E linear maps to one number each, (E, ..., inputs) to (E, ...); initial weights as of `EnsembleLinear`."""

    def __init__(self, ensemble: int, inputs: int, generator: Generator, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(_uniform((ensemble, 1, 1, inputs), scale / math.sqrt(inputs), generator))
        self.bias = nn.Parameter(torch.zeros(ensemble, 1, 1))

    def forward(self, hidden: Tensor) -> Tensor:
        """Read (E, batch, P, inputs) out to (E, batch, P)."""
        ensemble, inputs = self.weight.shape[0], self.weight.shape[-1]
        with full_precision(hidden):
            rows = at_least_single(hidden).flatten(1, 2)
            read: Tensor = _RowsTimesVector.apply(rows, self.weight.view(ensemble, inputs, 1))  # type: ignore[no-untyped-call]
        return read.view(hidden.shape[:3]) + self.bias


class _RowsTimesVector(torch.autograd.Function):
    """Products of rows (E, rows, inputs) with one vector (E, inputs, 1) each, (E, 1, rows).

    On a CPU a product with a matrix of one column is several times slower than with a matrix of one row. The product
    and the vector's gradient are therefore written with one row, and the rows' gradient as an elementwise product.
    """

    @staticmethod
    def forward(context: Any, rows: Tensor, vector: Tensor) -> Tensor:
        context.save_for_backward(rows, vector)
        return torch.bmm(vector.transpose(1, 2), rows.transpose(1, 2))

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, vector = context.saved_tensors
        rows_need_it, vector_needs_it = context.needs_input_grad
        return (
            gradient.transpose(1, 2) * vector.transpose(1, 2) if rows_need_it else None,
            torch.bmm(gradient, rows).transpose(1, 2) if vector_needs_it else None,
        )


class _WithGradient(torch.autograd.Function):
    """Given values for the inputs (...), with a gradient that a function of the values' gradient gives."""

    @staticmethod
    def forward(context: Any, inputs: Tensor, values: Tensor, gradient_of: Callable[[Tensor], Tensor]) -> Tensor:
        context.gradient_of = gradient_of
        return values

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return context.gradient_of(gradient), None, None


def open_rate(logit: Tensor, keeps_slope: bool = False) -> Tensor:
    """Trade rate of a logit: a sigmoid, of at least ``LEAST_RATE``, that no gradient can close for good.

    While the aim is bad, trading toward it loses, and the logit falls; at a rate near zero neither the rate nor the aim
    would have a gradient to come back by. So the slope is at least ``LEAST_SLOPE``, and below the smallest rate only
    gradients that raise the logit pass. With its own slope where a decision is explained and not learned.
    """
    if keeps_slope or not torch.is_grad_enabled():
        return torch.sigmoid(logit).clamp(min=LEAST_RATE)
    rate = torch.sigmoid(logit.detach())

    def gradient_of(gradient: Tensor) -> Tensor:
        raising = torch.where(rate < LEAST_RATE, gradient.clamp(max=0.0), gradient)
        return raising * (rate * (1.0 - rate)).clamp(min=LEAST_SLOPE)

    opened: Tensor = _WithGradient.apply(logit, rate.clamp(min=LEAST_RATE), gradient_of)  # type: ignore[no-untyped-call]
    return opened


def inward_clamp(values: Tensor, low: float, high: float) -> Tensor:
    """Values within bounds; beyond one, only gradients of a descent that leads back pass.

    With none, as by ``Tensor.clamp``, a scale that imitation has driven past its bound would stay there for good.
    """
    if not torch.is_grad_enabled():
        return values.clamp(low, high)
    given = values.detach()

    def gradient_of(gradient: Tensor) -> Tensor:
        down = torch.where(given > high, gradient.clamp(min=0.0), gradient)
        return torch.where(given < low, down.clamp(max=0.0), down)

    bounded: Tensor = _WithGradient.apply(values, given.clamp(low, high), gradient_of)  # type: ignore[no-untyped-call]
    return bounded


class Encoding(NamedTuple):
    """Embeddings by E encoders of the markets of a batch of states."""

    assets: Tensor  # (E, groups, assets, d)
    state: Tensor  # (E, groups, H): of the market as a whole

    def groups(self, start: int, stop: int) -> Encoding:
        return Encoding(self.assets[:, start:stop], self.state[:, start:stop])

    def detach(self) -> Encoding:
        return Encoding(self.assets.detach(), self.state.detach())


class AssetLayers(nn.Module):
    """Two layers of E networks that are shared over assets, with the mean asset as cross-asset context."""

    def __init__(self, ensemble: int, n_asset_features: int, n_market_features: int, width: int, generator: Generator):
        super().__init__()
        self.from_asset = EnsembleLinear(ensemble, n_asset_features, width, generator, bias=False)
        self.from_market = EnsembleLinear(ensemble, n_market_features, width, generator)
        self.second = EnsembleLinear(ensemble, width, width, generator, bias=False)
        self.from_mean = EnsembleLinear(ensemble, width, width, generator)

    def embed(self, weight: Tensor, states: States) -> Tensor:
        """Embeddings of assets, (E, groups, assets, d); the market's part of the first layer is computed once a group.

        ``weight``, (E, F + 1, d), is ``from_asset``'s, perhaps masked.
        """
        groups, n_assets, n_features = states.assets.shape
        rows = states.assets.reshape(groups * n_assets, n_features).expand(weight.shape[0], -1, -1)
        hidden = torch.bmm(rows, weight).view(weight.shape[0], groups, n_assets, -1)
        first = (hidden + self.from_market(states.market).unsqueeze(2)).relu_()
        mean = pooled(first, states)
        second = self.second(first.flatten(1, 2)).view_as(first)
        embedded: Tensor = (second + self.from_mean(mean).unsqueeze(2)).relu_()
        return embedded


class MarketEncoder(AssetLayers):
    """E encoders of assets and market.

    The market's embedding has the width H, ``hidden``. What is computed for every asset is an eighth as wide, what is
    computed for every portfolio a quarter: on a CPU passes over (batch x assets x width) bound an update.
    """

    def __init__(self, ensemble: int, n_asset_features: int, n_market_features: int, hidden: int, generator: Generator):
        width = asset_width(hidden)
        super().__init__(ensemble, n_asset_features, n_market_features, width, generator)
        self.state = EnsembleLinear(ensemble, width + n_market_features, hidden, generator)

    def forward(self, states: States) -> Encoding:
        assets = self.embed(self.from_asset.weight, states)
        market = states.market.expand(assets.shape[0], -1, -1)
        summary = torch.cat([pooled(assets, states), market], dim=-1)
        return Encoding(assets, normalised(self.state(summary)).relu_())


def normalised(hidden: Tensor) -> Tensor:
    """Layer normalisation over the last dimension, without gains, which members of an ensemble would share."""
    return functional.layer_norm(hidden, hidden.shape[-1:])


def asset_width(hidden: int) -> int:
    return max(hidden // 8, 8)


def portfolio_width(hidden: int) -> int:
    return max(hidden // 4, 8)


def pooled(assets: Tensor, states: States) -> Tensor:
    """Mean over listed assets, (E, groups, assets, d) to (E, groups, d)."""
    if states.complete:
        return assets.mean(dim=2)
    listed = states.assets[:, :, -1].unsqueeze(1)
    share = listed / listed.sum(dim=-1, keepdim=True).clamp(min=1.0)
    return torch.matmul(share, assets).squeeze(2)


class HeadInputs(NamedTuple):
    """Inputs of a `PortfolioHead`, which depend on the encoders' parameters and on none of the head's.

    A portfolio is represented by its exposures, sums over assets of weight times embedding, and five facts: cash,
    turnover from the current weights, concentration, and the squares of turnover and cash.
    """

    portfolios: Tensor  # (E, batch, P, exposures + 5)
    held: Tensor  # (E, batch, exposures + 5): of the current portfolio, with cash, concentration and the reward's state

    @classmethod
    def of(cls, encoding: Encoding, states: States, portfolios: Tensor) -> HeadInputs:
        """Inputs for portfolios (batch, P, K) in encoded states."""
        ensemble, groups = encoding.state.shape[:2]
        batch, count = portfolios.shape[:2]
        with_current = torch.cat([states.weights.unsqueeze(1), portfolios], dim=1)
        risky = with_current[..., :-1].reshape(groups, -1, portfolios.shape[-1] - 1)
        all_exposures = torch.matmul(risky, encoding.assets).view(ensemble, batch, 1 + count, -1)
        current, exposures = torch.tensor_split(all_exposures, [1], dim=2)
        facts = portfolio_facts(states, portfolios).expand(ensemble, -1, -1, -1)
        weights = states.weights
        concentration = weights[:, :-1].square().sum(-1, keepdim=True)
        of_state = torch.cat([weights[:, -1:], concentration, states.reward_state], dim=-1).expand(ensemble, -1, -1)
        return cls(torch.cat([exposures, facts], dim=-1), torch.cat([current.squeeze(2), of_state], dim=-1))

    def detach(self) -> HeadInputs:
        return HeadInputs(self.portfolios.detach(), self.held.detach())


class PortfolioHead(nn.Module):
    """E heads that read portfolios in encoded states of width ``hidden``: many portfolios for one encoding."""

    def __init__(self, ensemble: int, hidden: int, generator: Generator, dropout_rate: float = 0.0) -> None:
        super().__init__()
        exposures, width = asset_width(hidden), portfolio_width(hidden)
        self.dropout_rate = dropout_rate
        self.from_portfolio = EnsembleLinear(ensemble, exposures + N_PORTFOLIO_FACTS, width, generator, bias=False)
        self.from_state = EnsembleLinear(ensemble, hidden, width, generator)
        self.from_held = EnsembleLinear(ensemble, exposures + N_STATE_FACTS, width, generator, bias=False)
        self.second = EnsembleLinear(ensemble, width, width, generator)

    def forward(self, state: Tensor, inputs: HeadInputs, kept: Tensor | None = None) -> Tensor:
        """Last hidden layer, (E, batch, P, d), for portfolios in states.

        Of the markets' embeddings ``state`` (E, groups, H) batch / groups consecutive states share each; ``kept``,
        (E, batch * P, d), are the units of the first layer that dropout keeps.
        """
        ensemble, batch, count = inputs.portfolios.shape[:3]
        first = self.from_portfolio(inputs.portfolios.flatten(1, 2)).view(ensemble, batch, count, -1)
        shared: Tensor = self.from_state(state)
        if batch > state.shape[1]:
            shared = shared.repeat_interleave(batch // state.shape[1], dim=1)
        shared = shared + self.from_held(inputs.held)
        first = (first + shared.unsqueeze(2)).flatten(1, 2)
        first = dropout(normalised(first).relu_(), self.dropout_rate, kept)
        second: Tensor = self.second(first)
        return second.relu_().view(ensemble, batch, count, -1)


def portfolio_facts(states: States, portfolios: Tensor) -> Tensor:
    """Facts of portfolios (batch, P, K), (batch, P, 5): cash, turnover, concentration, squares of turnover and cash."""
    risky, cash = portfolios[..., :-1], portfolios[..., -1:]
    change = risky - states.weights[:, None, :-1]
    turnover = 0.5 * (change.abs().sum(-1, keepdim=True) + change.sum(-1, keepdim=True).abs())
    concentration = risky.square().sum(-1, keepdim=True)
    return torch.cat([cash, turnover, concentration, turnover.square(), cash.square()], dim=-1)
