"""Numbers of a reward model on pairs that it did not learn from: accuracy and calibration."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from finflow.agent.networks.critic import NetworkShape
from finflow.preferences.model_training import calibrate, fit_model, leads, probability, split_pairs
from finflow.preferences.pair_tensors import PairTensors, Rows
from finflow.preferences.preference_reward import RewardModel

BINS = 10


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
        """The numbers as JSON has them."""
        return {**self._asdict(), "share": self.share}

    def line(self, name: str) -> str:
        """The figures in a line."""
        if self.accuracy is None:
            return f"{name}: no pair but ties"
        text = f"{name}: accuracy {self.accuracy:.3f} of {self.pairs:,} pairs, ECE {self.ece:.3f}"
        if self.attainable is not None:
            text += f", attainable {self.attainable:.3f}"
        if self.share is not None:
            text += f", (accuracy - 0.5) / (attainable - 0.5) = {self.share:.2f}"
        return text


def figures_of(pairs: PairTensors, rows: Rows, lead: Tensor, mistakes: float = 0.0) -> ModelFigures:
    """Figures of some pairs from leads (rows,) in log odds and the model's share of mistakes; ties are left out."""
    decided = pairs.targets[rows] != 0.5
    columns = (lead, pairs.targets[rows], pairs.chances[rows])
    ahead, answers, chances = (column[decided].double().numpy() for column in columns)
    if not len(ahead):
        return ModelFigures(0)
    agreed = np.where(ahead == 0.0, 0.5, (ahead > 0.0) == (answers > 0.5))
    known = bool(np.isfinite(chances).all())
    predicted = probability(ahead, mistakes)
    bins = np.minimum((predicted * BINS).astype(np.int64), BINS - 1)
    inside = [bins == number for number in np.unique(bins)]
    gaps = [one.sum() * abs(float(predicted[one].mean()) - float(answers[one].mean())) for one in inside]
    attainable = float(np.maximum(chances, 1.0 - chances).mean()) if known else None
    return ModelFigures(len(ahead), float(agreed.mean()), attainable, float(sum(gaps) / len(ahead)))


def judge_model(pairs: PairTensors, model: RewardModel, rows: Rows) -> ModelFigures:
    """Figures of a model on some pairs."""
    return figures_of(pairs, rows, leads(pairs, model, rows), float(model.mistakes))


class LearnedModel(NamedTuple):
    """A reward model, its figures on pairs drawn at random and on those of the latest segments, and pairs by use."""

    model: RewardModel
    held_out: ModelFigures
    later: ModelFigures
    counts: dict[str, int]

    def report(self) -> dict[str, Any]:
        """The numbers as JSON has them."""
        return {
            "held_out": self.held_out.report(),
            "later": self.later.report(),
            "counts": self.counts,
            "temperature": float(self.model.temperature),
            "mistakes": float(self.model.mistakes),
        }

    def lines(self) -> list[str]:
        """The report in lines."""
        used = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        return [
            f"pairs: {used}",
            self.held_out.line("held out"),
            self.later.line("later segments"),
        ]


def learn_model(pairs: PairTensors, shape: NetworkShape, seed: int) -> LearnedModel:
    """Split pairs, fit a reward model, and judge it.

    Figures are of the model as calibrated on the calibration pairs alone. The returned model has its temperature and
    share of mistakes from every pair that it did not learn from, which are three times as many: with few pairs these
    two numbers are the main error of predicted probabilities.

    Raises FinflowError if there are too few pairs.
    """
    split = split_pairs(pairs, seed)
    model = fit_model(pairs, split.fitted, split.calibration, shape, seed)
    held_out = judge_model(pairs, model, split.held_out)
    later = judge_model(pairs, model, split.later)
    calibrate(pairs, model, np.concatenate([split.calibration, split.held_out, split.later]))
    return LearnedModel(model, held_out, later, split.counts)
