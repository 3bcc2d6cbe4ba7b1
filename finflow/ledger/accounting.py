"""The ledger: growth, trades and their costs. One source of truth for environment, backtest and data;
learning has a compiled form of it too, `training.data.fused_rollout`, equal to rounding.

Weights are shares of wealth over K = assets + cash, cash last, long only. NumPy runs everything in batches, and
torch differentiably too: by the array API, and by methods that the arrays of both have, which cost half as much.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, is_torch_array

from finflow.ledger.constraints import Limits, apply_limits, as_portfolio, keep_listed, turnover as portfolio_turnover
from finflow.ledger.costs import CostModel, MarketState, proportional_rates

WEALTH_TOLERANCE = 1e-15
MAX_ITERATIONS = 200
SOLVED = 1e-12  # left over where rounding, or a root at no trade, keeps the last digits moving
HALT_ROUNDS = 8  # each leaves a thousandth of the error or less, at costs of ten basis points


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


def drift(weights: Any, growth: Any, dividends: Any = None) -> Any:
    """Weights (batch, K) after prices moved by gross growth (batch, K), e.g. 1.01, and nothing was traded.

    ``dividends`` (batch, assets), ``d / (p + d)`` of each asset, is the share of its weight that is paid in cash.
    """
    grown = weights * growth
    held = grown / grown.sum(axis=-1, keepdims=True)
    if dividends is None:
        return held
    xp = array_namespace(weights)
    paid = held[..., :-1] * dividends
    return xp.concat([held[..., :-1] - paid, held[..., -1:] + paid.sum(axis=-1, keepdims=True)], axis=-1)


def before_dividends(weights: Any, shares: Any) -> Any:
    """Weights (batch, K) with dividends that `drift` paid, (batch, assets), back in the assets that paid them."""
    xp = array_namespace(weights)
    risky = weights[..., :-1] / (1.0 - shares)
    cash = weights[..., -1:] - (risky * shares).sum(axis=-1, keepdims=True)
    return xp.concat([risky, cash], axis=-1)


def pay_out(weights: Any, listed: Any) -> Any:
    """Turn positions (batch, K) in assets that are not ``listed`` (batch, assets) into cash, at no cost."""
    if bool(listed.all()):
        return weights
    xp = array_namespace(weights)
    risky = xp.where(listed, weights[..., :-1], xp.zeros_like(weights[..., :-1]))
    paid = (weights[..., :-1] - risky).sum(axis=-1, keepdims=True)
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
    held = drift(weights, growth, dividends)
    before = pay_out(held, listed)
    target = as_portfolio(_contiguous(action))
    if lag > 0:
        target = drift(target, growth, dividends)
    return before, apply_limits(before, keep_listed(target, listed, held), limits)


def settle(
    before: Any, target: Any, costs: CostModel, wealth: Any, market: MarketState | None = None, halted: Any = None
) -> Settlement:
    """Trade from ``before`` to ``target``, but no share of a halted asset, and pay for it exactly.

    The costs come out of the portfolio, so the value traded depends on what they leave. The wealth factor solves
    ``mu = 1 - cost(mu * target - before)``, by iteration to rounding. That is a contraction as long as the last unit
    traded costs less than itself, which every proportional cost below 100 % does. A trade that would leave no wealth,
    or whose equation is not solved in 200 rounds (its last unit costs nearly its own value, or more), is refused: the
    account keeps what it holds, and pays nothing.

    What a target wanted to buy of a halted asset stays in cash; what it wanted to sell comes out of cash, and out of
    the other targets in proportion where cash does not suffice. Neither enlarges the turnover, and no other weight
    grows. The weight of an untraded share depends on the costs of the trade, so both are solved in turn.

    Parameters
    ----------
    before, target : array, (batch, K)
        Weights before the trade and right after it, on the simplex, within the account's limits.
    wealth : array, (batch,)
        Wealth before the trade, in money.
    market : MarketState, optional
        What costs that depend on volume need.
    halted : bool array, (batch, assets), optional

    References
    ----------
    Jiang, Xu and Liang (2017), A Deep Reinforcement Learning Framework for the Financial Portfolio Management
    Problem, equation 14 (there with separate rates for sales and purchases).
    """
    if halted is None or not bool(halted.any()):
        return _settle(before, target, costs, wealth, market)
    factor = array_namespace(before).ones_like(wealth)
    for _ in range(1 + HALT_ROUNDS):
        done = _settle(before, _keep_halted(before, target, halted, factor), costs, wealth, market)
        if not bool((done.wealth_factor != factor).any()):
            break
        factor = done.wealth_factor
    return done


def _keep_halted(before: Any, target: Any, halted: Any, wealth_factor: Any) -> Any:
    """Replace the targets of halted assets by what their untraded shares weigh after the trade.

    Rows of the target (batch, K) without a halted asset are returned as they are, bit for bit.
    """
    xp = array_namespace(target)
    stays = before[..., :-1] / wealth_factor[..., None]
    nothing = xp.zeros_like(stays)
    cash = target[..., -1:] + xp.where(halted, target[..., :-1] - stays, nothing).sum(axis=-1, keepdims=True)
    others = xp.where(halted, nothing, target[..., :-1])
    total = others.sum(axis=-1, keepdims=True)
    short = (cash < 0.0) & (total > 0.0)
    scale = xp.where(short, 1.0 + cash / xp.where(total > 0.0, total, xp.ones_like(total)), xp.ones_like(total))
    risky = xp.where(halted, stays, others * scale.clip(0.0))
    return xp.concat([risky, cash.clip(0.0)], axis=-1)


def _settle(before: Any, target: Any, costs: CostModel, wealth: Any, market: MarketState | None) -> Settlement:
    """Trade as `settle` does where no asset is halted."""
    xp, target = array_namespace(before), _contiguous(target)
    solve = _differentiable_factor if is_torch_array(before) else _wealth_factor
    factor, last, solved = solve(before, target, costs, wealth, market)
    cash = (1.0 - target[..., :-1].sum(axis=-1, keepdims=True)).clip(0.0)
    weights = xp.concat([target[..., :-1], cash], axis=-1)
    turnover = portfolio_turnover(before, target)
    if solved and bool(factor.min() > 0.0):
        return Settlement(weights, factor, turnover)
    affordable = (factor > 0.0) & (abs(factor - last) <= SOLVED)
    if bool(affordable.all()):
        return Settlement(weights, factor, turnover)
    return Settlement(
        xp.where(affordable[..., None], weights, before),
        xp.where(affordable, factor, xp.ones_like(factor)),
        xp.where(affordable, turnover, xp.zeros_like(turnover)),
        ~affordable,
    )


def _contiguous(weights: Any) -> Any:
    """NumPy's portfolios in double precision and row by row: the order in memory decides the order of their sums."""
    return np.ascontiguousarray(weights, dtype=np.float64) if isinstance(weights, np.ndarray) else weights


