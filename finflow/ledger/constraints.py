"""Constraints on a target before it is traded: the simplex, then the account's own limits.

The order is fixed: simplex, listing, maximum weight, maximum turnover, no-trade band. A limit on turnover is
applied after the maximum weight, so a position that grew past its maximum by drifting may take several decisions to
come back. Whatever the limits, the result lies on the simplex; cash (last) takes up what the limits leave over.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from array_api_compat import array_namespace

SIMPLEX_TOLERANCE = 1e-6  # single-precision actions of 500 assets still count as lying on the simplex
ROUNDING = 1e-12


class Limits(NamedTuple):
    """Limits of the account; the defaults limit nothing."""

    max_weight: float = 1.0  # largest weight of one risky asset
    max_turnover: float = 1.0  # largest turnover (half-sum of absolute trades, cash included) of one decision
    no_trade_band: float = 0.0  # a decision whose largest single trade is not over this is not traded at all


def project_to_simplex(values: Any) -> Any:
    """Euclidean projection of finite numbers (..., K) onto the simplex, row by row.

    References
    ----------
    Duchi et al. (2008), Efficient Projections onto the l1-Ball for Learning in High Dimensions, figure 1.
    """
    xp = array_namespace(values)
    # the projection does not change with a common shift, and near zero no digits are lost
    values = values - xp.max(values, axis=-1, keepdims=True)
    ordered = xp.flip(xp.sort(values, axis=-1), axis=(-1,))
    excess = xp.cumulative_sum(ordered, axis=-1) - 1.0
    rank = xp.arange(1, values.shape[-1] + 1, dtype=values.dtype)
    positive = ordered - excess / rank > 0
    count = xp.astype(positive, values.dtype).sum(axis=-1, keepdims=True)
    kept = xp.where(positive, ordered, xp.zeros_like(ordered))
    threshold = (kept.sum(axis=-1, keepdims=True) - 1.0) / count
    return (values - threshold).clip(0.0)


def as_portfolio(action: Any) -> Any:
    """Read an action (batch, K) as a portfolio: as it is on the simplex, projected onto it otherwise.

    A sum that is off by single-precision rounding is divided out, so that no wealth appears from nowhere.
    """
    total = action.sum(axis=-1)
    inside = (action >= 0.0).all(axis=-1) & (abs(total - 1.0) <= SIMPLEX_TOLERANCE)
    exact = inside & (abs(total - 1.0) <= ROUNDING)
    if bool(exact.all()):
        return action
    xp = array_namespace(action)
    scaled = action / xp.where(inside, total, xp.ones_like(total))[..., None]
    near = xp.where(exact[..., None], action, scaled)
    return near if bool(inside.all()) else xp.where(inside[..., None], near, project_to_simplex(action))


def keep_listed(target: Any, listed: Any, held: Any = None) -> Any:
    """Spread what a target puts into assets that cannot be held over the others, in proportion.

    A position that has ended was paid out in cash, and so is what a target leaves in it: only what goes beyond
    ``held`` is spread. So a target that names what is held trades nothing on the day an asset ends either.

    Parameters
    ----------
    target : array, (batch, K)
        Rows that name listed assets alone are returned as they are; all cash where nothing else is left.
    listed : bool array, (batch, assets)
    held : array, (batch, K), optional
        Weights before the trade, positions that have ended among them; none when left out.
    """
    if bool(listed.all()):
        return target
    xp = array_namespace(target)
    risky, cash, nothing = target[..., :-1], target[..., -1:], xp.zeros_like(target[..., :-1])
    barred = xp.where(listed, nothing, risky)
    paid = nothing if held is None else xp.minimum(barred, held[..., :-1])
    kept = xp.concat([xp.where(listed, risky, nothing), cash + paid.sum(axis=-1, keepdims=True)], axis=-1)
    spread = (barred - paid).sum(axis=-1, keepdims=True) > 0.0
    total = kept.sum(axis=-1, keepdims=True)
    scaled = kept / xp.where(total > 0.0, total, xp.ones_like(total))
    all_cash = xp.concat([nothing, xp.ones_like(cash)], axis=-1)
    return xp.where(spread, xp.where(total > 0.0, scaled, all_cash), kept)


def turnover(before: Any, target: Any) -> Any:
    """Half-sum of absolute changes of weight, cash included: the larger of what is bought and what is sold, (batch,).

    Cash of the portfolios (batch, K) is what the risky assets leave, so that rounding in it is not a trade.
    """
    change = target[..., :-1] - before[..., :-1]
    return 0.5 * (abs(change).sum(axis=-1) + abs(change.sum(axis=-1)))


def apply_limits(before: Any, target: Any, limits: Limits) -> Any:
    """Apply the account's limits to a target (batch, K) on the simplex, from what is held (batch, K).

    The result is on the simplex, and equal to ``before``, bit for bit, where nothing is to be traded.
    """
    xp = array_namespace(before)
    if limits.max_weight < 1.0:
        risky = target[..., :-1].clip(0.0, limits.max_weight)
        cash = (1.0 - risky.sum(axis=-1, keepdims=True)).clip(0.0)
        target = xp.concat([risky, cash], axis=-1)
    if limits.max_turnover < 1.0:
        wanted = turnover(before, target)
        share = (limits.max_turnover / wanted.clip(1e-300)).clip(0.0, 1.0)[..., None]
        target = xp.where(share < 1.0, before + share * (target - before), target)
    if limits.no_trade_band > 0.0:
        largest = xp.max(abs(target - before), axis=-1, keepdims=True)
        target = xp.where(largest <= limits.no_trade_band, before, target)
    return target
