"""Training of a reward model on pairs: a linear part, the rest by AdamW, early stopping and a temperature.

References
----------
Bradley and Terry (1952), Rank Analysis of Incomplete Block Designs. Christiano et al. (2017), Deep Reinforcement
Learning from Human Preferences, section 2.2.3, for ties. Guo et al. (2017), On Calibration of Modern Neural Networks.
Wichmann and Hill (2001), The Psychometric Function, for mistakes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from finflow.agent.networks.critic import NetworkShape
from finflow.arrays import FloatArray
from finflow.errors import refuse
from finflow.preferences.preference_reward import SMALLEST_UNIT, PairTensors, RewardModel, Rows

MEMBERS = 3  # networks of the ensemble
EPOCHS = 40  # passes over the pairs at most; the best by the calibration pairs is kept
PURPOSE = 93  # of the generators that draw parameters and batches
FEWEST = 20
"""Pairs that a training needs: with fewer no part of them could be kept for calibration and for the report."""
KEPT_BACK = 0.15
"""Share of the pairs for early stopping and the temperature, and of those for the report alone: drawn at random, and
those of the latest segments."""
BATCH = 64  # pairs of a gradient step
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 1e-2  # of AdamW
PATIENCE = 8
"""Passes over the pairs without a better calibration loss after which learning stops."""
LINEAR_STEPS = 200  # of L-BFGS at most
LEAST_PENALTY = 1e-6  # on squared weights, in deviations of the outcomes: clear cases alone would have no best ones
SIZE = 0.05  # of the test against guessing
MISTAKES = np.linspace(0.0, 0.45, 46)  # shares that are tried


def preference_loss(lead: Tensor, targets: Tensor, mistakes: float = 0.0, margin: float = 0.0) -> Tensor:
    """Loss of each pair, ``-log sigmoid(lead - margin)``; of a tie half that of each of the two answers.

    Where a share of the answers is turned round, the probability is ``mistakes + (1 - 2 mistakes) sigmoid(...)``: no
    pair weighs more than the log of that share, however clear the model finds it.

    ``lead`` (..., pairs) are the log odds of the answer "first"; ``targets`` (pairs,) are 1 where the first is better,
    0 where the second is, and 0.5 for a tie; ``margin`` is the lead that the better segment should have (SimPO).
    """
    first, second = logsigmoid(lead - margin), logsigmoid(-lead - margin)
    if mistakes > 0.0:
        share, least = math.log1p(-2.0 * mistakes), torch.full_like(lead, math.log(mistakes))
        first, second = (torch.logaddexp(one + share, least) for one in (first, second))
    return -targets * first - (1.0 - targets) * second


class PairSplit(NamedTuple):
    """Rows of pairs by their use. No segment of the others reaches into the days of the later ones."""

    fitted: Rows  # learned from
    calibration: Rows  # for early stopping and the temperature
    held_out: Rows  # for the report alone, drawn at random
    later: Rows  # and of the latest segments

    @property
    def counts(self) -> dict[str, int]:
        """Pairs by their use, for reports."""
        return {name.replace("_", " "): len(rows) for name, rows in self._asdict().items()}


def split_pairs(pairs: PairTensors, seed: int) -> PairSplit:
    """Divide pairs: the latest first, those that overlap with them left out, the rest at random.

    Raises FinflowError if a part would be empty.
    """
    count = len(pairs)
    order = np.argsort(pairs.days[0], kind="stable")
    later = order[count - round(KEPT_BACK * count) :]
    rest = np.setdiff1d(order, later)
    rest = rest[pairs.days[1][rest] < pairs.days[0][later].min()] if len(later) else rest
    rest = np.random.default_rng(np.random.SeedSequence([PURPOSE, seed])).permutation(rest)
    size = round(KEPT_BACK * len(rest))
    calibration, held_out, fitted = np.split(rest, [size, 2 * size])
    split = PairSplit(fitted, calibration, held_out, later)
    refuse(
        count < FEWEST or min(len(rows) for rows in split) < 1,
        f"{count} pairs are too few to learn from, or their dates overlap too much to hold the latest of them "
        f"out: a reward model needs {FEWEST} pairs or more, over several times their length",
    )
    return split


def fit_model(pairs: PairTensors, fitted: Rows, calibration: Rows, shape: NetworkShape, seed: int) -> RewardModel:
    """Fit an ensemble to some pairs, with early stopping and calibration on others.

    The part that is linear in the outcomes is fitted first, and again with the share of mistakes from the calibration,
    which limits the pull of clear cases with reversed answers; then the whole model (docs/reference/preferences.md,
    Reward model). Members share the linear part (Lakshminarayanan et al. 2017).
    """
    generator = torch.Generator().manual_seed(int(np.random.SeedSequence([PURPOSE, seed]).generate_state(1)[0]))
    model = RewardModel(shape, MEMBERS, pairs.units(fitted), generator)
    for _ in range(2):
        _fit_linear(pairs, model, fitted)
        calibrate(pairs, model, calibration)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def step(batch: Rows) -> None:
        first, second = pairs.scores(model, batch) / model.temperature
        loss = preference_loss(first - second, pairs.targets[torch.from_numpy(batch)], float(model.mistakes))
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss.mean(dim=1).sum())
        optimiser.step()

    reached = partial(negative_log_likelihood, pairs, model, calibration)
    train_with_early_stopping(model, step, reached, fitted, BATCH, generator)
    calibrate(pairs, model, calibration)
    return model.eval()


def train_with_early_stopping(
    module: nn.Module,
    step: Callable[[Rows], None],
    calibration_loss: Callable[[], float],
    fitted: Rows,
    size: int,
    generator: torch.Generator,
) -> int:
    """Pass over shuffled pairs in batches of ``size`` until the calibration loss stops falling; the best are restored.

    Returns the number of passes until the parameters that are kept; 0 for the initial ones.
    """
    best, best_epoch, kept = calibration_loss(), 0, copy.deepcopy(module.state_dict())
    for epoch in range(1, EPOCHS + 1):
        order = torch.randperm(len(fitted), generator=generator).numpy()
        for start in range(0, len(fitted), size):
            step(fitted[order[start : start + size]])
        reached = calibration_loss()
        if reached < best:
            best, best_epoch, kept = reached, epoch, copy.deepcopy(module.state_dict())
        if epoch - best_epoch >= PATIENCE:
            break
    module.load_state_dict(kept)
    return best_epoch


def _fit_linear(pairs: PairTensors, model: RewardModel, rows: Rows) -> None:
    """Fit what is linear in the outcomes, with the model's share of mistakes, by L-BFGS on all pairs together."""
    first, second = pairs.outcomes(model, rows)
    lead = first - second
    unit = lead.square().mean(dim=0).sqrt().clamp(min=SMALLEST_UNIT)
    lead, targets = lead / unit, pairs.targets[torch.from_numpy(rows)].double()
    weights = torch.zeros(lead.shape[1], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=LINEAR_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        losses = preference_loss(lead @ weights, targets, float(model.mistakes))
        total = losses.mean() + LEAST_PENALTY * weights.square().sum()
        torch.autograd.backward(total)
        return total

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        model.direct.weight.copy_((weights / unit).to(model.direct.weight).expand_as(model.direct.weight))


def calibrate(pairs: PairTensors, model: RewardModel, rows: Rows) -> None:
    """Set a model's temperature and share of mistakes to those that make the answers of some pairs most likely."""
    uncalibrated = leads(pairs, model, rows) * model.temperature
    temperature, mistakes = fitted_link(uncalibrated, pairs.targets[rows])
    model.temperature.fill_(temperature)
    model.mistakes.fill_(mistakes)


def leads(pairs: PairTensors, model: RewardModel, rows: Rows) -> Tensor:
    """Leads of the first segments in log odds, (pairs,), in double precision: the mean of the members, calibrated."""
    scores = pairs.all_scores(model, rows).double() / model.temperature
    return (scores[0] - scores[1]).mean(dim=0)


def negative_log_likelihood(pairs: PairTensors, model: RewardModel, rows: Rows) -> float:
    """Mean loss of answers by a model as it is calibrated."""
    return float(preference_loss(leads(pairs, model, rows), pairs.targets[rows].double(), float(model.mistakes)).mean())


def probability(lead: FloatArray, mistakes: float) -> FloatArray:
    """Probability of the answer "first" under leads in log odds, where a share of the answers is reversed."""
    straight: FloatArray = 1.0 / (1.0 + np.exp(-np.clip(lead, -500.0, 500.0)))
    return mistakes + (1.0 - 2.0 * mistakes) * straight


def fitted_link(lead: Tensor, targets: Tensor) -> tuple[float, float]:
    """Temperature, 0.01 to 100, and share of mistakes that make answers most likely.

    ``lead`` (pairs,) are the log odds at a temperature of 1.
    """
    from scipy.optimize import minimize_scalar

    raw, answers = lead.double().numpy(), targets.double().numpy()

    def loss(log_temperature: float, mistakes: float) -> float:
        chance = np.clip(probability(raw / np.exp(log_temperature), mistakes), 1e-12, 1.0 - 1e-12)
        return float(-(answers * np.log(chance) + (1.0 - answers) * np.log(1.0 - chance)).mean())

    bounds, fits = (np.log(0.01), np.log(100.0)), []
    for mistakes in MISTAKES:
        best = minimize_scalar(loss, bounds=bounds, method="bounded", args=(mistakes,), options={"xatol": 1e-6})
        fits.append((float(best.fun), float(np.exp(best.x)), float(mistakes)))
    return min(fits)[1:]


BINS = 10
_PAIRS = {"before": "held out, before", "held_out": "held out", "later": "later segments"}


class ModelFigures(NamedTuple):
    """Agreement of a model with the answers of pairs that are no ties.

    ``accuracy`` is the share of them in which the preferred segment has the higher score (an equal score counts half);
    ``attainable`` that of the answers that the judge gives more often, where its probabilities are known; ``ece`` the
    mean distance of predicted probability and frequency of the answer, over `BINS` bins of equal width of the predicted
    probability of "first" (Guo et al. 2017).
    """

    pairs: int
    accuracy: float | None = None
    attainable: float | None = None
    ece: float | None = None

    @property
    def share(self) -> float | None:
        """``(accuracy - 0.5) / (attainable - 0.5)``; None where the attainable accuracy is unknown, or chance."""
        if self.accuracy is None or self.attainable is None or self.attainable <= 0.5:
            return None
        return (self.accuracy - 0.5) / (self.attainable - 0.5)

    def report(self) -> dict[str, float | None]:
        return {**self._asdict(), "share": self.share}

    def line(self, name: str) -> str:
        if self.accuracy is None:
            return f"{name}: no pair but ties"
        text = f"{name}: accuracy {self.accuracy:.3f} of {self.pairs:,} pairs, ECE {self.ece:.3f}"
        if self.attainable is not None:
            text += f", attainable {self.attainable:.3f}"
        if self.share is not None:
            text += f", (accuracy - 0.5) / (attainable - 0.5) = {self.share:.2f}"
        return text


def model_figures(pairs: PairTensors, rows: Rows, lead: Tensor, mistakes: float = 0.0) -> ModelFigures:
    """Figures of some pairs from leads (rows,) in log odds and the model's share of mistakes; ties are left out."""
    decided = pairs.targets[rows] != 0.5
    columns = (lead, pairs.targets[rows], pairs.chances[rows])
    ahead, answers, chances = (column[decided].double().numpy() for column in columns)
    if not len(ahead):
        return ModelFigures(0)
    agreed = np.where(ahead == 0.0, 0.5, (ahead > 0.0) == (answers > 0.5))
    predicted = probability(ahead, mistakes)
    bins = np.minimum((predicted * BINS).astype(np.int64), BINS - 1)
    inside = [bins == number for number in np.unique(bins)]
    gaps = [one.sum() * abs(float(predicted[one].mean()) - float(answers[one].mean())) for one in inside]
    attainable = float(np.maximum(chances, 1.0 - chances).mean()) if np.isfinite(chances).all() else None
    return ModelFigures(len(ahead), float(agreed.mean()), attainable, float(sum(gaps) / len(ahead)))


def judge_model(pairs: PairTensors, model: RewardModel, rows: Rows) -> ModelFigures:
    return model_figures(pairs, rows, leads(pairs, model, rows), float(model.mistakes))


class LearningReport(NamedTuple):
    """Pairs by their use, figures on those that were not learned from, other numbers, and notes of a training."""

    counts: dict[str, int]
    figures: dict[str, ModelFigures]
    numbers: dict[str, Any]
    notes: tuple[str, ...] = ()

    def report(self) -> dict[str, Any]:
        figures = {name: one.report() for name, one in self.figures.items()}
        return {**figures, "counts": self.counts, "warning": self.doubt(), **self.numbers}

    def lines(self) -> list[str]:
        used, doubt = ", ".join(f"{count:,} {name}" for name, count in self.counts.items()), self.doubt()
        figures = (one.line(_PAIRS[name]) for name, one in self.figures.items())
        return [f"pairs: {used}", *figures, *self.notes, *([f"warning: {doubt}"] if doubt else [])]

    def doubt(self) -> str | None:
        """Warning where the binomial test of the answers not learned from cannot exclude guessing; else None."""
        from scipy.stats import binomtest

        unseen = [one for name, one in self.figures.items() if name != "before" and one.accuracy is not None]
        agreed = int(sum(one.pairs * (one.accuracy or 0.0) for one in unseen) + 1e-9)
        count = sum(one.pairs for one in unseen)
        chance = binomtest(agreed, count, 0.5, alternative="greater").pvalue if count else 1.0
        told = f"{agreed:,} of {count:,} answers that it did not learn from are predicted, as guessing may do"
        advice = "give more answers, of one preference"
        return f"{told} (p = {chance:.3f}, not under {SIZE:g}): {advice}" if chance > SIZE else None


def learn_model(pairs: PairTensors, shape: NetworkShape, seed: int) -> tuple[RewardModel, LearningReport]:
    """Split pairs, fit a reward model, and judge it.

    Figures are of the model as calibrated on the calibration pairs alone. The returned model has its temperature and
    share of mistakes from every pair that it did not learn from.

    Raises FinflowError if there are too few pairs.
    """
    split = split_pairs(pairs, seed)
    model = fit_model(pairs, split.fitted, split.calibration, shape, seed)
    figures = {name: judge_model(pairs, model, getattr(split, name)) for name in ("held_out", "later")}
    calibrate(pairs, model, np.concatenate([split.calibration, split.held_out, split.later]))
    numbers = {"temperature": float(model.temperature), "mistakes": float(model.mistakes)}
    return model, LearningReport(split.counts, figures, numbers)
