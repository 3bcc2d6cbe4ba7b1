"""Training of a policy on pairs by DPO or SimPO, and its figures on pairs that it did not learn from.

References
----------
Rafailov et al. (2023), Direct Preference Optimization, equation 7. Meng et al. (2024), SimPO, equation 6.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from finflow.agent.batch import States
from finflow.agent.gradient_steps import gradient_step, make_optimiser
from finflow.agent.networks.distributions import LogisticNormal, kl_per_dimension
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config.evaluation_sections import PolicyLearningConfig
from finflow.env.coverage import smooth
from finflow.errors import refuse
from finflow.offline.collection import AIM_SMOOTHING
from finflow.preferences.model_training import (
    LearningReport,
    ModelFigures,
    model_figures,
    preference_loss,
    split_pairs,
    train_with_early_stopping,
)
from finflow.preferences.preference_reward import PAIRS_AT_ONCE, PairTensors, Rows, states_holding


def segment_density(
    policy: ExpertPolicy, pairs: PairTensors, chosen: Rows, reference: ExpertPolicy | None = None
) -> tuple[Tensor, Tensor]:
    """Log densities of what was held in the segments of some pairs, per free dimension of a decision.

    Returns their sums over the decisions of the first and the second segments, (2, pairs) in double precision, and the
    mean KL of the same decisions from a reference, per free dimension; 0 without one.

    What the policy observes, and how weights are smoothed: docs/reference/preferences.md, Learning without a reward
    model.
    """
    rows, owner = pairs.decisions_of(chosen)
    bars, place = torch.unique(pairs.bars[rows], return_inverse=True)
    states = states_holding(pairs.assets[bars], pairs.market[bars], pairs.decisions.held[rows])
    distribution = _distribution(policy, states, place)
    listed = pairs.assets[pairs.bars[rows], :, -1] > 0.5
    smoothed = smooth(pairs.decisions.filled[rows].double().numpy(), AIM_SMOOTHING, listed.numpy())
    each = distribution.log_density(torch.from_numpy(smoothed)) / distribution.dimensions
    total = each.new_zeros(2 * len(chosen)).index_add(0, owner, each).view(2, -1)
    divergence = each.new_zeros(())
    if reference is not None:
        divergence = kl_per_dimension(distribution, _distribution(reference, states, place)).mean()
    return total, divergence


@torch.no_grad()
def all_densities(
    policy: ExpertPolicy, pairs: PairTensors, chosen: Rows, reference: ExpertPolicy | None = None
) -> tuple[Tensor, Tensor]:
    """The same without gradients, some pairs at a time."""
    parts = [chosen[start : start + PAIRS_AT_ONCE] for start in range(0, len(chosen), PAIRS_AT_ONCE)]
    totals, divergences = zip(*(segment_density(policy, pairs, some, reference) for some in parts), strict=True)
    weighted = [float(one) * float(pairs.lengths[some].sum()) for one, some in zip(divergences, parts, strict=True)]
    return torch.cat(totals, dim=1), torch.tensor(sum(weighted) / float(pairs.lengths[chosen].sum()))


def _distribution(policy: ExpertPolicy, states: States, place: Tensor) -> LogisticNormal:
    """Distributions of decisions; the market of each bar, (bars, ...), is read once, and ``place`` is that of each."""
    reading = policy.read_market(states).each(lambda part: part[place])
    return policy.trade_toward(states, reading).distribution


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
    """

    method: Method
    config: PolicyLearningConfig
    reference: Tensor  # (2, all pairs), log densities of all segments under the reference
    lengths: Tensor  # (all pairs,), decisions of a segment
    targets: Tensor  # (all pairs,)

    @classmethod
    def of(
        cls, method: Method, config: PolicyLearningConfig, pairs: PairTensors, reference: ExpertPolicy
    ) -> DirectObjective:
        known = all_densities(reference, pairs, np.arange(len(pairs)))[0]
        return cls(method, config, known, torch.from_numpy(pairs.lengths).to(known.dtype), pairs.targets)

    def losses(self, total: Tensor, chosen: Rows) -> Tensor:
        """Loss of each pair from log densities (2, pairs)."""
        margin = SIMPO_MARGIN if self.method == "simpo" else 0.0
        return preference_loss(self.leads(total, chosen), self.targets[torch.from_numpy(chosen)], margin=margin)

    def leads(self, total: Tensor, chosen: Rows) -> Tensor:
        """Implied log odds of the answer "first", (pairs,)."""
        rows = torch.from_numpy(chosen)
        if self.method == "dpo":
            ratios = total - self.reference[:, rows]
            return self.config.dpo_beta * (ratios[0] - ratios[1])
        means = SIMPO_BETA * total / self.lengths[rows]
        return means[0] - means[1]


def fit_policy(
    policy: ExpertPolicy, objective: DirectObjective, pairs: PairTensors, fitted: Rows, calibration: Rows, seed: int
) -> int:
    """Train a policy in place; the parameters with the least loss on the calibration pairs are kept.

    Returns the number of passes over the fitted pairs until these parameters.

    Raises FinflowError if a density is no finite number, or no pass predicts the calibration pairs better than before.
    """
    generator = Generator().manual_seed(int(np.random.SeedSequence([PURPOSE, seed]).generate_state(1)[0]))
    optimiser = make_optimiser(policy, objective.config.learning_rate)

    def step(batch: Rows) -> None:
        loss = objective.losses(segment_density(policy, pairs, batch)[0], batch).mean()
        gradient_step(loss, optimiser, GRADIENT_NORM)

    def calibration_loss() -> float:
        loss = float(objective.losses(all_densities(policy, pairs, calibration)[0], calibration).double().mean())
        refuse(
            not np.isfinite(loss),
            "the densities of the pairs are no finite numbers: lower preferences.policy.learning_rate, or use "
            "another checkpoint",
        )
        return loss

    passes = train_with_early_stopping(policy, step, calibration_loss, fitted, BATCH, generator)
    refuse(
        passes == 0,
        f"no pass over {len(fitted):,} pairs predicts others better than the agent as it is: give more pairs, "
        f"lower preferences.policy.{objective.method}_beta, or take an agent that is not held to a reference "
        "portfolio",
    )
    return passes


def learn_policy(
    policy: ExpertPolicy,
    reference: ExpertPolicy,
    pairs: PairTensors,
    method: Method,
    config: PolicyLearningConfig,
    seed: int,
) -> LearningReport:
    """Split pairs, train a policy on them in place, and judge it; ``reference`` is the policy as it was, frozen.

    Figures are the agreement of the implied log odds with the answers; ``divergence`` is the mean KL of a held-out
    decision from the reference, in nats per free dimension.

    Raises FinflowError if there are too few pairs, or a density is no finite number.
    """

    def figures(total: Tensor, rows: Rows) -> ModelFigures:
        return model_figures(pairs, rows, objective.leads(total, rows))

    split = split_pairs(pairs, seed)
    objective = DirectObjective.of(method, config, pairs, reference)
    before = figures(objective.reference[:, split.held_out], split.held_out)
    passes = fit_policy(policy, objective, pairs, split.fitted, split.calibration, seed)
    learned, divergence = all_densities(policy, pairs, split.held_out, reference)
    later, _ = all_densities(policy, pairs, split.later)
    after = {"held_out": figures(learned, split.held_out), "later": figures(later, split.later)}
    numbers = {"method": method, "divergence": float(divergence), "passes": passes}
    note = (
        f"KL to the reference: {float(divergence):.4f} nats a decision and free dimension, after {passes} passes over "
        "the pairs"
    )
    return LearningReport(split.counts, {"before": before, **after}, numbers, (note,))
