"""Numbers of a reward model on pairs that it did not learn from: accuracy, calibration, separation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.agent.networks.critic import NetworkShape
from finflow.config.preferences_section import RewardModelConfig
from finflow.preferences.model_training import calibrate, fit_model, leads, probability, split_pairs
from finflow.preferences.pair_tensors import PairTensors, Rows
from finflow.preferences.reward_model import RewardModel

BINS = 10
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class ModelFigures:
    """Agreement of a reward model with answers.

    Attributes
    ----------
    pairs : int
        Pairs that are no ties.
    accuracy : float or None
        Share of them in which the preferred segment has the higher score; an equal score counts half.
    attainable : float or None
        That of the answers that the judge gives more often, where its probabilities are known.
    ece : float or None
        Expected calibration error: mean distance of predicted probability and frequency of the answer, over
        `BINS` bins of equal width of the predicted probability of "first" (Guo et al. 2017).
    reliability : list of dict
        ``pairs``, mean ``predicted`` probability and observed ``frequency`` of each bin that is not empty.
    separation : float or None
        Mean lead of the preferred segments' scores over their deviation.
    """

    pairs: int
    accuracy: float | None
    attainable: float | None
    ece: float | None
    reliability: list[dict[str, float]]
    separation: float | None

    @property
    def share(self) -> float | None:
        """``(accuracy - 0.5) / (attainable - 0.5)``; None where the attainable accuracy is unknown, or chance."""
        if self.accuracy is None or self.attainable is None or self.attainable <= 0.5:
            return None
        return (self.accuracy - 0.5) / (self.attainable - 0.5)

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


def figures_of(lead: FloatArray, targets: FloatArray, chances: FloatArray, mistakes: float = 0.0) -> ModelFigures:
    """Figures from leads (pairs,) of the first segments in log odds, answers and what is known of the judge.

    ``targets``, (pairs,), are 1, 0, or 0.5 for a tie; ties are left out. ``chances``, (pairs,), are probabilities of
    the judge's answer "first", NaN where unknown; ``mistakes`` is the share of reversed answers, by the model.
    """
    decided = targets != 0.5
    lead, answers, chances = lead[decided], targets[decided], chances[decided]
    if not len(lead):
        return ModelFigures(0, None, None, None, [], None)
    agreed = np.where(lead == 0.0, 0.5, (lead > 0.0) == (answers > 0.5))
    known = bool(np.isfinite(chances).all())
    table = reliability(probability(lead, mistakes), answers)
    ece = sum(row["pairs"] * abs(row["predicted"] - row["frequency"]) for row in table) / len(lead)
    ahead = np.where(answers > 0.5, lead, -lead)
    spread = float(ahead.std())
    return ModelFigures(
        pairs=len(lead),
        accuracy=float(agreed.mean()),
        attainable=float(np.maximum(chances, 1.0 - chances).mean()) if known else None,
        ece=float(ece),
        reliability=table,
        separation=float(ahead.mean()) / spread if spread > 0.0 else None,
    )


def reliability(predicted: FloatArray, answers: FloatArray) -> list[dict[str, float]]:
    """Reliability table: pairs, mean prediction and frequency of "first" in each bin that is not empty."""
    bins = np.minimum((predicted * BINS).astype(np.int64), BINS - 1)
    rows = [np.flatnonzero(bins == number) for number in range(BINS)]
    return [
        {"pairs": len(row), "predicted": float(predicted[row].mean()), "frequency": float(answers[row].mean())}
        for row in rows
        if len(row)
    ]


def judge_model(pairs: PairTensors, model: RewardModel, rows: Rows) -> ModelFigures:
    """Figures of a model on some pairs."""
    return figures_of(leads(pairs, model, rows).numpy(), *pairs.answers(rows), float(model.mistakes))


@dataclass(frozen=True)
class LearnedModel:
    """A reward model with its report: figures on pairs drawn at random and on the latest, and pairs by their use."""

    model: RewardModel
    held_out: ModelFigures
    later: ModelFigures
    counts: Mapping[str, int]

    def report(self) -> dict[str, Any]:
        """The numbers as JSON has them."""
        return {
            "held_out": {**asdict(self.held_out), "share": self.held_out.share},
            "later": {**asdict(self.later), "share": self.later.share},
            "counts": dict(self.counts),
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


def learn_model(
    pairs: PairTensors, shape: NetworkShape, config: RewardModelConfig, seed: int, contradictions: int = 0
) -> LearnedModel:
    """Split pairs, fit a reward model, and judge it; a FinflowError if there are too few pairs.

    Figures are of the model as calibrated on the calibration pairs alone. The returned model has its temperature and
    share of mistakes from every pair that it did not learn from, which are three times as many: with few pairs these
    two numbers are the main error of predicted probabilities. The contradictions are for the report.
    """
    split = split_pairs(pairs, seed)
    model = fit_model(pairs, split.fitted, split.calibration, shape, config, seed)
    held_out = judge_model(pairs, model, split.held_out)
    later, counts = judge_model(pairs, model, split.later), split.counts(pairs, contradictions)
    calibrate(pairs, model, np.concatenate([split.calibration, split.held_out, split.later]))
    return LearnedModel(model, held_out, later, counts)
