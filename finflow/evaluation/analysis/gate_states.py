"""What the gate does when the market is bad: whom it follows in crises, and whom in calm weeks.

How bad the market is, is what the agent itself is told: the crisis score, a filtered probability of the state of larger
variance (Hamilton 1989; `finflow.market.features.market_features`), fitted on the training window and known at
the decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.evaluation.report.section import Cell, Row, Section, Table

__all__ = ["STATES", "ByState", "gate_by_state", "section"]

FloatArray = NDArray[np.float64]
ByState = dict[str, dict[str, Any]]
#: State of the market -> the range of the crisis score, up to its upper end.
STATES = {"calm": (0.0, 0.2), "between": (0.2, 0.8), "crisis": (0.8, 1.0)}


def gate_by_state(crisis: FloatArray, gate: FloatArray, cash: FloatArray, names: Sequence[str]) -> ByState:
    """Mean share of each expert, and of cash in the aim, in each state of the market.

    Parameters
    ----------
    crisis : float64 (steps,)
        The crisis score known to each decision, in [0, 1].
    gate : float64 (steps, E)
    cash : float64 (steps,)
        Share of cash in the portfolio aimed at.
    names : sequence of str, (E,)

    Returns
    -------
    dict
        State -> ``decisions``, ``gate`` (expert -> share) and ``cash``; states that never were are left out.
    """
    found: ByState = {}
    for state, (low, high) in STATES.items():
        here = (crisis >= low) & ((crisis < high) if high < 1.0 else (crisis <= high))
        if here.any():
            shares = dict(zip(names, gate[here].mean(axis=0).tolist(), strict=True))
            found[state] = {"decisions": int(here.sum()), "gate": shares, "cash": float(cash[here].mean())}
    return found


def section(found: ByState, names: Sequence[str], window: str) -> Section:
    """The table for a report.

    Parameters
    ----------
    found : dict
        Of `gate_by_state`.
    names : sequence of str
        Of the experts.
    window : str
        Which decisions were looked at, in words.
    """
    rows = tuple(
        Row(
            f"{state} (score {low:g} to {high:g})",
            (
                Cell((state, "decisions"), "", 0),
                *(Cell((state, "gate", name), "%", 1) for name in names),
                Cell((state, "cash"), "%", 1),
            ),
        )
        for state, (low, high) in STATES.items()
        if state in found
    )
    heads = ("The market", "Decisions", *(name.capitalize() for name in names), "Cash in the aim")
    words = (
        f"Means over {window}, by how bad the agent was told that the market was: the crisis score, fitted on the "
        "training window.",
    )
    table = Table("Share of each expert in the aim", heads, rows)
    return Section("gate_states", "The gate in crises", dict(found), (table,), (), words)
