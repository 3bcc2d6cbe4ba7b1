"""Decisions of a policy: their parts, what of them depends on the market alone, and the blend with a reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from finflow.agent.batch import States
from finflow.agent.networks.logistic_normal import LogisticNormal, log_ratios

# Mean share of the way to its aim that a behaviour family trades in a decision: its mean trade rate, 0.167, times the
# share of decisions at which it trades, 0.65.
FAMILY_RATE = 0.11


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

    @property
    def traded_aim(self) -> Tensor:
        """The aim, (batch, K), with the gradient that it has as a part of the centre: as far as it is traded."""
        return self.aim.detach() + self.trade_rate.detach() * (self.aim - self.aim.detach())

    def figures(self) -> dict[str, Tensor]:
        """Figures of a batch of decisions for the log."""
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
        experts, gate, aim, hidden, listed = self
        known = None if listed is None else change(listed)
        return MarketReading(change(experts), change(gate), change(aim), change(hidden), known)

    @classmethod
    def join(cls, readings: Sequence[MarketReading], together: Callable[[list[Tensor]], Tensor]) -> MarketReading:
        """One reading from several of the same market, part by part."""
        listed = [one.listed for one in readings if one.listed is not None]
        return cls(
            together([one.experts for one in readings]),
            together([one.gate for one in readings]),
            together([one.aim for one in readings]),
            together([one.hidden for one in readings]),
            together(listed) if listed else None,
        )

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
    confidence = float(blend.confidence)
    if confidence == 0.0:
        return f"holds {blend.name}; its own policy found nothing that holds out of sample"
    return f"holds {confidence:.0%} of its own policy's portfolio, the rest {blend.name}"


def no_blend(device: torch.device) -> Tensor:
    """Saved form of a blend that has not been decided on: the policy decides alone."""
    return torch.tensor([UNDECIDED, 0.0, 0.0, 1.0], dtype=torch.float64, device=device)
