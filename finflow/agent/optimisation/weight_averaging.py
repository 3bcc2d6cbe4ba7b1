"""The average of a policy's weights over the end of training: the policy that is validated, kept and deployed.

Where the last updates wander about a good policy, their mean is nearer to it than any of them.

References
----------
Polyak and Juditsky (1992), Acceleration of Stochastic Approximation by Averaging.
Izmailov et al. (2018), Averaging Weights Leads to Wider Optima and Better Generalization.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.optimisation.gradient_steps import freeze
from finflow.config import AveragingConfig


class PolicyAverage:
    """Follows a policy, and averages it from some point on.

    Parameters
    ----------
    config : AveragingConfig
    policy : ExpertPolicy

    Attributes
    ----------
    policy : ExpertPolicy
        The average; until it begins, the policy itself.
    count : int
        Updates averaged over.
    """

    def __init__(self, config: AveragingConfig, policy: ExpertPolicy) -> None:
        self.config = config
        self.policy = copy.deepcopy(policy)
        freeze([self.policy])
        self.count = 0

    @classmethod
    def of(cls, config: AveragingConfig, policy: ExpertPolicy) -> PolicyAverage | None:
        """As configured; None where nothing is averaged."""
        return None if config.kind == "none" else cls(config, policy)

    @torch.no_grad()
    def follow(self, policy: ExpertPolicy, progress: float) -> None:
        """Take in the policy after an update, at a share of the phase's updates.

        Parameters
        ----------
        policy : ExpertPolicy
        progress : float
            Of the updates of the phase, this one included.
        """
        own: list[Tensor] = list(self.policy.parameters())
        others: list[Tensor] = list(policy.parameters())
        if progress <= self.config.start:
            self.count = 0
            torch._foreach_copy_(own, others)
            return
        self.count += 1
        share = 1.0 / self.count if self.config.kind == "swa" else 1.0 - self.config.decay
        torch._foreach_lerp_(own, others, share)

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The average, and over how many updates it is."""
        tensors = {name: tensor.detach().clone() for name, tensor in self.policy.state_dict().items()}
        return tensors, {"count": self.count}

    def restore(self, tensors: Mapping[str, Tensor], state: dict[str, Any]) -> None:
        """Put both back."""
        count = state["count"]
        if type(count) is not int or not 0 <= count <= 10**12:
            raise ValueError("its count of updates is none")
        self.policy.load_state_dict(dict(tensors))
        self.count = count
