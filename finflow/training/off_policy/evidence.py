"""Evidence of a training: learners at several stages, backtested in the blocks that they have not seen.

The interface is two functions of any learner: one that is trained without a block, and a backtest of its policy there.
The evidence chooses the stage, and the blend with a reference that the agent decides by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from finflow.agent.batch import States
from finflow.agent.learners.bcell import BCell
from finflow.agent.networks.decision import REFERENCES, Blend, MarketReading
from finflow.agent.networks.policy import ExpertPolicy, blended
from finflow.agent.networks.policy_ensemble import BatchedPolicies, load_like
from finflow.arrays import FloatArray
from finflow.config import Config
from finflow.cores import forked
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState
from finflow.errors import TrainingError
from finflow.evaluation.backtest import simulate
from finflow.evaluation.statistics.backtest_overfitting import BlendChoice, choose, least_gain
from finflow.offline.dataset import OfflineDataset
from finflow.tensor_file import without_prefix
from finflow.training.data.replay import MarketTensors
from finflow.training.data.rollouts import RolloutMarket
from finflow.training.data.training_data import TrainingData
from finflow.training.judging.agent_strategy import read_bars


class Block(NamedTuple):
    """Bars of decisions that one learner does not learn from, and those that it learns from.

    ``held_out``: bars of decisions. ``learned``: bars of decisions; those whose rewards would reach into the block are
    left out.
    """

    held_out: range
    learned: tuple[range, ...]


def make_blocks(segments: Sequence[range], count: int, purge: int) -> tuple[Block, ...]:
    """Split decision bars into contiguous blocks of equal length. ``purge``: bars left out on both sides of a block."""
    bars = np.concatenate([np.arange(one.start, one.stop) for one in segments])
    parts = [part for part in np.array_split(bars, count) if len(part)]
    blocks = []
    for part in parts:
        first, last = int(part[0]), int(part[-1])
        learned = [range(one.start, min(one.stop, first - purge)) for one in segments]
        learned += [range(max(one.start, last + 1 + purge), one.stop) for one in segments]
        blocks.append(Block(range(first, last + 1), tuple(one for one in learned if len(one))))
    return tuple(blocks)


def training_blocks(config: Config, training_data: TrainingData) -> tuple[Block, ...]:
    """Blocks of the training years that a learner each does not see; none with one block or fewer."""
    count, process = config.out_of_fold.blocks, training_data.learning
    if count <= 1:
        return ()
    # a window's last reward is earned on the bars after its last decision
    return make_blocks(training_segments(training_data), count, process.lag + process.reward_horizon)


def training_segments(training_data: TrainingData) -> list[range]:
    """Bars of decisions of the training years, in order."""
    return [training_data.learning.decision_bars(window) for window in training_data.train_segments]


def transitions_outside(dataset: OfflineDataset, block: Block) -> OfflineDataset:
    """The transitions of the decisions that a block's policy may learn from."""
    allowed = np.concatenate([np.arange(one.start, one.stop) for one in block.learned])
    kept = np.isin(dataset.bar, allowed)
    if not kept.any():
        raise TrainingError(
            f"the behaviour data has no decision outside the block of bars {block.held_out.start} to "
            f"{block.held_out.stop - 1}; raise train.offline_episodes, or set out_of_fold.blocks=1"
        )
    return dataset.part(kept)


CONFIDENCES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the blends that are compared; at 0 the reference itself
ROWS = 2048  # bars read at once


class Evidence(NamedTuple):
    """Result of the out-of-fold backtests of a training.

    ``forgone``: mean reward of a decision, out of fold, by which the chosen blend before shrinkage exceeds the
    reference, times the share of it that shrinkage takes away: the cost of shrinkage if the gain is real.
    """

    look: int
    blend: Blend
    choice: BlendChoice
    unshrunk: float
    forgone: float

    def facts(self) -> dict[str, float]:
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

    def describe(self) -> str:
        """One line on the evidence out of sample, and what the agent therefore holds."""
        reference = self.blend.name
        evidence = f"out of fold t = {self.choice.t_statistic:.1f} over {reference}"
        if self.blend.confidence == 0.0:
            return f"{evidence}: nothing was found that holds out of sample; this agent holds {reference}"
        return f"{evidence}: {self.blend.confidence:.0%} of the learned policy, the rest {reference}"


@torch.no_grad()
def backtest_blends(
    policies: Sequence[tuple[ExpertPolicy, range]],
    process: DecisionProcess,
    tensors: MarketTensors,
    volatility: tuple[int, float],
) -> list[FloatArray]:
    """Rewards of every policy's blends with each reference, (references * confidences, decisions) of each policy.

    ``policies``: each with the bars of its decisions.

    All accounts begin with the reference's portfolio; those of all policies are stepped together.
    """
    device, count = tensors.market.device, len(REFERENCES) * len(CONFIDENCES)
    read = [_read_block(policy, bars, tensors, volatility) for policy, bars in policies]
    decisions = np.repeat([len(bars) for _, bars in policies], count)
    begun = torch.cat([beginning for _, _, beginning in read]).double().cpu().numpy()
    accounts = process.start(np.repeat([bars.start for _, bars in policies], count), begun)
    confidence = torch.tensor(CONFIDENCES, device=device).repeat(len(REFERENCES))

    @cache
    def batched(numbers: tuple[int, ...]) -> BatchedPolicies:
        blend = Blend(confidence.repeat(len(numbers)).unsqueeze(-1), REFERENCES[0], volatility)
        return BatchedPolicies([blended(policies[number][0], blend) for number in numbers])

    def decide(place: int, state: PortfolioState) -> FloatArray:
        active = tuple(number for number, (_, bars) in enumerate(policies) if place < len(bars))
        portfolio = torch.as_tensor(process.observed_portfolio(state), dtype=torch.float32, device=device)
        states, now = States(tensors.assets[:1], tensors.market[:1], portfolio, tensors.complete), []
        for reading, aims, _ in (read[number] for number in active):
            each = reading.each(itemgetter(place)).each(lambda row: row.expand(count, *row.shape))
            now.append(each._replace(aim=aims[place]))
        decision = batched(active).trade_toward(states, MarketReading.join(now, torch.cat))
        return decision.distribution.centre().double().cpu().numpy()

    rewards = np.zeros((len(decisions), int(decisions.max())))
    for place, (rows, outcome) in enumerate(simulate(process, accounts, decisions, decide)):
        rewards[rows, place] = outcome.reward
    return [rewards[n * count : (n + 1) * count, : len(bars)] for n, (_, bars) in enumerate(policies)]


