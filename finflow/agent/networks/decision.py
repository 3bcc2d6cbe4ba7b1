"""Decisions of a policy: their parts, what of them depends on the market alone, the blend with a reference, and the
portfolio that is taken.

With the log ratios ``z ~ N(m, s^2)`` of a policy and a temperature T, a portfolio is ``softmax([m + sqrt(T) s e, 0])``
with standard normal e: the density of z to the power 1 / T, renormalised. T -> 0 is the centre, softmax of ``[m, 0]``;
T = 1 is the policy's own distribution. e depends on the date alone. So a portfolio is the same whatever
was decided before it, and agents that act as one are drawn with the same e.

With ``top_p`` below 1, only the largest assets of the centre are held: the fewest that have that share of what the
centre holds in assets. Their weights grow in proportion. Cash is not among them and keeps its weight: the choice is one
of names, and how much is invested stays the policy's.

References
----------
Holtzman, Buys, Du, Forbes and Choi (2020), The Curious Case of Neural Text Degeneration, section 3.1 (the nucleus).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from finflow.agent.batch import States
from finflow.agent.networks.distributions import LogisticNormal, log_portfolio, log_ratios
from finflow.config import ActingConfig

# Mean share of the way to its aim that a behaviour family trades in a decision: its mean trade rate, 0.167, times the
# share of decisions at which it trades, 0.65.
FAMILY_RATE = 0.11
ROUNDING = 1e-6  # of a sum of weights in single precision


class Decision(NamedTuple):
    """A batch of decisions and the parts they are made from."""

    experts: Tensor  # (batch, 5, K): the portfolio each expert names; in a blend, the reference's after them
    gate: Tensor  # (batch, 5): their shares in the aim
    aim: Tensor  # (batch, K): the portfolios, mixed by the gate
    trade_rate: Tensor  # (batch, 1): share of the way from the current weights to the aim
    centre: Tensor  # (batch, K)
    log_scale: Tensor  # (batch, 1)
    listed: Tensor | None = None  # (batch, K - 1): assets that the action is about; all of them when left out

    @property
    def distribution(self) -> LogisticNormal:
        location = log_ratios(self.centre, self.listed)
        return LogisticNormal(location, self.log_scale.expand_as(location), self.listed)

    def figures(self) -> dict[str, Tensor]:
        return {"trade_rate": self.trade_rate.mean().detach()}

    def expert_distribution(self, expert: Tensor, weights: Tensor) -> LogisticNormal:
        """Distribution of a family's actions: part of the way from ``weights`` (batch, K) to its expert's portfolio.

        The index of the expert is (batch,); the scale is the common one.
        """
        aim = self.experts[torch.arange(len(expert), device=expert.device), expert]
        location = log_ratios((1.0 - FAMILY_RATE) * weights + FAMILY_RATE * aim, self.listed)
        return LogisticNormal(location, self.log_scale.detach().expand_as(location), self.listed)


class MarketReading(NamedTuple):
    """Part of a decision that depends on the market alone; actions move no price, so it is computed once per bar."""

    experts: Tensor  # (groups, 5, K)
    gate: Tensor  # (groups, 5)
    aim: Tensor  # (groups, K)
    hidden: Tensor  # (groups, gate width): what the trade rate reads of the market
    listed: Tensor | None = None  # (groups, K - 1): assets that are listed; all of them when left out

    def each(self, change: Callable[[Tensor], Tensor]) -> MarketReading:
        return MarketReading._make(None if part is None else change(part) for part in self)

    @classmethod
    def join(cls, readings: Sequence[MarketReading], together: Callable[[list[Tensor]], Tensor]) -> MarketReading:
        """One reading from several of the same market, part by part."""
        parts = zip(*readings, strict=True)
        return cls._make(None if part[0] is None else together(list(part)) for part in parts)

    def without_experts(self) -> MarketReading:
        return self._replace(experts=self.experts[..., :0])

    def rows(self, start: int, stop: int) -> MarketReading:
        return self.each(lambda part: part[start:stop])

    def with_reference(self, portfolio: Tensor, confidence: float | Tensor) -> MarketReading:
        """The reading of a blend: a reference's portfolio (groups, K) has the share that the experts do not have."""
        confidence = torch.as_tensor(confidence, dtype=self.gate.dtype, device=self.gate.device)
        gate = torch.cat([confidence * self.gate, (1.0 - confidence).expand_as(self.gate[..., :1])], dim=-1)
        experts = torch.cat([self.experts, portfolio.unsqueeze(-2)], dim=-2)
        return self._replace(experts=experts, gate=gate, aim=portfolio.lerp(self.aim, confidence))

    def of_expert(self, expert: int) -> MarketReading:
        """The same with one expert's portfolio as the aim, whatever the gate."""
        gate = torch.zeros_like(self.gate)
        gate[..., expert] = 1.0
        return self._replace(gate=gate, aim=self.experts[..., expert, :])


REFERENCE = "reference"  # its name beside those of the experts
REFERENCES = ("equal-weight", "inverse-volatility")  # approached slowly, whatever is learned
UNDECIDED = -1.0  # in place of a confidence
PATIENT_RATE = 0.05  # share of the way to the reference that is traded in a decision: a half-life of 13.5 decisions


