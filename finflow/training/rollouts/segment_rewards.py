"""Scores of decisions summed up and given as one reward at the last decision of a segment.

A reward model that learned from comparisons of segments scores segments as a whole. A segment is so many consecutive
decisions of an episode, or what is left of it at its end. The sum of rewards does not change, only their time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from finflow.config import PreferenceConfig
from finflow.guard.state_capture import check_like


class SegmentRewards:
    """Scores of portfolios whose segments are not over.

    Attributes
    ----------
    waiting : Tensor, (portfolios,)
        Scores of the segments so far.
    age : int64 Tensor, (portfolios,)
        Decisions of the segments so far.
    """

    def __init__(self, keys: PreferenceConfig, portfolios: int, device: torch.device) -> None:
        self._length = keys.segment
        self.waiting = torch.zeros(portfolios, device=device)
        self.age = torch.zeros(portfolios, dtype=torch.int64, device=device)

    def begin(self) -> None:
        """Begin a segment in every portfolio, after a reset of all episodes."""
        for tensor in (self.waiting, self.age):
            tensor.zero_()

    def assign(self, scores: Tensor, ended: Tensor) -> Tensor:
        """Move scores of consecutive decisions to the ends of their segments; those of open segments are kept.

        Parameters
        ----------
        scores : Tensor, (steps, portfolios)
        ended : Tensor, (steps, portfolios)
            1 at the last decision of an episode.

        Returns
        -------
        Tensor, (steps, portfolios)
            The segment's score at its last decision, zero at the others.
        """
        rewards = torch.zeros_like(scores)
        for step in range(len(scores)):
            self.waiting += scores[step]
            self.age += 1
            due = (self.age >= self._length) | (ended[step] > 0.0)
            rewards[step] = torch.where(due, self.waiting, rewards[step])
            for tensor in (self.waiting, self.age):
                tensor.masked_fill_(due, 0)
        return rewards

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Capture the segments so far."""
        return {"waiting": self.waiting.clone(), "age": self.age.clone()}, {}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore them."""
        for name, tensor in (("waiting", self.waiting), ("age", self.age)):
            check_like(tensors[name], tensor)
            tensor.copy_(tensors[name])
        if bool((self.age < 0).any() | (self.age >= self._length).any()):
            raise ValueError("a segment is longer than it can be")
