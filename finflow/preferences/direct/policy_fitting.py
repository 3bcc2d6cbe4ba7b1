"""Training of a policy on pairs by DPO or SimPO: Adam, early stopping on pairs kept for it.

References
----------
Rafailov et al. (2023), Direct Preference Optimization. Meng et al. (2024), SimPO.
"""

from __future__ import annotations

import copy
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from finflow.agent.gradient_steps import descend, make_optimiser
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config.preferences_section import PolicyLearningConfig
from finflow.errors import FinflowError
from finflow.preferences.direct.segment_density import Rows, all_densities, segment_density
from finflow.preferences.pair_tensors import PairTensors
from finflow.preferences.preference_losses import dpo_loss, simpo_loss

PURPOSE = 95  # of the generator that orders pairs
PATIENCE = 8
"""Passes over the pairs without a better loss on the calibration pairs after which learning stops."""
Method = Literal["dpo", "simpo"]


class DirectObjective(NamedTuple):
    """Loss of pairs under a policy, and the log odds that it implies.

    Densities are per free dimension, so that beta means the same for any number of assets. DPO sums the log ratios to
    the reference over a segment; SimPO takes the mean log density of its decisions.

    Attributes
    ----------
    method : {"dpo", "simpo"}
    config : PolicyLearningConfig
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
        return self.config.simpo_beta * (total[0] - total[1]) / self.lengths[rows]

    def _loss(self, total: Tensor, rows: Tensor, turned: bool = False) -> Tensor:
        """Loss of each pair if the segment of the first row is better."""
        if self.method == "dpo":
            reference = self.reference[:, rows]
            ratios = total - (reference.flip(0) if turned else reference)
            return dpo_loss(ratios[0], ratios[1], self.config.dpo_beta)
        lengths = self.lengths[rows]
        return simpo_loss(total[0], total[1], (lengths, lengths), self.config.simpo_beta, self.config.simpo_margin)


def fit_policy(
    policy: ExpertPolicy, objective: DirectObjective, pairs: PairTensors, fitted: Rows, calibration: Rows, seed: int
) -> int:
    """Train a policy in place; the parameters with the least loss on the calibration pairs are kept.

    Parameters
    ----------
    policy : ExpertPolicy
    objective : DirectObjective
    pairs : PairTensors
    fitted, calibration : int64 (n,)
        Pairs to learn from, and for early stopping.
    seed : int

    Returns
    -------
    int
        Passes over the pairs until the parameters that are kept.

    Raises
    ------
    FinflowError
        If a density is no finite number, or no pass predicts the calibration pairs better than the policy as it was.
    """
    config = objective.config
    generator = Generator().manual_seed(int(np.random.SeedSequence([PURPOSE, seed]).generate_state(1)[0]))
    optimiser = make_optimiser(policy, config.learning_rate)
    best, kept_at, kept = _mean_loss(policy, objective, pairs, calibration), 0, copy.deepcopy(policy.state_dict())
    for epoch in range(1, config.epochs + 1):
        order = torch.randperm(len(fitted), generator=generator).numpy()
        for start in range(0, len(fitted), config.batch_size):
            batch = fitted[order[start : start + config.batch_size]]
            loss = objective.losses(segment_density(policy, pairs, batch).total, batch).mean()
            descend(loss, optimiser, config.gradient_norm)
        reached = _mean_loss(policy, objective, pairs, calibration)
        if reached < best:
            best, kept_at, kept = reached, epoch, copy.deepcopy(policy.state_dict())
        if epoch - kept_at >= PATIENCE:
            break
    policy.load_state_dict(kept)
    if kept_at == 0:
        raise FinflowError(
            f"no pass over {len(fitted):,} pairs predicts others better than the agent as it is: give more pairs, "
            f"lower preferences.policy.{objective.method}_beta, or take an agent that is not held to a reference "
            "portfolio"
        )
    return kept_at


def _mean_loss(policy: ExpertPolicy, objective: DirectObjective, pairs: PairTensors, rows: Rows) -> float:
    loss = float(objective.losses(all_densities(policy, pairs, rows).total, rows).double().mean())
    if not np.isfinite(loss):
        raise FinflowError(
            "the densities of the pairs are no finite numbers: lower preferences.policy.learning_rate, or use another "
            "checkpoint"
        )
    return loss
