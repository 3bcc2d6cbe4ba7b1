"""Facts that a reward is computed from: what was known at the decision, what was done, and what the bars brought."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from finflow.env.portfolio_state import PortfolioState


class Observer(Protocol):
    """Observes portfolios: a decision process."""

    def observe(self, state: PortfolioState) -> dict[str, Any]:
        """Observation at the next decision."""
        ...


class LazyObservation(NamedTuple):
    """The observation of a decision, made when it is called.

    Attributes
    ----------
    process : Observer or None
        None while it is sent to another operating-system process, which has its own.
    state : PortfolioState
        Before the decision.
    """

    process: Observer | None
    state: PortfolioState

    def __call__(self) -> dict[str, Any]:
        """The observation."""
        if self.process is None:
            raise ValueError("there is no market to observe")
        return self.process.observe(self.state)


@dataclass(frozen=True, eq=False)
class RewardContext:
    """One decision of each of a batch of portfolios; arrays of NumPy, or tensors of torch with their gradients.

    Attributes
    ----------
    bar : int array, (batch,)
        Bar at which the decision filled, always NumPy.
    weights : array, (batch, K)
        Held before the trade, cash last.
    action : array, (batch, K)
        The target.
    filled : array, (batch, K)
        Weights right after the fill.
    turnover, cost : array, (batch,)
        Half-sum of absolute trades, and their cost as a share of wealth.
    simple_return, log_return : array, (batch,)
        Of the bar after the fill, net of costs.
    cash_return : array, (batch,)
        Log return of cash over that bar.
    wealth : array, (batch,)
        In money, before the trade.
    builtin : array, (batch, 5)
        Components of the built-in reward, in the order of ``objective.COMPONENTS``.
    growth : array, (batch, horizon, K)
        Gross growth of each asset, and of cash, over each of the ``horizon`` bars after the fill; as many as the
        reward declares.
    listed : bool array, (batch, horizon + 1, assets)
        Assets that could be held at the fill and at the end of each of those bars.
    table : array or None, (batch, ...)
        The row of the reward's own ``table(panel)`` at ``bar``, where it has one.
    observe : LazyObservation
        Returns ``observation``.
    """

    bar: NDArray[np.int64]
    weights: Any
    action: Any
    filled: Any
    turnover: Any
    cost: Any
    simple_return: Any
    log_return: Any
    cash_return: Any
    wealth: Any
    builtin: Any
    growth: Any
    listed: Any
    observe: LazyObservation
    table: Any = None

    @property
    def xp(self) -> Any:
        """The array library of the context: NumPy's or torch's namespace."""
        return array_namespace(self.weights)

    @cached_property
    def observation(self) -> dict[str, Any]:
        """Observation of the decision: ``assets`` (batch, assets, F + 1), ``market`` (batch, M), ``portfolio``."""
        return self.observe()

    @property
    def horizon_growth(self) -> Any:
        """Gross growth of each asset, and of cash, over all bars of the horizon together, (batch, K)."""
        return self.xp.prod(self.growth, axis=1)

    @property
    def followed(self) -> Any:
        """Assets listed at the fill and at every bar of the horizon, (batch, assets)."""
        return self.xp.all(self.listed, axis=1)


class Reward(Protocol):
    """A reward of one decision; a user's class needs no base class.

    It may also have ``differentiable = True``, where it can be computed on tensors with their gradients (NumPy and
    torch alike, through ``context.xp``), and a method ``table(panel) -> (bars, ...)``, called once for each panel,
    whose row at the fill's bar is then ``context.table``. Row t of a table may use bars up to ``t + horizon``.

    Attributes
    ----------
    horizon : int
        Bars after the fill that it needs, 1 or more.
    """

    @property
    def horizon(self) -> int:
        """Bars after the fill that it needs, 1 or more."""
        ...

    def __call__(self, context: RewardContext) -> Any:
        """Reward of each decision, (batch,), finite; more is better."""
        ...


class ChosenReward(Protocol):
    """A reward as a decision process uses it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its components."""
        ...

    @property
    def horizon(self) -> int:
        """Bars after the fill that it needs."""
        ...

    @property
    def log_return_weight(self) -> float:
        """Factor of the log return in the reward."""
        ...

    def components(self, context: RewardContext) -> Any:
        """Components of the reward, (batch, components); their sum is the reward."""
        ...
