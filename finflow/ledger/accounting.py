"""The ledger: growth, trades and their costs. One source of truth for environment, backtest and data.

Weights are shares of wealth over K = assets + cash, cash last, long only. Everything is written against the array
API: torch runs it batched and differentiably. NumPy's portfolios in double precision take the same arithmetic
compiled (``ledger.compiled``), with the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, is_torch_array

from finflow.ledger import compiled
from finflow.ledger.constraints import Limits, apply_limits, as_portfolio, keep_listed, turnover as portfolio_turnover
from finflow.ledger.costs import CostModel, MarketState, proportional_rates

WEALTH_TOLERANCE = 1e-15
SOLVED = 1e-12  # left over where rounding, or a root at no trade, keeps the last digits moving
MAX_ITERATIONS = 200


class Settlement(NamedTuple):
    """Outcome of one trade."""

    weights: Any  # (batch, K), right after the trade
    wealth_factor: Any  # (batch,), wealth after over wealth before the trade, ``mu``
    turnover: Any  # (batch,), half-sum of absolute changes of weight
    refused: Any = None  # (batch,), where the trade could not be paid for and nothing was traded; None: nowhere

    @property
    def cost(self) -> Any:
        """Cost as a share of wealth before the trade, (batch,)."""
        return 1.0 - self.wealth_factor


def drift(weights: Any, growth: Any) -> Any:
    """Weights (batch, K) after prices moved by gross growth (batch, K), e.g. 1.01, and nothing was traded."""
    xp = array_namespace(weights)
    grown = weights * growth
    return grown / xp.sum(grown, axis=-1, keepdims=True)


def pay_dividends(weights: Any, shares: Any) -> Any:
    """Turn the dividends of a bar into cash, once weights (batch, K) have drifted with them.

    ``shares`` (batch, assets) of each asset's weight are a dividend, ``d / (p + d)``.
    """
    xp = array_namespace(weights)
    paid = weights[..., :-1] * shares
    cash = weights[..., -1:] + xp.sum(paid, axis=-1, keepdims=True)
    return xp.concat([weights[..., :-1] - paid, cash], axis=-1)


def before_dividends(weights: Any, shares: Any) -> Any:
    """Invert `pay_dividends`: weights with the dividends still in the assets that pay them, (batch, K)."""
    xp = array_namespace(weights)
    risky = weights[..., :-1] / (1.0 - shares)
    cash = weights[..., -1:] - xp.sum(risky * shares, axis=-1, keepdims=True)
    return xp.concat([risky, cash], axis=-1)


def pay_out(weights: Any, listed: Any) -> Any:
    """Turn positions (batch, K) in assets that are not ``listed`` (batch, assets) into cash, at no cost."""
    xp = array_namespace(weights)
    if bool(xp.all(listed)):
        return weights
    risky = xp.where(listed, weights[..., :-1], xp.zeros_like(weights[..., :-1]))
    paid = xp.sum(weights[..., :-1] - risky, axis=-1, keepdims=True)
    return xp.concat([risky, weights[..., -1:] + paid], axis=-1)


def orders(
    weights: Any, action: Any, growth: Any, listed: Any, limits: Limits, lag: int, dividends: Any = None
) -> tuple[Any, Any]:
    """Portfolios before and after the trades that actions ask for, at the fill's prices; (batch, K) both.

    Parameters
    ----------
    weights : array, (batch, K)
        Right after the last fill.
    action : array, (batch, K)
        Targets; projected where they are off the simplex.
    growth : array, (batch, K)
        From the last fill to this one.
    listed : bool array, (batch, assets)
        Assets that can be held.
    lag : int
        At lags over 0 targets are stated at the prices of ``weights``, and drift to the fill.
    dividends : array, (batch, assets), optional
        Share of each asset's value at the fill that is paid in cash, of what is held and of what is aimed at alike.
    """
    if is_compiled(weights):
        return compiled.orders(
            weights,
            np.ascontiguousarray(action, dtype=np.float64),
            growth,
            listed,
            (limits.max_weight, limits.max_turnover, limits.no_trade_band),
            lag > 0,
            np.empty((0, 0)) if dividends is None else dividends,
        )
    held = drift_and_pay(weights, growth, dividends)
    before = pay_out(held, listed)
    target = as_portfolio(action)
    if lag > 0:
        target = drift_and_pay(target, growth, dividends)
    return before, apply_limits(before, keep_listed(target, listed, held), limits)


def drift_and_pay(weights: Any, growth: Any, dividends: Any) -> Any:
    """Weights (batch, K) after a bar of this growth, its dividends (batch, assets), where there are any, in cash."""
    held = drift(weights, growth)
    return held if dividends is None else pay_dividends(held, dividends)


def settle(before: Any, target: Any, costs: CostModel, wealth: Any, market: MarketState | None = None) -> Settlement:
    """Trade from ``before`` to ``target`` and pay for it exactly.

    The costs come out of the portfolio, so the value traded depends on what they leave. The wealth factor solves
    ``mu = 1 - cost(mu * target - before)``, by iteration to rounding. That is a contraction as long as the last unit
    traded costs less than itself, which every proportional cost below 100 % does. A trade that would leave no wealth,
    or whose equation is not solved in 200 rounds (its last unit costs nearly its own value, or more), is refused: the
    account keeps what it holds, and pays nothing.

    Parameters
    ----------
    before, target : array, (batch, K)
        Weights before the trade and right after it, on the simplex.
    wealth : array, (batch,)
        Wealth before the trade, in money.
    market : MarketState, optional
        What costs that depend on volume need.

    References
    ----------
    Jiang, Xu and Liang (2017), A Deep Reinforcement Learning Framework for the Financial Portfolio Management
    Problem, equation 14 (there with separate rates for sales and purchases).
    """
    xp = array_namespace(before)
    proportional = proportional_rates(costs) if is_compiled(before) else None
    if proportional is not None:
        weights, turnover, factor, last, solved = _settle_compiled(before, target, proportional)
    else:
        solve = _differentiable_factor if is_torch_array(before) else _wealth_factor
        factor, last, solved = solve(before, target, costs, wealth, market)
        cash = xp.clip(1.0 - xp.sum(target[..., :-1], axis=-1, keepdims=True), 0.0)
        weights = xp.concat([target[..., :-1], cash], axis=-1)
        turnover = portfolio_turnover(before, target)
    done = Settlement(weights, factor, turnover)
    if solved and bool(xp.min(factor) > 0.0):
        return done
    affordable = (factor > 0.0) & (xp.abs(factor - last) <= SOLVED)
    return done if bool(xp.all(affordable)) else _refuse(before, done, affordable)


def _settle_compiled(before: Any, target: Any, rates: Any) -> tuple[Any, ...]:
    """Weights, turnover, wealth factor after the last round and before it, and whether it has settled."""
    target = np.ascontiguousarray(target, dtype=np.float64)
    return compiled.settle(before, target, rates, MAX_ITERATIONS, WEALTH_TOLERANCE)


def _differentiable_factor(
    before: Any, target: Any, costs: CostModel, wealth: Any, market: MarketState | None
) -> tuple[Any, Any, bool]:
    """As `_wealth_factor`, of torch's portfolios: solved without gradient, which the root itself then has."""
    import torch  # slow to load, and not needed for NumPy's portfolios

    from finflow.ledger.proportional_root import differentiable_root

    held, wanted = before[..., :-1], target[..., :-1]
    start, end, account = before.detach(), target.detach(), wealth.detach()
    on_processor = before.device.type == "cpu" and is_compiled(start.numpy())
    proportional = proportional_rates(costs) if on_processor else None
    if proportional is not None:
        result = _settle_compiled(start.numpy(), end.numpy(), proportional)
        xp, solved = array_namespace(before), bool(result[4])
        factor, last = xp.asarray(result[2]), xp.asarray(result[3])
    else:
        factor, last, solved = _wealth_factor(start, end, costs, account, market)
    if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in (before, target, wealth)):
        return factor, last, solved
    if proportional is not None:
        rate = torch.as_tensor(proportional.sum())
        factor = differentiable_root(held, wanted, factor, rate)
    else:
        # Implicit function theorem at the root: d mu = - d cost / (1 + cost'(mu)), with d cost at constant mu. That is
        # one Newton step from the root, which changes its value by no more than rounding.
        point = factor.detach().requires_grad_(True)
        cost = costs.share(point[..., None] * wanted - held, wealth, market)
        (slope,) = torch.autograd.grad(cost.sum(), point, retain_graph=True)
        factor = factor + (1.0 - cost - factor) / (1.0 + slope)
    return factor, last, solved


