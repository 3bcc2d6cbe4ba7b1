"""The ledger of test readings: who has looked at the test window of a panel, and with what.

Every look at a test window is a chance to be lucky, so every final evaluation leaves a line in a file that only grows
(JSON, one reading a line), under the hash of the panel it read. The count enters the deflated Sharpe ratio, and stands
in the report.

What counts as a try is a judged strategy or agent, not an evaluation: the same policy (by the hash of its weights) or
the same rule (by its name and settings), judged again, is the same reading, whatever costs or lag it is judged under.
Another seed is another policy, because one may keep the better of two; agents that are averaged are one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from finflow.errors import EvidenceError
from finflow.line_file import append_line

FILE = "readings.jsonl"


@dataclass(frozen=True)
class Reading:
    """One final evaluation.

    Attributes
    ----------
    panel
        SHA-256 of the panel whose test window was read.
    judged
        The hash of a policy's weights, or of a rule's name and settings.
    configuration, configurations
        Hash of the configuration, and how many it was chosen among, as it says.
    active_sharpe
        Sharpe ratio of its return over equal weight's, a bar; None where there was none.
    date
        In UTC (ISO 8601).
    """

    panel: str
    judged: str
    name: str
    compared: tuple[str, ...]
    configuration: str
    configurations: int
    window: tuple[str, str]
    active_sharpe: float | None
    run: str
    date: str


_READING = TypeAdapter(Reading)


@dataclass(frozen=True)
class Tries:
    """Number of tries, and their Sharpe ratios, for the deflated Sharpe ratio.

    Attributes
    ----------
    configurations
        Those that the judged one was chosen among, itself included.
    others
        Other strategies or agents whose readings of the same panel's test window are on file.
    sharpes
        Active Sharpe ratios (a bar) of the others, as far as they are known.
    """

    configurations: int = 1
    others: int = 0
    sharpes: tuple[float, ...] = ()

    @property
    def total(self) -> int:
        """N of the deflated Sharpe ratio."""
        return self.configurations + self.others

    def variance(self, own: float, days: int) -> float:
        """V of the deflated Sharpe ratio, of the tries' Sharpe ratios (a bar).

        That of the known ones, the judged one's ``own`` included, but no less than 1 / (days - 1), the variance of
        tries without skill: a few similar tries are no evidence of a smaller variance.
        """
        known = np.array([own, *self.sharpes])
        observed = float(known.var(ddof=1)) if len(known) > 1 else 0.0
        return max(observed, 1.0 / (days - 1))


def readings_of(path: Path, panel: str) -> tuple[Reading, ...]:
    """Readings of one panel's test window, in the order of the file; none where there is no file yet.

    Raises
    ------
    EvidenceError
        If a line is damaged, other than one that a crash cut short: a ledger with holes counts too little.
    """
    if not path.exists():
        return ()
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceError(f"the ledger of test readings {path} cannot be read: {error}; repair or move it") from error
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            found.append(_READING.validate_json(line))
        except ValueError as error:
            if line.strip() and (not line.startswith("{") or line.endswith("}")):
                raise EvidenceError(
                    f"line {number} of the ledger of test readings {path} is damaged; repair it, or move the file away "
                    "and begin another (the count of earlier readings is lost then)"
                ) from error
    return tuple(reading for reading in found if reading.panel == panel)


def tries_of(readings: Sequence[Reading], judged: str, configurations: int) -> Tries:
    """Tries to deflate by, from the readings of a panel; earlier ones of what is judged now are no other try."""
    others = {reading.judged: reading for reading in readings if reading.judged != judged}
    known = [reading.active_sharpe for reading in others.values()]
    return Tries(
        configurations=configurations,
        others=len(others),
        sharpes=tuple(value for value in known if value is not None and math.isfinite(value)),
    )


def record(path: Path, reading: Reading) -> None:
    """Add a reading to the ledger; raises OutputError if the file cannot be written."""
    append_line(path, json.dumps(asdict(reading), sort_keys=True, allow_nan=False, ensure_ascii=False))
