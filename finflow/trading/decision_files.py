"""Files of a decision: `decision.json`, `orders.csv`, `decision.html`, and its line of `state.jsonl`."""

from __future__ import annotations

import csv
import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np

from finflow.evaluation.report.report_numbers import json_text, plain
from finflow.files import exclusively, write_together
from finflow.trading.account_state import DECISION, FILLS, AccountState, StatedAccount, fills_of, last_decision
from finflow.trading.decision_log import STATE, DecisionLog
from finflow.trading.decision_page import decision_page
from finflow.trading.decision_results import Decision
from finflow.trading.live_market import LiveMarket


def write_decision(
    folder: Path,
    made: Decision,
    account: AccountState,
    given: StatedAccount,
    market: LiveMarket,
    broker: str | None = None,
) -> Path:
    """Write the files of a decision, then its line of the log; what is there already is left as it is.

    ``broker`` is the mark of the account elsewhere that its orders are for.
    """
    place = folder / made.date
    content = json_text(plain(made))
    files = {"orders.csv": orders_csv(made), "decision.html": decision_page(made), "decision.json": content}
    folder.mkdir(parents=True, exist_ok=True)
    with exclusively(folder / ".lock"):
        log = DecisionLog.read(folder / STATE)
        before = last_decision(log.entries, made.date)
        fills = given.fills
        if fills is not None and before is not None and fills_of(log.entries, before["date"]) != list(fills):
            log.append({"kind": FILLS, "date": before["date"], "fills": [list(fill) for fill in fills]})
        write_together({place / name: text for name, text in files.items()})
        entry = _entry(made, account, market, hashlib.sha256(content.encode()).hexdigest())
        if broker is not None:
            entry["broker"] = broker
        same_day = [one for one in log.entries if one["kind"] == DECISION and one["date"] == made.date]
        if not same_day or same_day[-1] != plain(entry):
            log.append(plain(entry))
    return place


def _entry(made: Decision, account: AccountState, market: LiveMarket, digest: str) -> dict[str, Any]:
    """Line of the log."""
    state = account.reward_state
    if state is None:
        state = market.process.objective.initial(np.zeros((1, market.process.n_weights)))
    panel = market.panel
    held = zip(panel.assets, account.shares.tolist(), strict=True)
    return {
        "kind": DECISION,
        "date": made.date,
        "agent_sha256": made.agent_sha256,
        "decision_sha256": digest,
        "account": {"shares": {name: count for name, count in held if count}, "cash": account.cash},
        "orders": {one.ticker: one.shares if one.side == "buy" else -one.shares for one in made.orders},
        "prices": {
            name: price
            for name, price in zip(panel.assets, panel.share_closes[-1].tolist(), strict=True)
            if np.isfinite(price)
        },
        "cost": made.cost,
        "turnover": made.turnover,
        "reward_state": state[0].tolist(),
    }


def orders_csv(made: Decision) -> str:
    """Orders as CSV: ticker, side, shares, price, value, cost."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["ticker", "side", "shares", "price", "value", "cost"])
    for one in made.orders:
        shares = int(one.shares) if float(one.shares).is_integer() else one.shares
        writer.writerow([one.ticker, one.side, shares, one.price, round(one.value, 2), round(one.cost, 2)])
    return stream.getvalue()
