"""Trades while some assets are halted: their shares stay, and the rest of the account trades around them.

Applied after the limits of the account. What a target wanted to buy of a halted asset stays in cash; what it wanted to
sell comes out of cash, and out of the other targets in proportion where cash does not suffice. Neither enlarges the
turnover, and no other weight grows.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from finflow.ledger.accounting import Settlement, settle
from finflow.ledger.costs import CostModel, MarketState

ROUNDS = 8  # each leaves a thousandth of the error or less, at costs of ten basis points


def keep_halted(before: Any, target: Any, halted: Any, wealth_factor: Any) -> Any:
    """Replace the targets of halted assets by what their untraded shares weigh after the trade.

    Parameters
    ----------
    before, target : array, (batch, K)
        On the simplex; rows of the target without a halted asset are returned as they are, bit for bit.
    halted : bool array, (batch, assets)
    wealth_factor : array, (batch,)
        Wealth after over wealth before the trade.
    """
    xp = array_namespace(target)
    stays = before[..., :-1] / wealth_factor[..., None]
    nothing = xp.zeros_like(stays)
    cash = target[..., -1:] + xp.sum(xp.where(halted, target[..., :-1] - stays, nothing), axis=-1, keepdims=True)
    others = xp.where(halted, nothing, target[..., :-1])
    total = xp.sum(others, axis=-1, keepdims=True)
    short = (cash < 0.0) & (total > 0.0)
    scale = xp.where(short, 1.0 + cash / xp.where(total > 0.0, total, xp.ones_like(total)), xp.ones_like(total))
    risky = xp.where(halted, stays, others * xp.clip(scale, 0.0))
    return xp.concat([risky, xp.clip(cash, 0.0)], axis=-1)


def settle_around_halts(
    before: Any, target: Any, halted: Any, costs: CostModel, wealth: Any, market: MarketState | None = None
) -> Settlement:
    """Trade as `finflow.ledger.accounting.settle` does, but no share of an asset that is ``halted`` (batch, assets).

    The weight of an untraded share after the trade depends on the costs of the trade, so both are solved in turn.
    """
    xp = array_namespace(before)
    if not bool(xp.any(halted)):
        return settle(before, target, costs, wealth, market)
    factor = xp.ones_like(wealth)
    kept = keep_halted(before, target, halted, factor)
    done = settle(before, kept, costs, wealth, market)
    for _ in range(ROUNDS):
        if not bool(xp.any(done.wealth_factor != factor)):
            break
        factor = done.wealth_factor
        kept = keep_halted(before, target, halted, factor)
        done = settle(before, kept, costs, wealth, market)
    return done
