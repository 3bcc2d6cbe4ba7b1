"""Play of the folds' policies in the blocks that they have not seen, and the blend that it justifies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.agent.batch import States
from finflow.agent.networks.decision import REFERENCES, Blend, MarketReading
from finflow.agent.networks.policy import ExpertPolicy, blended
from finflow.agent.networks.policy_ensemble import SideBySide
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import rows_of
from finflow.evaluation.statistics.out_of_fold import Choice, choose, least_gain
from finflow.training.data.replay import MarketTensors
from finflow.training.phases.rollout_state import Block

CONFIDENCES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the blends that are played; at 0 the reference itself
ROWS = 2048  # bars read at once


class Evidence(NamedTuple):
    """Result of the play out of fold of a training.

    Attributes
    ----------
    look : int
        Stage of the training that was chosen, counted from 0.
    blend : Blend
        What the agent decides by.
    choice : Choice
        Of the best blend of all looks over the reference.
    unshrunk : float
        Confidence of the chosen blend before shrinkage.
    forgone : float
        Mean log growth a bar, out of fold, by which the chosen blend as it was played exceeds the reference, times the
        share of it that shrinkage takes away: what is left on the table if the gain is real.
    """

    look: int
    blend: Blend
    choice: Choice
    unshrunk: float
    forgone: float

    def facts(self) -> dict[str, float]:
        """Figures for the log and the report."""
        return {
            "confidence": float(self.blend.confidence),
            "confidence_unshrunk": self.unshrunk,
            "out_of_fold_t": self.choice.t_statistic,
            "out_of_fold_selection": self.choice.selection,
            "out_of_fold_gain": self.choice.gain,
            "out_of_fold_forgone": self.forgone,
            "reference": float(REFERENCES.index(self.blend.reference)),
            "look": float(self.look),
        }


@torch.no_grad()
def play_blends(
    policies: Sequence[ExpertPolicy],
    bars: Sequence[range],
    process: DecisionProcess,
    tensors: MarketTensors,
    volatility: tuple[int, float],
) -> list[Tensor]:
    """Log growth of every policy's blends with each reference, (references * confidences, decisions) of each policy.

    All accounts begin with the reference's portfolio; those of all policies are stepped together.

    Parameters
    ----------
    policies : sequence of ExpertPolicy
    bars : sequence of range
        Bars of decisions that each policy is played at.
    process : DecisionProcess
    tensors : MarketTensors
        Features of the process.
    volatility : tuple of int and float
        As a `Blend` has it.
    """
    device, rows = tensors.market.device, len(REFERENCES) * len(CONFIDENCES)
    confidence = torch.tensor(CONFIDENCES, device=device).repeat(len(REFERENCES)).unsqueeze(-1)
    own = [_aims(one, confidence, own, tensors, volatility) for one, own in zip(policies, bars, strict=True)]
    start = np.repeat([one.start for one in bars], rows)
    state = process.start(start, torch.cat([one.references[0] for one in own]).double().cpu().numpy())
    growth: list[list[NDArray[np.float64]]] = [[] for _ in policies]
    active = list(range(len(policies)))
    side_by_side: SideBySide | None = None
    for place in range(max(len(one) for one in bars)):
        still = [number for number in active if place < len(bars[number])]
        if side_by_side is None or len(still) < len(active):
            kept = np.repeat([number in still for number in active], rows)
            active, state = still, rows_of(state, kept)
            blend = Blend(confidence.repeat(len(active), 1), REFERENCES[0], volatility)
            side_by_side = SideBySide([blended(policies[number], blend) for number in active])
        portfolio = torch.as_tensor(process.observed_portfolio(state), dtype=torch.float32, device=device)
        states = States(tensors.assets[:1], tensors.market[:1], portfolio, tensors.complete)
        now = MarketReading(*(torch.cat(parts) for parts in zip(*(own[n].at(place) for n in active), strict=True)))
        step = process.step(state, side_by_side.trade_toward(states, now).distribution.centre().double().cpu().numpy())
        for number, own_growth in zip(active, np.log1p(step.simple_return).reshape(len(active), rows), strict=True):
            growth[number].append(own_growth)
        state = step.state
    return [torch.from_numpy(np.stack(one, axis=1)) for one in growth]


class _Aims(NamedTuple):
    """Reading of a policy of its block, and the aims of its blends.

    Attributes
    ----------
    reading : MarketReading, (decisions, ...)
    references : Tensor, (decisions, references * confidences, K)
    aims : Tensor, (decisions, references * confidences, K)
    """

    reading: MarketReading
    references: Tensor
    aims: Tensor

    def at(self, place: int) -> MarketReading:
        """Reading of every blend at one decision, (references * confidences, ...)."""
        aims = self.aims[place]
        parts = (part[place].expand(len(aims), *part.shape[1:]) for part in self.reading)
        return MarketReading(*parts)._replace(aim=aims)


def _aims(
    policy: ExpertPolicy, confidence: Tensor, bars: range, tensors: MarketTensors, volatility: tuple[int, float]
) -> _Aims:
    """Aims of a policy's blends at decision bars."""
    device = tensors.market.device
    readings, references = [], []
    for start in range(bars.start, bars.stop, ROWS):
        rows = torch.arange(start, min(start + ROWS, bars.stop), device=device)
        states = tensors.states(rows, torch.zeros(len(rows), tensors.assets.shape[1] + 4, device=device))
        readings.append(policy.read_market(states))
        references.append(torch.stack([Blend(1.0, name, volatility).portfolio(states) for name in REFERENCES], dim=1))
    reading = MarketReading(*(torch.cat(parts) for parts in zip(*readings, strict=True)))
    reference = torch.cat(references).repeat_interleave(len(confidence) // len(REFERENCES), dim=1)
    return _Aims(reading, reference, reference.lerp(reading.aim.unsqueeze(1), confidence))


def weigh_evidence(
    growth: list[Tensor], blocks: tuple[Block, ...], volatility: tuple[int, float], seed: int
) -> Evidence:
    """Choose reference, look and blend.

    Parameters
    ----------
    growth : list of Tensor, (references * confidences, bars)
        Of each look, over all blocks.
    blocks : tuple of Block
    volatility : tuple of int and float
    seed : int
        Of the bootstrap.
    """
    played = np.stack([one.numpy().reshape(len(REFERENCES), len(CONFIDENCES), -1) for one in growth])
    number = np.repeat(np.arange(len(blocks)), [len(block.held_out) for block in blocks])
    own = int(np.argmax(least_gain(played[0, :, 0], number)))
    reference = played[0, own, 0]
    gains = (played[:, own, 1:] - reference).reshape(-1, len(reference))
    choice = choose(gains, number, seed)
    look, place = divmod(choice.candidate, len(CONFIDENCES) - 1)
    unshrunk = CONFIDENCES[1 + place]
    blend = Blend(unshrunk * choice.confidence, REFERENCES[own], volatility)
    forgone = max(choice.gain, 0.0) * (1.0 - choice.confidence)
    return Evidence(look, blend, choice, unshrunk, forgone)
