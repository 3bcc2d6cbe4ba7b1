"""The trained agent as a Strategy: the backtest knows no other kind of thing."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from finflow.agent.learners.bcell import states_of
from finflow.agent.networks.policy import ExpertPolicy
from finflow.errors import FinflowError
from finflow.strategies.strategy import Information

FloatArray = NDArray[np.float64]


class AgentStrategy:
    """Decides by the centre of a policy, and remembers why.

    Parameters
    ----------
    policy : ExpertPolicy
    device : torch.device
    name : str
    expert : int, optional
        Whose portfolio is the aim, in place of the gate's mixture; the trade rate is the agent's.
    """

    def __init__(
        self, policy: ExpertPolicy, device: torch.device, name: str = "finflow", expert: int | None = None
    ) -> None:
        self.policy = policy
        self.device = device
        self.name = name
        self.expert = expert
        names = ("gate", "experts", "trade_rate", "held", "reward_state")
        self._reasons: dict[str, list[FloatArray]] = {name: [] for name in names}

    def decide(self, information: Information) -> FloatArray:
        """The centre of the policy's distribution, (K,)."""
        if information.observation is None:
            raise ValueError("a learned agent needs the environment's observation")
        states = states_of(information.observation, self.device)
        with torch.no_grad():
            decision = self.policy(states, only=self.expert)
            centre = decision.distribution.centre()[0]
        self._reasons["gate"].append(decision.gate[0].double().cpu().numpy())
        self._reasons["experts"].append(decision.experts[0].double().cpu().numpy())
        self._reasons["trade_rate"].append(decision.trade_rate[0, 0].double().cpu().numpy())
        portfolio = np.asarray(information.observation["portfolio"], dtype=np.float64)
        self._reasons["held"].append(portfolio[: len(information.portfolio)].copy())
        self._reasons["reward_state"].append(portfolio[len(information.portfolio) :].copy())
        weights = centre.double().cpu().numpy()
        if not np.isfinite(weights).all():
            raise FinflowError("the agent names what is no portfolio: its learning had failed; use another checkpoint")
        normalised: FloatArray = weights / weights.sum()
        return normalised

    def explanation(self) -> dict[str, FloatArray]:
        """Of all decisions so far: gate (steps, 5), experts (steps, 5, K), trade rate (steps,); and what they were made
        from beside the market, the weights held (steps, K) and the state of the reward (steps, 3)."""
        return {name: np.stack(values) for name, values in self._reasons.items()}


def experts_alone(policy: ExpertPolicy, device: torch.device) -> list[AgentStrategy]:
    """Each expert as a strategy of its own, moving at the agent's trade rate; none of one head, which is the agent."""
    if len(policy.names) == 1:
        return []
    return [AgentStrategy(policy, device, f"{name} expert", expert) for expert, name in enumerate(policy.names)]
