"""Section `trading`: decisions of today, paper trading, and the comparison that a retrained agent has to pass."""

from __future__ import annotations

from typing import Literal

from finflow.config.section_types import (
    ConfigSection,
    Flag,
    NonNegativeInt,
    NonNegativeNumber,
    Number,
    PositiveInt,
    PositiveNumber,
    key,
)


class AlpacaConfig(ConfigSection):
    """Account at Alpaca; its keys come from the environment alone."""

    live: Flag = key(False, "trade real money, which has to be confirmed (--live); otherwise the paper account")
    address: str | None = key(None, "base address of the interface; left out: Alpaca's own, on paper or live")
    time_in_force: Literal["day", "opg", "cls"] = key(
        "day", "from the next open on, or in the auction of the open or close"
    )


class RetrainConfig(ConfigSection):
    """Comparison of a retrained agent with the old one (`--mode retrain`), on bars that neither was trained on."""

    window: PositiveInt | None = key(None, "bars that a retraining learns from; left out: as many as the old agent")
    folds: PositiveInt = key(3, "consecutive evaluated windows, each with a retraining of its own")
    margin: NonNegativeNumber = key(0.1, "Sharpe ratio a year by which the new agent must lead to replace the old one")


class TradingConfig(ConfigSection):
    """Orders of a decision, what its prices are checked for, and what a retrained agent has to show."""

    lot: NonNegativeNumber = key(1.0, "shares of a lot; orders are whole lots; 0: any fraction of a share")
    cash_reserve: Number = key(0.0, "share of the account that orders leave in cash", ge=0, lt=1)
    calendar: str | None = key(None, "exchange of exchange_calendars, such as XNYS; null: the one that the dates fit")
    max_age: NonNegativeInt = key(1, "sessions that the newest bar may be older than the day of the decision")
    drift_limit: PositiveNumber = key(4.0, "training deviations outside its range at which a feature is refused")
    broker: Literal["paper", "alpaca"] = key("paper", "broker of --mode paper: the ledger, or an account at Alpaca")
    alpaca: AlpacaConfig = key(AlpacaConfig(), "account at Alpaca")
    retrain: RetrainConfig = key(RetrainConfig(), "comparison of a retrained agent with the old one")
