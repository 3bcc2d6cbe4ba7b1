"""Scores of decisions paid at the last decision of a segment, as a reward model was asked about segments.

A segment is so many decisions of an episode one after another, and what is left of it at its end. Sums are what they
were: only the time of the payment changes, and on request its unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from finflow.config import PreferenceConfig
from finflow.guard.state_capture import check_like

LEAST_TURNOVER = 0.1  # of a segment: below it a unit of turnover would be about nothing


class SegmentPay:
    """Scores of portfolios that wait for the end of their segments.

    Parameters
    ----------
    keys : PreferenceConfig
    portfolios : int
    device : torch.device

    Attributes
    ----------
    waiting, traded : Tensor, (portfolios,)
        Score and turnover of the segments so far.
    age : int64 Tensor, (portfolios,)
        Decisions of the segments so far.
    """

    def __init__(self, keys: PreferenceConfig, portfolios: int, device: torch.device) -> None:
        self._length, self._scaling = keys.segment, keys.scaling
        self.waiting = torch.zeros(portfolios, device=device)
        self.traded = torch.zeros(portfolios, device=device)
        self.age = torch.zeros(portfolios, dtype=torch.int64, device=device)

    def begin(self) -> None:
        """Begin a segment in every portfolio: all episodes were started anew."""
        for one in (self.waiting, self.traded, self.age):
            one.zero_()

    def pay(self, scores: Tensor, turnover: Tensor, ended: Tensor) -> Tensor:
        """Pay scores of consecutive decisions, and remember what is not due yet.

        Parameters
        ----------
        scores, turnover : Tensor, (steps, portfolios)
        ended : Tensor, (steps, portfolios)
            1 at the last decision of an episode.

        Returns
        -------
        Tensor, (steps, portfolios)
            The segment's score at its last decision, zero at the others.
        """
        paid = torch.zeros_like(scores)
        for step in range(len(scores)):
            self.waiting += scores[step]
            self.traded += turnover[step]
            self.age += 1
            due = (self.age >= self._length) | (ended[step] > 0.0)
            paid[step] = torch.where(due, self.waiting / self._unit(), paid[step])
            for one in (self.waiting, self.traded, self.age):
                one.masked_fill_(due, 0)
        return paid

    def _unit(self) -> Tensor | float:
        """Divisor of the score of each portfolio's segment."""
        if self._scaling == "turnover":
            return self.traded.clamp(min=LEAST_TURNOVER)
        return self.age.to(self.waiting) if self._scaling == "horizon" else 1.0

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Capture the segments so far."""
        return {"waiting": self.waiting.clone(), "traded": self.traded.clone(), "age": self.age.clone()}, {}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore them."""
        for name, own in (("waiting", self.waiting), ("traded", self.traded), ("age", self.age)):
            check_like(tensors[name], own)
            own.copy_(tensors[name])
        if bool((self.age < 0).any() | (self.age >= self._length).any()):
            raise ValueError("a segment is longer than it can be")
