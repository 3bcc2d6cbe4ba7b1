"""A policy learned from pairs, with its figures on pairs that it did not learn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor

from finflow.agent.networks.policy import ExpertPolicy
from finflow.config.preferences_section import PreferencesConfig
from finflow.preferences.direct.policy_fitting import DirectObjective, Method, fit_policy
from finflow.preferences.direct.segment_density import Rows, all_densities
from finflow.preferences.model_report import ModelFigures, figures_of
from finflow.preferences.model_training import split_pairs
from finflow.preferences.pair_tensors import PairTensors


@dataclass(frozen=True)
class LearnedPolicy:
    """Report of a training on pairs; the policy itself was changed in place.

    Attributes
    ----------
    method : {"dpo", "simpo"}
    before, held_out, later : ModelFigures
        Agreement of the implied log odds with the answers: on the held-out pairs before learning; after it, on these
        and on the pairs of the latest segments.
    divergence : float
        Mean KL of a decision from the reference on the held-out pairs, in nats per free dimension.
    passes : int
        Over the pairs, until the parameters that are kept.
    counts : mapping
        Pairs by their use, ties and contradictions.
    """

    method: Method
    before: ModelFigures
    held_out: ModelFigures
    later: ModelFigures
    divergence: float
    passes: int
    counts: Mapping[str, int]

    def report(self) -> dict[str, Any]:
        """The numbers as JSON has them."""
        figures = {name: asdict(getattr(self, name)) for name in ("before", "held_out", "later")}
        rest = {"divergence": self.divergence, "passes": self.passes, "counts": dict(self.counts)}
        return {"method": self.method, **figures, **rest}

    def lines(self) -> list[str]:
        """The report in lines."""
        used = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        return [
            f"pairs: {used}",
            self.before.line("held out, before"),
            self.held_out.line("held out"),
            self.later.line("later segments"),
            f"KL to the reference: {self.divergence:.4f} nats a decision and free dimension, after {self.passes} "
            "passes over the pairs",
        ]


def learn_policy(
    policy: ExpertPolicy,
    reference: ExpertPolicy,
    pairs: PairTensors,
    method: Method,
    config: PreferencesConfig,
    seed: int,
    contradictions: int = 0,
) -> LearnedPolicy:
    """Split pairs, train a policy on them in place, and judge it.

    Parameters
    ----------
    policy : ExpertPolicy
    reference : ExpertPolicy
        Frozen; the policy as it is at the beginning.
    pairs : PairTensors
    method : {"dpo", "simpo"}
    config : PreferencesConfig
        Settings of ``policy``, and the shares of ``model`` that pairs are divided by.
    seed : int
    contradictions : int
        For the report.

    Raises
    ------
    FinflowError
        If there are too few pairs, or a density is no finite number.
    """
    split = split_pairs(pairs, config.model, seed)
    objective = DirectObjective.of(method, config.policy, pairs, reference)
    before = _figures(objective.reference[:, split.held_out], objective, pairs, split.held_out)
    passes = fit_policy(policy, objective, pairs, split.fitted, split.calibration, seed)
    divergence = float(all_densities(policy, pairs, split.held_out, reference).divergence)
    after, later = (
        _figures(all_densities(policy, pairs, rows).total, objective, pairs, rows)
        for rows in (split.held_out, split.later)
    )
    return LearnedPolicy(method, before, after, later, divergence, passes, split.counts(pairs, contradictions))


def _figures(total: Tensor, objective: DirectObjective, pairs: PairTensors, rows: Rows) -> ModelFigures:
    lead = objective.leads(total, rows).double().numpy()
    targets, chances = (np.asarray(column[rows].double()) for column in (pairs.targets, pairs.chances))
    return figures_of(lead, targets, chances)
