"""Critics: an ensemble of distributional action values, and the value of a state.

Each critic's distribution is ``Z = m + (q - mean q)``: ``m``, the mean, learned by squared loss as published for
scalar critics; ``q``, the quantiles, learned by the pinball loss and giving Z its spread only.

References
----------
Chen et al. (2016), Training Deep Nets with Sublinear Memory Cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Generator, Tensor, nn
from torch.utils.checkpoint import checkpoint

from finflow.agent.batch import States
from finflow.agent.gradient_steps import at_least_single, full_precision
from finflow.agent.networks.layers import (
    Encoding,
    EnsembleLinear,
    EnsembleReadout,
    HeadInputs,
    MarketEncoder,
    PortfolioHead,
    kept_units,
    portfolio_width,
)

CRITICS = 2  # in an ensemble


class NetworkShape(NamedTuple):
    """Sizes that networks are built from; none depends on the number of assets.

    ``n_asset_features`` counts the listing flag; ``lenses`` are the columns of the asset features that each of the five
    experts reads.
    """

    n_asset_features: int
    n_market_features: int
    hidden: int
    lenses: tuple[tuple[int, ...], ...]

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> NetworkShape:
        lenses = tuple(tuple(int(column) for column in lens) for lens in facts["lenses"])
        return cls(facts["n_asset_features"], facts["n_market_features"], facts["hidden"], lenses)


class Valuation(NamedTuple):
    """Values of P portfolios in each state by E critics."""

    mean: Tensor  # (E, batch, P)
    quantiles: Tensor  # (E, batch, P' <= P, n_quantiles): not centred: only their spread enters the distribution

    @property
    def spread(self) -> Tensor:
        return self.quantiles - self.quantiles.mean(dim=-1, keepdim=True)


class CriticEnsemble(nn.Module):
    """Two critics in one batched call; independent parameters throughout.

    With ``twice`` hidden layers are recomputed in the backward pass, to the same bits, and not kept. ``level``, (), is
    added to all values; it is not learned by gradients.
    """

    level: Tensor

    def __init__(
        self,
        shape: NetworkShape,
        n_quantiles: int,
        generator: Generator,
        dropout_rate: float = 0.0,
        twice: bool = False,
    ) -> None:
        super().__init__()
        self.twice = twice
        self.encoder = MarketEncoder(CRITICS, shape.n_asset_features, shape.n_market_features, shape.hidden, generator)
        self.head = PortfolioHead(CRITICS, shape.hidden, generator, dropout_rate)
        self.width = portfolio_width(shape.hidden)
        self.mean = EnsembleReadout(CRITICS, self.width, generator, scale=0.1)
        self.quantiles = EnsembleLinear(CRITICS, self.width, n_quantiles, generator, scale=0.1)
        self.register_buffer("level", torch.zeros(()))

    def encode(self, states: States) -> Encoding:
        """Encode states once, to value many portfolios in them."""
        return cast(Encoding, self._run(self.encoder, states))

    def value(
        self,
        encoding: Encoding,
        states: States,
        portfolios: Tensor,
        with_quantiles: int = 1,
        noise: Generator | None = None,
    ) -> Valuation:
        """Value portfolios (batch, P, K) in encoded states; quantiles for the first ``with_quantiles`` of P only."""
        batch, count = portfolios.shape[:2]
        kept = kept_units((CRITICS, batch * count, self.width), self.head.dropout_rate, noise)
        hidden = self._run(self._read, encoding, states, portfolios, kept)
        # split, not sliced: the gradient of a slice is as large as the whole, and mostly zeros
        parts = first, _ = torch.split(hidden, [with_quantiles, count - with_quantiles], dim=2)
        mean = torch.cat([self.mean(part) for part in parts if part.shape[2] > 0], dim=2)
        with full_precision(hidden):
            quantiles = self.quantiles(at_least_single(first).flatten(1, 2))
        quantiles = quantiles.unflatten(1, (batch, with_quantiles))
        return Valuation(mean + self.level, quantiles + self.level)

    def _read(self, encoding: Encoding, states: States, portfolios: Tensor, kept: Tensor | None) -> Tensor:
        """Last hidden layer for portfolios (batch, P, K), (E, batch, P, d)."""
        hidden: Tensor = self.head(encoding.state, HeadInputs.of(encoding, states, portfolios), kept)
        return hidden

    def _run(self, layers: Callable[..., Any], *inputs: Any) -> Any:
        if self.twice:
            return checkpoint(layers, *inputs, use_reentrant=False, preserve_rng_state=False)
        return layers(*inputs)


class ValueNetwork(nn.Module):
    """IQL's V of a state, holding its portfolio, and the behaviour's own value V_mu.

    V_mu reads V's encoding without gradients for it, so that V does not depend on V_mu.
    """

    def __init__(self, shape: NetworkShape, generator: Generator) -> None:
        super().__init__()
        self.encoder = MarketEncoder(1, shape.n_asset_features, shape.n_market_features, shape.hidden, generator)
        self.own = _StateHead(shape.hidden, generator)
        self.behaviour = _StateHead(shape.hidden, generator)

    def forward(self, states: States) -> Tensor:
        """V, (batch,)."""
        encoding = self.encoder(states)
        value: Tensor = self.own(encoding.state, _current_inputs(encoding, states))
        return value

    def of_behaviour(self, states: States) -> Tensor:
        """V_mu, (batch,)."""
        encoding = self.encoder(states)
        value: Tensor = self.behaviour(encoding.state, _current_inputs(encoding, states))
        return value

    def both(self, states: States) -> tuple[Tensor, Tensor]:
        """V and V_mu, each (batch,), from one encoding."""
        encoding = self.encoder(states)
        inputs = _current_inputs(encoding, states)
        return self.own(encoding.state, inputs), self.behaviour(encoding.state.detach(), inputs.detach())


class _StateHead(nn.Module):
    def __init__(self, hidden: int, generator: Generator) -> None:
        super().__init__()
        self.head = PortfolioHead(1, hidden, generator)
        self.readout = EnsembleReadout(1, portfolio_width(hidden), generator, scale=0.1)

    def forward(self, state: Tensor, inputs: HeadInputs) -> Tensor:
        """The value, (batch,), of one portfolio for each of the batch."""
        value: Tensor = self.readout(self.head(state, inputs))[0, :, 0]
        return value


def _current_inputs(encoding: Encoding, states: States) -> HeadInputs:
    return HeadInputs.of(encoding, states, states.weights.unsqueeze(1))