def _read_block(
    policy: ExpertPolicy, bars: range, tensors: MarketTensors, volatility: tuple[int, float]
) -> tuple[MarketReading, Tensor, Tensor]:
    """Reading of a block by a policy, and what its blends aim at: a row for each reference and confidence.

    Returns
    -------
    reading : MarketReading, (decisions, ...)
    aims : Tensor, (decisions, rows, K)
        Between each reference and the policy's aim.
    beginning : Tensor, (rows, K)
        The references' portfolios at the first decision.
    """
    reading, device = read_bars(policy, tensors, bars, ROWS), tensors.market.device
    rows = torch.arange(bars.start, bars.stop, device=device)
    states = tensors.states(rows, torch.zeros(len(rows), tensors.assets.shape[1] + 4, device=device))
    portfolios = [Blend(1.0, name, volatility).portfolio(states) for name in REFERENCES]
    reference = torch.stack(portfolios, dim=1).repeat_interleave(len(CONFIDENCES), dim=1)
    confidence = torch.tensor(CONFIDENCES, device=device).repeat(len(REFERENCES)).unsqueeze(-1)
    return reading, reference.lerp(reading.aim.unsqueeze(1), confidence), reference[0]


def weigh_evidence(
    rewards: list[FloatArray], blocks: tuple[Block, ...], volatility: tuple[int, float], seed: int
) -> Evidence:
    """Choose reference, look and blend. ``rewards`` (references * confidences, bars): of each look, over all blocks."""
    played = np.stack([one.reshape(len(one) // len(CONFIDENCES), len(CONFIDENCES), -1) for one in rewards])
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


class OutOfFold:
    """State of the evidence.

    ``looks``: the agent's policy, then those of the blocks, at each stage so far, the first as they were pretrained
    where they were; none once a blend was decided on.
    """

    def __init__(self, config: Config, training_data: TrainingData) -> None:
        self.blocks = training_blocks(config, training_data)
        self.looks: list[list[dict[str, Tensor]]] = []
        self.evidence: dict[str, float] | None = None
        self.judged = False

    def keep(self, policies: Sequence[ExpertPolicy]) -> None:
        """Keep the policies as they stand: the agent's, then those of the blocks."""
        self.looks.append([{name: t.detach().clone() for name, t in one.state_dict().items()} for one in policies])

    def choose(self, bcell: BCell, market: RolloutMarket, training_data: TrainingData, seed: int) -> Evidence:
        """Backtest the blocks' policies in their blocks; give the agent the stage and blend that this justifies."""
        policy = bcell.policy if bcell.average is None else bcell.average.policy
        volatility, count = training_data.log_volatility, len(self.blocks)
        held_out = [block.held_out for block in self.blocks]
        pairs = [pair for look in self.looks for pair in zip(look[1:], held_out, strict=True)]
        policies = [(load_like(policy, own), bars) for own, bars in pairs]
        facts = (market.process, market.tensors, volatility)
        half = len(self.looks) // 2 * count  # two parts on one core, too
        with forked(partial(backtest_blends, policies[half:], *facts)) as later:
            rewards = backtest_blends(policies[:half], *facts) if half else []
        rewards += later()
        looks = [np.concatenate(rewards[at : at + count], axis=1) for at in range(0, len(rewards), count)]
        evidence = weigh_evidence(looks, self.blocks, volatility, seed)
        chosen, *of_blocks = self.looks[evidence.look]
        policy.load_state_dict(chosen)
        for member, weights in zip(bcell.members or (), of_blocks, strict=True):
            member.load_state_dict(weights)
        if bcell.blend is not None:
            bcell.blend.copy_(evidence.blend.to_tensor(bcell.device))
        self.evidence, self.looks = evidence.facts(), []
        return evidence

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors: dict[str, Tensor] = {}
        for number, look in enumerate(self.looks):
            for member, policy in enumerate(look):
                tensors |= {f"look{number}/{member}/{name}": tensor.clone() for name, tensor in policy.items()}
        return tensors, {"looks": len(self.looks), "judged": self.judged, "evidence": self.evidence}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        if type(state["looks"]) is not int or type(state["judged"]) is not bool:
            raise ValueError("its evidence is invalid")
        self.judged, self.evidence = state["judged"], state["evidence"]
        self.looks = [
            [without_prefix(tensors, f"look{number}/{member}/") for member in range(1 + len(self.blocks))]
            for number in range(state["looks"])
        ]
