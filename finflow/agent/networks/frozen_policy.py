"""A deployed policy, frozen, whose tensors alone describe it: what fine-tuning against an agent's file is held to.

An agent decides by one policy, by a blend of it with a reference, or by the mean of several policies. Which of
these it is, and with which numbers, stands in tensors next to those of the networks, so that a checkpoint holds nothing
but tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from torch import Tensor

from finflow.agent.networks.decision import Blend, no_blend
from finflow.agent.networks.policy import ExpertPolicy, blended
from finflow.agent.networks.policy_ensemble import PolicyEnsemble

MEMBERS = "members."


class FrozenPolicy(PolicyEnsemble):
    """Policy that an agent was deployed with, frozen: copies of one or several, in the blend that was decided on.

    Its density is logistic-normal, as that of each member: located at the log ratios of the portfolio that the agent
    decides on, with the geometric mean of the members' scales. So the KL of another policy from it has a closed form.
    """

    blend_numbers: Tensor

    def __init__(self, members: Sequence[ExpertPolicy], blend: Blend | None = None) -> None:
        super().__init__([blended(copy.deepcopy(one), blend) for one in members], blend)
        device = next(members[0].parameters()).device
        numbers = no_blend(device) if blend is None else blend.to_tensor(device)
        self.register_buffer("blend_numbers", numbers)
        self.requires_grad_(False)

    @classmethod
    def of(cls, deployed: ExpertPolicy, volatility: tuple[int, float]) -> FrozenPolicy:
        """Freeze a policy that an agent decides by.

        ``volatility`` is the column of the log volatility among the assets' features, and the deviation it is scaled
        by, in the market that the policy is used in; another training window may have scaled it by another.
        """
        blend = None if deployed.blend is None else deployed.blend._replace(volatility=volatility)
        return cls(deployed.policies() if isinstance(deployed, PolicyEnsemble) else [deployed], blend)

    @classmethod
    def from_tensors(cls, like: ExpertPolicy, tensors: Mapping[str, Tensor]) -> FrozenPolicy:
        """Read a frozen policy back from its tensors in a file; ``like`` has the members' shape.

        A RuntimeError if they do not fit.
        """
        count = len({name.split(".")[1] for name in tensors if name.startswith(MEMBERS)})
        blend = Blend.from_tensor(tensors["blend_numbers"])
        members = [copy.deepcopy(like) for _ in range(count)]
        for number, member in enumerate(members):
            member.blend = None
            prefix = f"{MEMBERS}{number}."
            member.load_state_dict({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        return cls(members, blend)
