"""Facts that a reward is computed from: what was known at the decision, what was done, and what the bars brought."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from array_api_compat import array_namespace

from finflow.arrays import IntArray
from finflow.env.portfolio_state import PortfolioState


class LazyObservation(NamedTuple):
    """The observation of a decision from the state before it, made when it is called.

    The process is None while this is sent to another operating-system process, which has its own.
    """

    process: Any
    state: PortfolioState

    def __call__(self) -> dict[str, Any]:
        observation: dict[str, Any] = self.process.observe(self.state)
        return observation


@dataclass(frozen=True, eq=False)
class RewardContext:
    """One decision of each of a batch of portfolios; arrays of NumPy, or tensors of torch with their gradients."""

    bar: IntArray  # (batch,), at which the decision filled, always NumPy
    weights: Any  # (batch, K), held before the trade, cash last
    action: Any  # (batch, K), the target
    filled: Any  # (batch, K), right after the fill
    turnover: Any  # (batch,), half-sum of absolute trades
    cost: Any  # (batch,), a share of wealth
    simple_return: Any  # (batch,), of the bar after the fill, net of costs
    log_return: Any  # (batch,), likewise
    cash_return: Any  # (batch,), log return of cash over that bar
    wealth: Any  # (batch,), in money, before the trade
    builtin: Any  # (batch, 5), components of the built-in reward, by ``objective.COMPONENTS``
    growth: Any  # (batch, horizon, K), gross, of assets and cash, over each bar after the fill that the reward declares
    listed: Any  # (batch, horizon + 1, assets), could be held at the fill and at the end of each of those bars
    observe: LazyObservation  # returns ``observation``
    table: Any = None  # (batch, ...), the row of the reward's own ``table(panel)`` at ``bar``, where it has one

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
    """A reward of one decision, of ``horizon`` bars after the fill, 1 or more; a user's class needs no base class.

    It may also have ``differentiable = True``, where it can be computed on tensors with their gradients (NumPy and
    torch alike, through ``context.xp``), and a method ``table(panel) -> (bars, ...)``, called once for each panel,
    whose row at the fill's bar is then ``context.table``. Row t of a table may use bars up to ``t + horizon``.
    """

    @property
    def horizon(self) -> int: ...

    def __call__(self, context: RewardContext) -> Any:
        """Reward of each decision, (batch,), finite; more is better."""


class ChosenReward(Protocol):
    """A reward as a decision process uses it."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def horizon(self) -> int: ...

    @property
    def log_return_weight(self) -> float:
        """Factor of the log return in the reward."""

    def components(self, context: RewardContext) -> Any:
        """Components of the reward, (batch, components); their sum is the reward."""
