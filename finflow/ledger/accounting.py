"""The ledger: what holding and trading do to money. One source of truth for environment, backtest and data.

Weights are shares of wealth over K = assets + cash, cash last, long only. Everything is written against the array
API: NumPy runs it in the environment, torch runs it batched and differentiably.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from array_api_compat import array_namespace

from finflow.ledger.constraints import turnover as portfolio_turnover
from finflow.ledger.costs import CostModel, MarketState

WEALTH_TOLERANCE = 1e-15
SOLVED = 1e-12  # left over where rounding, or a root at no trade, keeps the last digits moving
MAX_ITERATIONS = 200


class Settlement(NamedTuple):
    """What one trade did.

    Attributes
    ----------
    weights : array, (batch, K)
        Weights right after the trade.
    wealth_factor : array, (batch,)
        Wealth after over wealth before the trade, ``mu``.
    turnover : array, (batch,)
        Half-sum of absolute changes of weight.
    refused : bool array, (batch,), or None
        Where the trade could not be paid for and nothing was traded; None where every trade was carried out.
    """

    weights: Any
    wealth_factor: Any
    turnover: Any
    refused: Any = None

    @property
    def cost(self) -> Any:
        """Cost as a share of wealth before the trade, (batch,)."""
        return 1.0 - self.wealth_factor


def drift(weights: Any, growth: Any) -> Any:
    """Weights after prices moved and nothing was traded.

    Parameters
    ----------
    weights : array, (batch, K)
    growth : array, (batch, K)
        Gross growth of each asset and of cash, e.g. 1.01.

    Returns
    -------
    array, (batch, K)
    """
    xp = array_namespace(weights)
    grown = weights * growth
    return grown / xp.sum(grown, axis=-1, keepdims=True)


def pay_out(weights: Any, listed: Any) -> Any:
    """Turn positions in assets that have ended into cash at their last price, at no cost.

    Parameters
    ----------
    weights : array, (batch, K)
    listed : bool array, (batch, assets)

    Returns
    -------
    array, (batch, K)
    """
    xp = array_namespace(weights)
    if bool(xp.all(listed)):
        return weights
    risky = xp.where(listed, weights[..., :-1], xp.zeros_like(weights[..., :-1]))
    paid = xp.sum(weights[..., :-1] - risky, axis=-1, keepdims=True)
    return xp.concat([risky, weights[..., -1:] + paid], axis=-1)


def settle(before: Any, target: Any, costs: CostModel, wealth: Any, market: MarketState | None = None) -> Settlement:
    """Trade from ``before`` to ``target`` and pay for it exactly.

    The costs come out of the portfolio, so the value traded depends on what they leave. The wealth factor solves
    ``mu = 1 - cost(mu * target - before)``, by iteration to rounding. That is a contraction as long as the last unit
    traded costs less than itself, which every proportional cost below 100 % does at any size. Costs that grow with
    size, and fixed ones in a small account, may not: a trade that would leave no wealth, or whose equation is not
    solved in 200 rounds (its last unit costs nearly its own value, or more), is refused. The account then keeps what
    it holds, and pays nothing.

    Parameters
    ----------
    before : array, (batch, K)
        Weights before the trade.
    target : array, (batch, K)
        Weights right after it, on the simplex.
    costs : CostModel
    wealth : array, (batch,)
        Wealth before the trade, in money.
    market : MarketState, optional
        What costs that depend on volume need.

    Returns
    -------
    Settlement

    References
    ----------
    Jiang, Xu and Liang (2017), A Deep Reinforcement Learning Framework for the Financial Portfolio Management
    Problem, equation 14 (there for sales and purchases apart).
    """
    xp = array_namespace(before)
    held, wanted = before[..., :-1], target[..., :-1]
    factor, solved = xp.ones_like(wealth), False
    for _ in range(MAX_ITERATIONS):
        last, factor = factor, 1.0 - costs.share(factor[..., None] * wanted - held, wealth, market)
        if costs.needs_market:
            factor = xp.clip(factor, 0.0)  # where it is no contraction, it must not run away either
        solved = not bool(xp.max(xp.abs(factor - last)) > WEALTH_TOLERANCE)
        if solved:
            break
    cash = xp.clip(1.0 - xp.sum(wanted, axis=-1, keepdims=True), 0.0)
    done = Settlement(xp.concat([wanted, cash], axis=-1), factor, portfolio_turnover(before, target))
    if solved and bool(xp.min(factor) > 0.0):
        return done
    paid = (factor > 0.0) & (xp.abs(factor - last) <= SOLVED)
    return done if bool(xp.all(paid)) else _refuse(before, done, paid)


def _refuse(before: Any, wanted: Settlement, paid: Any) -> Settlement:
    """The settlement with nothing traded in the accounts that cannot pay."""
    xp = array_namespace(before)
    return Settlement(
        xp.where(paid[..., None], wanted.weights, before),
        xp.where(paid, wanted.wealth_factor, xp.ones_like(wanted.wealth_factor)),
        xp.where(paid, wanted.turnover, xp.zeros_like(wanted.turnover)),
        ~paid,
    )
