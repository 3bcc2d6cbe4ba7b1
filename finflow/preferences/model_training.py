"""Training of a reward model on pairs: AdamW, early stopping and a temperature on pairs kept for them."""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.agent.networks.critic import NetworkShape
from finflow.config.preferences_section import RewardModelConfig
from finflow.errors import FinflowError
from finflow.preferences.pair_tensors import PairTensors
from finflow.preferences.preference_losses import preference_loss
from finflow.preferences.reward_model import RewardModel

PURPOSE = 93  # of the generators that draw parameters and batches
FEWEST = 20
"""Pairs that a training needs: with fewer no part of them could be kept for calibration and for the report."""
PATIENCE = 8
"""Passes over the pairs without a better calibration loss after which learning stops."""
Rows = NDArray[np.int64]


class PairSplit(NamedTuple):
    """Rows of pairs by their use.

    Attributes
    ----------
    fitted, calibration, held_out, later : int64 (n,)
        Learned from; for early stopping and the temperature; for the report alone, drawn at random, and of the latest
        segments. No segment of the others reaches into the days of the later ones.
    """

    fitted: Rows
    calibration: Rows
    held_out: Rows
    later: Rows


def split_pairs(pairs: PairTensors, config: RewardModelConfig, seed: int) -> PairSplit:
    """Divide pairs: the latest first, those that overlap with them left out, the rest at random.

    Raises
    ------
    FinflowError
        If a part would be empty.
    """
    count = len(pairs)
    order = np.argsort(pairs.days[0], kind="stable")
    later = order[count - round(config.later * count) :]
    first_day = pairs.days[0][later].min() if len(later) else None
    rest = np.setdiff1d(order, later)
    if first_day is not None:
        rest = rest[pairs.days[1][rest] < first_day]
    rest = np.random.default_rng(np.random.SeedSequence([PURPOSE, seed])).permutation(rest)
    sizes = [round(config.calibration * len(rest)), round(config.held_out * len(rest))]
    calibration, held_out, fitted = np.split(rest, np.cumsum(sizes))
    found = PairSplit(fitted, calibration, held_out, later)
    if count < FEWEST or min(len(rows) for rows in found) < 1:
        raise FinflowError(
            f"{count} pairs are too few to learn from, or their dates overlap too much to keep the latest of them "
            f"apart: a reward model needs {FEWEST} pairs or more, over several times their length"
        )
    return found


def fit_model(
    pairs: PairTensors, fitted: Rows, calibration: Rows, shape: NetworkShape, config: RewardModelConfig, seed: int
) -> RewardModel:
    """Fit an ensemble, and calibrate it.

    Members differ in their initial parameters and see the same batches (Lakshminarayanan et al. 2017). The parameters
    after the pass with the least loss on the calibration pairs are kept.

    Parameters
    ----------
    pairs : PairTensors
    fitted, calibration : int64 (n,)
        Pairs to learn from, and for early stopping and the temperature.
    shape : NetworkShape
    config : RewardModelConfig
    seed : int

    Returns
    -------
    RewardModel
    """
    generator = torch.Generator().manual_seed(int(np.random.SeedSequence([PURPOSE, seed]).generate_state(1)[0]))
    model = RewardModel(shape, config.members, pairs.units, generator)
    optimiser = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    best, kept, waited = float("inf"), copy.deepcopy(model.state_dict()), 0
    for _ in range(config.epochs):
        order = torch.randperm(len(fitted), generator=generator).numpy()
        for start in range(0, len(fitted), config.batch_size):
            rows = fitted[order[start : start + config.batch_size]]
            first, second = pairs.scores(model, rows)
            loss = preference_loss(first, second, pairs.targets[torch.from_numpy(rows)], config.margin)
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss.mean(dim=1).sum())
            optimiser.step()
        reached = float(negative_log_likelihood(leads(pairs, model, calibration), pairs.targets[calibration]))
        if reached < best:
            best, kept, waited = reached, copy.deepcopy(model.state_dict()), 0
        else:
            waited += 1
            if waited >= PATIENCE:
                break
    model.load_state_dict(kept)
    model.temperature.fill_(fitted_temperature(leads(pairs, model, calibration), pairs.targets[calibration]))
    return model.eval()


def leads(pairs: PairTensors, model: RewardModel, rows: Rows) -> Tensor:
    """Leads of the first segments in log odds, (pairs,), in double precision: the mean of the members, calibrated."""
    scores = pairs.all_scores(model, rows).double() / model.temperature
    return (scores[0] - scores[1]).mean(dim=0)


def negative_log_likelihood(lead: Tensor, targets: Tensor) -> Tensor:
    """Mean loss of answers under leads in log odds."""
    zero = torch.zeros_like(lead)
    return preference_loss(lead, zero, targets.double()).mean()


def fitted_temperature(lead: Tensor, targets: Tensor) -> float:
    """The temperature, 0.01 to 100, that makes answers most likely (Guo et al. 2017).

    Parameters
    ----------
    lead : Tensor, (pairs,)
        Log odds at a temperature of 1.
    targets : Tensor, (pairs,)
    """
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        return float(negative_log_likelihood(lead / np.exp(log_temperature), targets))

    found = minimize_scalar(loss, bounds=(np.log(0.01), np.log(100.0)), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x))
