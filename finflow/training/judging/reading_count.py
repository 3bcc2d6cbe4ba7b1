"""Readings of the test window: identities of what is judged, and the record of every evaluation."""

from __future__ import annotations

import datetime as dt
import hashlib
import inspect
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import ActingConfig, Config, config_hash
from finflow.errors import EvidenceError
from finflow.evaluation.backtest import BASELINE, Backtest
from finflow.evaluation.statistics.readings_ledger import FILE, Reading, Tries, readings_of, record, tries_of
from finflow.evaluation.statistics.significance_tests import track_of
from finflow.strategies.strategy import Strategy

_FAMILIES = {
    "classical": ("EqualWeight", "BuyAndHold", "SixtyForty"),
    "fitted": (
        *("InverseVolatility", "MinimumVariance", "MinimumCVaR", "MeanVariance", "RiskParity"),
        *("MaximumDiversification", "HierarchicalRiskParity"),
    ),
    "signals": ("Momentum", "TimeSeriesMomentum", "LowVolatility"),
    "online": ("ConstantRebalanced", "ExponentiatedGradient", "PassiveAggressiveMeanReversion", "MeanReversion"),
    "patient": ("PatientEqualWeight",),
    "optimal": ("OptimalPolicy",),
}
_NAMESPACE = {kind: f"finflow.strategies.{family}" for family, kinds in _FAMILIES.items() for kind in kinds}
"""Class of finflow's own -> the name that ledgers have on file with it, wherever the class lies now."""


def ledger_of(config: Config) -> Path:
    """Path of the ledger of readings: ``output.readings``, or a file in ``output.logs_dir``."""
    return config.output.readings or config.output.logs_dir / FILE


def policy_identity(policy: ExpertPolicy, acting: ActingConfig | None = None) -> str:
    """SHA-256 of a policy's weights and blend: the same agent, wherever its checkpoint lies.

    One that acts otherwise than by its centre is another agent.
    """
    digest = hashlib.sha256(b"policy" if policy.blend is None else f"policy {policy.blend}".encode())
    for name, tensor in sorted(policy.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    if acting is not None and not acting.takes_centre:
        digest.update(acting.model_dump_json().encode())
    return digest.hexdigest()


def strategy_identity(strategy: Strategy) -> str:
    """SHA-256 of a rule: its name, class and plain settings; of a user's own, its source as well.

    A rule of finflow's own has the same identity in whichever file its class lies: ledgers outlive files.
    """
    kind = type(strategy)
    own_rule = kind.__module__.partition(".")[0] == "finflow"
    namespace = _NAMESPACE.get(kind.__qualname__, "finflow.strategies") if own_rule else kind.__module__
    own = getattr(strategy, "__dict__", {})
    settings = {name: value for name, value in own.items() if isinstance(value, bool | int | float | str | None)}
    digest = hashlib.sha256(b"strategy")
    digest.update(json.dumps([strategy.name, namespace, kind.__qualname__, settings], sort_keys=True).encode())
    if not own_rule:
        try:
            digest.update(Path(inspect.getfile(kind)).read_bytes())
        except (OSError, TypeError):
            digest.update(b"source unknown")
    return digest.hexdigest()


def count_reading(config: Config, panel: str, judged: str, runs: Sequence[Backtest], folder: Path) -> Tries:
    """Record that the test window was read, and say what had been tried on it before.

    Raises EvidenceError, OutputError if the ledger is damaged, or cannot be written.
    """
    path, first = ledger_of(config), runs[0]
    before = readings_of(path, panel)
    reading = Reading(
        panel=panel,
        judged=judged,
        name=first.name,
        compared=tuple(run.name for run in runs[1:]),
        configuration=config_hash(config),
        configurations=config.evaluation.configurations_tried,
        window=(str(first.dates[0]), str(first.dates[-1])),
        active_sharpe=_active_sharpe(runs),
        run=str(folder),
        date=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )
    record(path, reading)
    return tries_of(before, judged, config.evaluation.configurations_tried)


def _active_sharpe(runs: Sequence[Backtest]) -> float | None:
    baseline = next((run for run in runs[1:] if run.name == BASELINE), None)
    if baseline is None:
        return None
    try:
        return track_of(runs[0].returns - baseline.returns).sharpe
    except EvidenceError:
        return None
