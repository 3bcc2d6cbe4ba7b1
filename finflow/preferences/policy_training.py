"""Training of a policy on pairs by DPO or SimPO, and its figures on pairs that it did not learn from.

References
----------
Rafailov et al. (2023), Direct Preference Optimization. Meng et al. (2024), SimPO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from finflow.agent.gradient_steps import gradient_step, make_optimiser
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config.preferences_section import PolicyLearningConfig, PreferencesConfig
from finflow.errors import FinflowError
from finflow.preferences.model_report import ModelFigures, figures_of
from finflow.preferences.model_training import split_pairs, train_with_early_stopping
from finflow.preferences.pair_tensors import PairTensors, Rows
from finflow.preferences.preference_losses import dpo_loss, simpo_loss
from finflow.preferences.segment_density import all_densities, segment_density

PURPOSE = 95  # of the generator that orders pairs
Method = Literal["dpo", "simpo"]
SIMPO_BETA = 2.0  # scale of SimPO's mean log density, per free dimension of a decision
SIMPO_MARGIN = 0.5  # target lead of the better segment, in log odds
BATCH = 32  # pairs of a gradient step
GRADIENT_NORM = 1.0  # longer gradients are shortened to it


class DirectObjective(NamedTuple):
    """Loss of pairs under a policy, and the log odds that it implies.

    Densities are per free dimension, so that beta means the same for any number of assets. DPO sums the log ratios to
    the reference over a segment; SimPO takes the mean log density of its decisions.

    Attributes
    ----------
    method : {"dpo", "simpo"}
    reference : Tensor, (2, all pairs)
        Log densities of all segments under the reference.
    lengths : Tensor, (all pairs,)
        Decisions of a segment.
    targets : Tensor, (all pairs,)
    """

    method: Method
    config: PolicyLearningConfig
    reference: Tensor
    lengths: Tensor
    targets: Tensor

    @classmethod
    def of(
        cls, method: Method, config: PolicyLearningConfig, pairs: PairTensors, reference: ExpertPolicy
    ) -> DirectObjective:
        """The objective on some pairs with a frozen reference."""
        known = all_densities(reference, pairs, np.arange(len(pairs))).total
        return cls(method, config, known, torch.from_numpy(pairs.lengths).to(known.dtype), pairs.targets)

    def losses(self, total: Tensor, chosen: Rows) -> Tensor:
        """Loss of each pair from log densities (2, pairs); of a tie half that of each answer."""
        rows = torch.from_numpy(chosen)
        first, second = self._loss(total, rows), self._loss(total.flip(0), rows, turned=True)
        targets = self.targets[rows]
        return targets * first + (1.0 - targets) * second

    def leads(self, total: Tensor, chosen: Rows) -> Tensor:
        """Implied log odds of the answer "first", (pairs,)."""
        rows = torch.from_numpy(chosen)
        if self.method == "dpo":
            ratios = total - self.reference[:, rows]
            return self.config.dpo_beta * (ratios[0] - ratios[1])
        return SIMPO_BETA * (total[0] - total[1]) / self.lengths[rows]

    def _loss(self, total: Tensor, rows: Tensor, turned: bool = False) -> Tensor:
        """Loss of each pair if the segment of the first row is better."""
        if self.method == "dpo":
            reference = self.reference[:, rows]
            ratios = total - (reference.flip(0) if turned else reference)
            return dpo_loss(ratios[0], ratios[1], self.config.dpo_beta)
        lengths = self.lengths[rows]
        return simpo_loss(total[0], total[1], (lengths, lengths), SIMPO_BETA, SIMPO_MARGIN)


def fit_policy(
    policy: ExpertPolicy, objective: DirectObjective, pairs: PairTensors, fitted: Rows, calibration: Rows, seed: int
) -> int:
    """Train a policy in place; the parameters with the least loss on the calibration pairs are kept.

    Returns the passes over the pairs until these parameters. A FinflowError if a density is no finite number, or no
    pass predicts the calibration pairs better than the policy as it was.
    """
    config = objective.config
    generator = Generator().manual_seed(int(np.random.SeedSequence([PURPOSE, seed]).generate_state(1)[0]))
    optimiser = make_optimiser(policy, config.learning_rate)

    def step(batch: Rows) -> None:
        loss = objective.losses(segment_density(policy, pairs, batch).total, batch).mean()
        gradient_step(loss, optimiser, GRADIENT_NORM)

    def calibration_loss() -> float:
        return _mean_loss(policy, objective, pairs, calibration)

    passes = train_with_early_stopping(policy, step, calibration_loss, fitted, config.epochs, BATCH, generator)
    if passes == 0:
        raise FinflowError(
            f"no pass over {len(fitted):,} pairs predicts others better than the agent as it is: give more pairs, "
            f"lower preferences.policy.{objective.method}_beta, or take an agent that is not held to a reference "
            "portfolio"
        )
    return passes


def _mean_loss(policy: ExpertPolicy, objective: DirectObjective, pairs: PairTensors, rows: Rows) -> float:
    loss = float(objective.losses(all_densities(policy, pairs, rows).total, rows).double().mean())
    if not np.isfinite(loss):
        raise FinflowError(
            "the densities of the pairs are no finite numbers: lower preferences.policy.learning_rate, or use another "
            "checkpoint"
        )
    return loss


@dataclass(frozen=True)
class LearnedPolicy:
    """Report of a training on pairs; the policy itself was changed in place.

    Attributes
    ----------
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

    ``reference`` is frozen: the policy as it is at the beginning. The contradictions are for the report. A FinflowError
    if there are too few pairs, or a density is no finite number.
    """
    split = split_pairs(pairs, seed)
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
    return figures_of(objective.leads(total, rows).double().numpy(), *pairs.answers(rows))