def _wealth_factor(
    before: Any, target: Any, costs: CostModel, wealth: Any, market: MarketState | None
) -> tuple[Any, Any, bool]:
    """The wealth factor after the last round and before it, (batch,), and whether it has settled."""
    xp = array_namespace(before)
    held, wanted = before[..., :-1], target[..., :-1]
    factor, last, solved = xp.ones_like(wealth), xp.ones_like(wealth), False
    for _ in range(MAX_ITERATIONS):
        last, factor = factor, 1.0 - costs.share(factor[..., None] * wanted - held, wealth, market)
        if costs.needs_market:
            factor = xp.clip(factor, 0.0)  # where it is no contraction, it must not run away either
        solved = not bool(xp.max(xp.abs(factor - last)) > WEALTH_TOLERANCE)
        if solved:
            break
    return factor, last, solved


def is_compiled(weights: Any) -> bool:
    """True for portfolios of NumPy's in double precision, which the compiled arithmetic takes."""
    return isinstance(weights, np.ndarray) and weights.dtype == np.float64 and weights.ndim == 2


def _refuse(before: Any, wanted: Settlement, affordable: Any) -> Settlement:
    xp = array_namespace(before)
    return Settlement(
        xp.where(affordable[..., None], wanted.weights, before),
        xp.where(affordable, wanted.wealth_factor, xp.ones_like(wanted.wealth_factor)),
        xp.where(affordable, wanted.turnover, xp.zeros_like(wanted.turnover)),
        ~affordable,
    )
