"""Evidence about the weights of a trained gate in crises on the embedded market, in training and validation windows.

Trainings are of the defaults, in the reduced size of docs/evidence/generalisation.md. The gate is that of the last
policy, by the crisis score among the agent's features (`finflow.evaluation.analysis.expert_traits`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from finflow.agent.networks.policy import EXPERTS
from finflow.config import Config
from finflow.errors import EvidenceError
from finflow.evaluation.analysis.expert_traits import STATES
from finflow.training.judging.agent_strategy import gate_on
from scripts.evidence.generalisation import REDUCED
from scripts.evidence.results import train_both
from scripts.evidence.tables import markdown_table, mean_interval
from scripts.evidence.variants import Variant


def crises_variants(seeds: int, size: Mapping[str, object] = REDUCED) -> list[Variant]:
    """The defaults in the reduced size, a training a seed."""
    return [Variant("crises", tuple(range(seeds)), dict(size), measure=train_and_look)]


def train_and_look(config: Config) -> dict[str, Any]:
    """Train, and read the gate off by state of the market: on the training window, and on validation."""
    began = time.process_time()
    trainer = train_both(config)
    training_data = trainer.training_data
    windows = {"training": training_data.split.train, "validation": training_data.split.validation}
    fitted = training_data.features.fitted
    if fitted is None:
        raise EvidenceError("nothing was fitted on this market, and so it has no crisis score")
    found = {
        name: gate_on(trainer.agent.policy, training_data.process, one, fitted.crisis) for name, one in windows.items()
    }
    return {"gate": found, "seconds": {"processor": round(time.process_time() - began, 1)}}


def crises_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a row for each window and state; mean share in percent over seeds, with half its 95 % interval."""
    rows = []
    for window in results[0]["gate"]:
        for state in STATES:
            own = [found["gate"][window][state] for found in results if state in found["gate"][window]]
            if not own:
                continue
            shares = [[one["gate"][name] for one in own] for name in EXPERTS] + [[one["cash"] for one in own]]
            cells = [mean_interval(100.0 * np.array(share), 1) for share in shares]
            rows.append([window, state, f"{own[0]['decisions']:,}", *cells])
    return markdown_table(("window", "the market", "decisions", *EXPERTS, "cash in the aim"), rows)