def _differentiable_factor(
    before: Any, target: Any, costs: CostModel, wealth: Any, market: MarketState | None
) -> tuple[Any, Any, bool]:
    """As `_wealth_factor`, of torch's portfolios: solved without gradient, which the root itself then has.

    The gradient is that of the implicit function theorem at the root.
    """
    import torch  # slow to load, and not needed for NumPy's portfolios

    held, wanted = before[..., :-1], target[..., :-1]
    start, end, account = before.detach(), target.detach(), wealth.detach()
    on_processor = before.device.type == "cpu" and before.dtype == torch.float64
    rates = proportional_rates(costs) if on_processor else None
    if rates is not None:
        *found, solved = _wealth_factor(start.numpy(), _contiguous(end.numpy()), costs, account.numpy(), None)
        factor, last = (torch.from_numpy(one) for one in found)
    else:
        factor, last, solved = _wealth_factor(start, end, costs, account, market)
    if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in (before, target, wealth)):
        return factor, last, solved
    if rates is not None:
        # In closed form, since a step of learning takes many: with s = sign(mu w - h) and the rate k,
        # mu = 1 - k sum |mu w - h| has d mu = k (s dh - mu s dw) / (1 + k s w). What is added is exactly zero.
        rate, mu = torch.as_tensor(rates.sum()), factor[..., None]
        side = (mu * end[..., :-1] - start[..., :-1]).sign_()
        moved = torch.sum((held - mu * wanted) * side, dim=-1)
        moved = moved / (1.0 + rate * torch.sum(side * end[..., :-1], dim=-1)) * rate
        factor = factor + (moved - moved.detach())
    else:
        # d mu = - d cost / (1 + cost'(mu)), with d cost at constant mu. That is one Newton step from the root, which
        # changes its value by no more than rounding.
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
    rates = proportional_rates(costs)
    each = None if rates is None else rates.tolist()
    for _ in range(MAX_ITERATIONS):
        trades = factor[..., None] * wanted - held
        if each is None:
            cost = costs.share(trades, wealth, market)
        else:  # the same sum with the trades added up once
            traded = abs(trades).sum(axis=-1)
            cost = sum(rate * traded for rate in each)
        last, factor = factor, 1.0 - cost
        if costs.needs_market:
            factor = factor.clip(0.0)  # where it is no contraction, it must not run away either
        solved = not bool(abs(factor - last).max() > WEALTH_TOLERANCE)
        if solved:
            break
    return factor, last, solved
