"""Evidence of a training: learners at several stages, backtested in the blocks that they have not seen.

The interface is two functions of any learner: one that is trained without a block, and a backtest of its policy there.
The evidence chooses the stage, and the blend with a reference that the agent decides by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from finflow.agent.learners.bcell import BCell
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.networks.policy_ensemble import load_like
from finflow.config import Config
from finflow.cores import forked
from finflow.guard.state_capture import without_prefix
from finflow.training.data.rollouts import RolloutMarket
from finflow.training.data.training_data import TrainingData
from finflow.training.out_of_fold.backtests import BlockPolicy, Evidence, backtest_blends, weigh_evidence
from finflow.training.out_of_fold.blocks import training_blocks

Weights = Mapping[str, Tensor]


class OutOfFold:
    """State of the evidence.

    Attributes
    ----------
    looks : list of list of dict of Tensor
        The agent's policy, then those of the blocks, at each stage so far, the first as they were pretrained where they
        were; none once a blend was decided on.
    evidence : dict or None
        Figures of the backtests, once the blend was decided on.
    judged : bool
        Whether the finished agent was judged on the validation window.
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
        """Backtest the blocks' policies in their blocks; give the agent the stage and blend that this justifies.

        Parameters
        ----------
        seed : int
            Of the bootstrap.
        """
        policy = bcell.policy if bcell.average is None else bcell.average.policy
        volatility, count = training_data.log_volatility, len(self.blocks)
        policies = [one for look in self.looks for one in self._policies(policy, look)]
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

    def _policies(self, like: ExpertPolicy, look: Sequence[Weights]) -> list[BlockPolicy]:
        """Policies of the blocks as they were at a look."""
        pairs = zip(self.blocks, look[1:], strict=True)
        return [BlockPolicy(load_like(like, own), block.held_out) for block, own in pairs]

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All of it."""
        tensors: dict[str, Tensor] = {}
        for number, look in enumerate(self.looks):
            for member, policy in enumerate(look):
                tensors |= {f"look{number}/{member}/{name}": tensor.clone() for name, tensor in policy.items()}
        return tensors, {"looks": len(self.looks), "judged": self.judged, "evidence": self.evidence}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore all of it."""
        if type(state["looks"]) is not int or type(state["judged"]) is not bool:
            raise ValueError("its evidence is invalid")
        self.judged, self.evidence = state["judged"], state["evidence"]
        self.looks = [
            [without_prefix(tensors, f"look{number}/{member}/") for member in range(1 + len(self.blocks))]
            for number in range(state["looks"])
        ]
