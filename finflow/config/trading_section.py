"""Section `trading`: checks and orders of `--mode decide` and `--mode paper`; none of it touches a training."""

from __future__ import annotations

from finflow.config.section_types import NonNegativeInt, NonNegativeNumber, Number, PositiveNumber, Section, key


class TradingConfig(Section):
    """Orders of a decision, and what its prices are checked for."""

    lot: NonNegativeNumber = key(
        1.0, "shares of a lot; orders are whole lots, and 0 stands for any fraction of a share"
    )
    cash_reserve: Number = key(0.0, "share of the account that orders leave in cash", ge=0, lt=1)
    calendar: str | None = key(
        None,
        "exchange whose sessions exchange_calendars knows, such as XNYS (the package must be installed); left out: "
        "weekdays, less the holidays that the dates of the prices show",
    )
    max_age: NonNegativeInt = key(1, "sessions that the newest bar may be older than the day of the decision")
    drift_limit: PositiveNumber = key(
        4.0, "training deviations that a feature may lie outside its range in training, before a decision is refused"
    )
    jump_limit: PositiveNumber = key(12.0, "move of a bar that is pointed out, in training deviations of the asset")
