"""Lots and capital gains: what was bought when and for how much, and what of a sale is taxed at which rate.

A purchase opens a lot; a sale closes lots, the oldest first. What a sale brings less what its lots cost is a gain:
long-term where a lot was held for more than `days` calendar days, else short-term. Costs of trading raise the cost of
a lot and lower the proceeds of a sale, so that all gains, made and not yet made, sum to what the account has earned.

In a year, short-term gains and losses are netted, and long-term ones, and then the two against each other. A loss that
is left is carried forward, as what it is, without limit of time, and never refunded or set against interest. Interest
is taxed at the short-term rate, and so are dividends that are paid in cash. This is the frame of the United States'
rules without their exceptions: no wash sales, no 3,000 dollars a year against income, no brackets, no surtaxes, no
lower rate for qualified dividends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from finflow.config import TaxConfig


class Gains(NamedTuple):
    """Gains in money, losses below zero: of lots held briefly, and of the others."""

    short: float = 0.0
    long: float = 0.0

    def plus(self, other: Gains) -> Gains:
        return Gains(self.short + other.short, self.long + other.long)


class Losses(NamedTuple):
    """Losses carried forward, as positive amounts of money."""

    short: float = 0.0
    long: float = 0.0


@dataclass(slots=True)
class _Lot:
    day: int
    units: float
    unit_cost: float


class Lots:
    """The lots of one asset in one account; of the tax settings it reads ``days``."""

    def __init__(self, tax: TaxConfig) -> None:
        self.tax = tax
        self.units = 0.0
        self._queue: deque[_Lot] = deque()

    def buy(self, day: int, units: float, cost: float) -> None:
        """Open a lot of units above zero on a calendar day; ``cost`` is all that was paid, in money."""
        self._queue.append(_Lot(day, units, cost / units))
        self.units += units

    def sell(self, day: int, units: float, proceeds: float) -> Gains:
        """Close lots; ``proceeds`` is all that was received, in money.

        Units beyond those held are rounding, and are sold with them.
        """
        everything = units >= self.units
        left, price = (self.units, proceeds / self.units) if everything else (units, proceeds / units)
        gains = Gains()
        while left > 0.0 and self._queue:
            lot = self._queue[0]
            sold = min(lot.units, left)
            gain = sold * (price - lot.unit_cost)
            gains = gains.plus(Gains(long=gain) if day - lot.day > self.tax.days else Gains(short=gain))
            lot.units -= sold
            left -= sold
            if lot.units <= 0.0:
                self._queue.popleft()
        self.units = 0.0 if everything else self.units - units
        if everything:
            self._queue.clear()
        return gains


def tax_of_year(gains: Gains, interest: float, carried: Losses, tax: TaxConfig) -> tuple[float, Losses]:
    """Tax on a year's gains and interest with the losses carried in, and the losses carried into the next.

    Interest that was paid for holding cash is not deducted.
    """
    short, long = gains.short - carried.short, gains.long - carried.long
    if short < 0.0 < long:
        short, long = min(short + long, 0.0), max(short + long, 0.0)
    elif long < 0.0 < short:
        short, long = max(short + long, 0.0), min(short + long, 0.0)
    owed = tax.short_rate * (max(short, 0.0) + max(interest, 0.0)) + tax.long_rate * max(long, 0.0)
    return owed, Losses(max(-short, 0.0), max(-long, 0.0))