class Blend(NamedTuple):
    """Blend of a policy with a reference portfolio, by the confidence that its gains hold out of sample.

    Attributes
    ----------
    confidence : float, or Tensor (batch, 1) while several blends are compared
        In 0..1: the aim is ``(1 - confidence) * reference + confidence * aim``, the trade rate likewise between
        ``PATIENT_RATE`` and the policy's. At 0 the agent holds the reference.
    reference : str
        One of ``REFERENCES``: a portfolio of the listed assets, without cash.
    volatility : tuple of int and float
        Column of the assets' features that is their log volatility, and the deviation that it was scaled by.
    """

    confidence: float | Tensor
    reference: str
    volatility: tuple[int, float]

    def to_tensor(self, device: torch.device) -> Tensor:
        """The blend as four numbers, to be saved with an agent."""
        numbers = (float(self.confidence), REFERENCES.index(self.reference), *self.volatility)
        return torch.tensor(numbers, dtype=torch.float64, device=device)

    @classmethod
    def from_tensor(cls, saved: Tensor | None) -> Blend | None:
        """A saved blend; None where none was saved, or decided on."""
        if saved is None:
            return None
        confidence, reference, column, deviation = saved.tolist()
        if confidence == UNDECIDED:
            return None
        return cls(confidence, REFERENCES[int(reference)], (int(column), deviation))

    def portfolio(self, states: States) -> Tensor:
        """Reference portfolio of each group of states, (groups, K)."""
        column, deviation = self.volatility
        score = -deviation * states.assets[:, :, column]
        if self.reference == "equal-weight":
            score = torch.zeros_like(score)
        risky = torch.softmax(score.masked_fill(~states.listed, float("-inf")), dim=-1)
        none_listed = ~states.listed.any(dim=-1, keepdim=True)
        risky = risky.masked_fill(none_listed, 0.0)
        return torch.cat([risky, none_listed.to(risky.dtype)], dim=-1)

    @property
    def name(self) -> str:
        return self.reference.replace("-", " ")

    def trade_rate(self, trade_rate: Tensor) -> Tensor:
        """Trade rate between the patient one and a policy's, (batch, 1)."""
        return PATIENT_RATE + self.confidence * (trade_rate - PATIENT_RATE)


def describe_holding(blend: Blend | None) -> str:
    if blend is None:
        return "holds what its own policy decides"
    if blend.confidence == 0.0:
        return f"holds {blend.name}; its own policy found nothing that holds out of sample"
    return f"holds {float(blend.confidence):.0%} of its own policy's portfolio, the rest {blend.name}"


def no_blend(device: torch.device) -> Tensor:
    """Saved form of a blend that has not been decided on: the policy decides alone."""
    return torch.tensor([UNDECIDED, 0.0, 0.0, 1.0], dtype=torch.float64, device=device)


def acted_portfolio(distribution: LogisticNormal, acting: ActingConfig, date: np.datetime64 | None) -> Tensor:
    """Portfolios that are decided on, (batch, K); rows are drawn with the same noise.

    The date, of the newest bar that is known, is needed above a temperature of 0 alone; a ValueError without it there.
    """
    centre = distribution.centre()
    drawn = centre
    if acting.temperature > 0.0:
        if date is None:
            raise ValueError("decisions that are drawn need the date of the newest bar that is known")
        rng = np.random.default_rng([0, int(date.astype("datetime64[D]").astype(np.int64)) % 2**32])
        noise = torch.from_numpy(rng.standard_normal(distribution.location.shape[-1])).to(distribution.location)
        spread = acting.temperature**0.5 * distribution.log_scale.exp()
        drawn = log_portfolio(distribution.location + spread * noise).exp()
    return drawn if acting.top_p == 1.0 else _keep_assets(drawn, nucleus(centre[..., :-1], acting.top_p))


def nucleus(weights: Tensor, top_p: float) -> Tensor:
    """Smallest set of assets with a share of ``top_p`` in the sum of the weights (..., assets), without cash.

    Of equals the first; none where all weights are zero.
    """
    ordered, order = weights.double().sort(dim=-1, descending=True, stable=True)
    larger = ordered.cumsum(dim=-1) - ordered  # what those before it have together
    wanted = max(top_p - ROUNDING, 0.5 * ROUNDING) * ordered.sum(dim=-1, keepdim=True)
    kept = (larger < wanted) & (ordered > 0.0)
    return torch.zeros_like(kept).scatter(-1, order, kept)


def _keep_assets(portfolios: Tensor, kept: Tensor) -> Tensor:
    """Move what portfolios (..., K) hold in assets to the ``kept`` ones (..., K - 1), in proportion; cash stays."""
    assets = portfolios[..., :-1]
    left = torch.where(kept, assets, torch.zeros_like(assets))
    scale = assets.sum(dim=-1, keepdim=True) / left.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny)
    return torch.cat([left * scale, portfolios[..., -1:]], dim=-1)
