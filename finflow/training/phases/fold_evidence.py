"""Play of the folds' policies in the blocks that they have not seen, and the blend that it justifies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.agent.batch import States
from finflow.agent.networks.decision import REFERENCES, Blend, MarketReading
from finflow.agent.networks.policy import ExpertPolicy, blended
from finflow.env.decision_process import DecisionProcess
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
    policy: ExpertPolicy,
    process: DecisionProcess,
    tensors: MarketTensors,
    bars: range,
    volatility: tuple[int, float],
) -> Tensor:
    """Log growth of a policy's blends with each reference through a block, (references * confidences, decisions).

    Parameters
    ----------
    policy : ExpertPolicy
    process : DecisionProcess
    tensors : MarketTensors
        Features of the process.
    bars : range
        Of decisions. All accounts begin with the reference's portfolio.
    volatility : tuple of int and float
        As a `Blend` has it.
    """
    device = tensors.market.device
    confidence = torch.tensor(CONFIDENCES, device=device).repeat(len(REFERENCES)).unsqueeze(-1)
    readings, references = [], []
    for start in range(bars.start, bars.stop, ROWS):
        rows = torch.arange(start, min(start + ROWS, bars.stop), device=device)
        states = tensors.states(rows, torch.zeros(len(rows), process.portfolio_size, device=device))
        readings.append(policy.read_market(states))
        references.append(torch.stack([Blend(1.0, name, volatility).portfolio(states) for name in REFERENCES], dim=1))
    reading = MarketReading(*(torch.cat(parts) for parts in zip(*readings, strict=True)))
    reference = torch.cat(references).repeat_interleave(len(CONFIDENCES), dim=1)  # (decisions, candidates, K)
    aims = reference.lerp(reading.aim.unsqueeze(1), confidence)
    many = blended(policy, Blend(confidence, REFERENCES[0], volatility))
    state = process.start(np.full(len(confidence), bars.start), reference[0].double().cpu().numpy())
    growth: list[NDArray[np.float64]] = []
    for place in range(len(bars)):
        portfolio = torch.as_tensor(process.observed_portfolio(state), dtype=torch.float32, device=device)
        states = States(tensors.assets[:1], tensors.market[:1], portfolio, tensors.complete)
        parts = (part[place].expand(len(confidence), *part.shape[1:]) for part in reading)
        now = MarketReading(*parts)._replace(aim=aims[place])
        step = process.step(state, many.trade_toward(states, now).distribution.centre().double().cpu().numpy())
        growth.append(np.log1p(step.simple_return))
        state = step.state
    return torch.from_numpy(np.stack(growth, axis=1))


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
