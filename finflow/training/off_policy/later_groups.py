"""Learners beyond the first group, which learn in a process of their own where there is a second core.

They do the same pieces of work in the same order as they would in this process, so that results have the same bits.
What a piece needs of the delivered agent's training is in the piece itself. Their state comes back when it is saved;
where their process fails, the pieces since then are done again in this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from finflow.agent.learners.soft_actor_critic import UpdatePoint
from finflow.cores import ForkedCalls
from finflow.errors import FinflowError
from finflow.guard.state_capture import Json


class Work(NamedTuple):
    """A vector step, or an update, of some learners."""

    point: UpdatePoint | None = None  # of an update; None for a vector step
    ramp: float = 1.0  # share of the policies' learning rates: see `ramp_share`
    rates: float = 1.0  # share of all learning rates that the guard leaves
    learns: bool = True
    measured: bool = False


Figures = list[dict[str, float]]
"""The largest figures of each learner's update."""


class LaterGroups:
    """Work of learners beside this process, if there is a second core.

    They may leave this process where they depend on nothing that the delivered agent's training changes but what a
    `Work` says.
    """

    def __init__(
        self,
        perform: Callable[[Work], Figures],
        capture: Callable[[], tuple[dict[str, Tensor], Json]],
        restore: Callable[[dict[str, Tensor], Json], None],
        rewinder: Callable[[], Callable[[], None]],
        may_leave: bool,
    ) -> None:
        self._perform, self._capture, self._restore, self._rewinder = perform, capture, restore, rewinder
        self._may_leave = may_leave
        self._calls: ForkedCalls[Work | None, Any] | None = None
        self._since: list[Work] = []

    def begin(self, work: Work) -> None:
        if self._calls is None and self._may_leave:
            self._calls = ForkedCalls.start(self._answer)
        if self._calls is not None:
            self._since.append(work)
            self._calls.begin(work)

    def result(self, work: Work) -> Figures:
        """Wait for the piece that was begun, or do it here, where an error leaves them as before."""
        if self._calls is not None:
            try:
                figures: Figures = self._calls.result()
                return figures
            except EOFError:
                self.undo()
        rewind = self._rewinder()
        try:
            return self._perform(work)
        except FinflowError:
            rewind()
            raise

    def undo(self) -> None:
        """Have them in this process, as before the piece that was begun; they stay here."""
        if self._calls is None:
            return
        self.end()
        self._may_leave = False
        before, self._since = self._since[:-1], []
        for work in before:
            self._perform(work)

    def fetch(self) -> None:
        """Bring their state into this process, where it is saved from."""
        if self._calls is None or not self._since:
            return
        self._calls.begin(None)
        try:
            arrays, facts = self._calls.result()
        except EOFError:
            self._since.append(Work())
            self.undo()
            return
        self._restore({name: torch.from_numpy(array) for name, array in arrays.items()}, facts)
        self._since = []

    def bring_back(self) -> None:
        """Bring them into this process, where something else will change them."""
        self.fetch()
        self.end()

    def _answer(self, work: Work | None) -> object:
        """Answer in the other process: figures of a piece of work; the state, for None."""
        if work is not None:
            return self._perform(work)
        tensors, facts = self._capture()
        return {name: tensor.numpy() for name, tensor in tensors.items()}, facts

    def end(self) -> None:
        """End the other process, whatever it has learned since `fetch`."""
        if self._calls is not None:
            self._calls.end()
        self._calls = None
