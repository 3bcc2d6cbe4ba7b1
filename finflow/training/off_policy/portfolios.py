"""Portfolios that step through stored bars, some exact decisions at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import RUIN, DecisionProcess, resumed_state
from finflow.env.portfolio_state import PortfolioState, replace_rows, rows_of
from finflow.errors import MarketError
from finflow.guard.state_capture import check_like
from finflow.training.data.mirrored_growth import NO_MIRROR


class Portfolios:
    """Portfolios in progress, of which some begin anew after each step: an episode ends on average after its length.

    Parameters
    ----------
    segments : sequence of range
        Bars of decisions that are stayed within.
    horizon : int
        Decisions of a step.
    restart : float
        Chance that a portfolio begins anew after a step.

    Attributes
    ----------
    starts : int array
        Bars at which a step may begin.
    may_start : bool array, (bars,)
        The same as a table.
    mirror : Mirror
        Bars that mirror these segments.

    Raises
    ------
    MarketError
        If no segment has room for a step.
    """

    def __init__(
        self,
        process: DecisionProcess,
        segments: Sequence[range],
        horizon: int,
        count: int,
        restart: float,
        seed: Sequence[int],
    ) -> None:
        self.process, self.horizon, self.restart = process, horizon, restart
        self.segments, self.mirror = tuple(segments), NO_MIRROR
        starts = [np.arange(one.start, one.stop - horizon + 1) for one in segments if len(one) >= horizon]
        if not starts:
            raise MarketError(
                f"no segment of the training window has room for bcell.expansion ({horizon}) decisions; use more data "
                "or a smaller expansion"
            )
        self.starts = np.concatenate(starts)
        self.may_start = np.zeros(len(process.growth) + horizon, dtype=np.bool_)
        self.may_start[self.starts] = True
        self.rng = np.random.default_rng(np.random.SeedSequence(list(seed)))
        self.state = self._draw(count)

    def move_on(self, after: PortfolioState) -> None:
        """Take the portfolios after a step; at the end of a segment, at ruin, and by chance they begin anew."""
        self.state, count = after, len(after.bar)
        anew = ~self.may_start[after.bar] | (self.rng.random(count) < self.restart)
        anew |= ~(after.wealth > RUIN * self.process.env.initial_capital)
        if anew.any():
            self.state = replace_rows(self.state, anew, rows_of(self._draw(count), anew))

    def resumed(self, rows: Mapping[str, Tensor]) -> PortfolioState:
        """Portfolios at stored transitions."""
        return resumed_state(self.process, rows["bar"].cpu().numpy(), rows["portfolio"].double().cpu().numpy())

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Portfolios and generator."""
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in vars(self.state).items()}
        return tensors, {"generator": self.rng.bit_generator.state}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore both."""
        fresh, _ = self.capture()
        for name, tensor in fresh.items():
            check_like(tensors[name], tensor)
        if not bool(np.isin(tensors["bar"].numpy(), self.starts).all()):
            raise ValueError("a portfolio is at a bar where no step begins")
        weights = tensors["weights"]
        if not bool(((weights.sum(dim=1) - 1.0).abs() < 1e-6).all() & (weights > -1e-9).all()):
            raise ValueError("its weights are no portfolio")
        if not bool((tensors["wealth"] > 0.0).all()):
            raise ValueError("the wealth of a portfolio is not above zero")
        self.state = PortfolioState(**{name: tensors[name].numpy().copy() for name in fresh})
        self.rng.bit_generator.state = state["generator"]

    def _draw(self, count: int) -> PortfolioState:
        """New portfolios, anywhere, of weights that cover the simplex."""
        bars: NDArray[np.int64] = self.rng.choice(self.starts, size=count)
        weights, _ = draw_coverage(self.rng, count, self.process.n_weights)
        return self.process.start(bars, weights)
