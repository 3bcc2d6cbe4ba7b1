"""Several policies in one batch: while they learn, each with its own portfolios, and as one agent, by their mean.

What a policy reads of the market it reads with its own networks, once a bar. What it does with a portfolio is a small
network that runs at every decision; those of all members run as one batched product.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from finflow.agent.batch import States
from finflow.agent.gradient_steps import full_precision
from finflow.agent.networks.decision import Blend, Decision, MarketReading, no_blend
from finflow.agent.networks.policy import ExpertPolicy, blended, move_toward

LEAST_SHARE = 1e-12


class BatchedPolicies:
    """Policies, alike in everything but their weights, that decide each for portfolios of its own, in one batch."""

    def __init__(self, members: Sequence[ExpertPolicy]) -> None:
        self.first = members[0]
        hidden, heads = [one.trade_hidden for one in members], [one.trade for one in members]
        self.hidden_weight = torch.stack([layer.weight.T for layer in hidden])  # (members, inputs, width)
        self.hidden_bias = torch.stack([layer.bias.unsqueeze(0) for layer in hidden])
        self.weight = torch.stack([layer.weight.T for layer in heads])  # (members, width, 2)
        self.bias = torch.stack([layer.bias.unsqueeze(0) for layer in heads])

    def trade_toward(self, states: States, reading: MarketReading, least_pull: float = 0.0) -> Decision:
        """Decide; portfolios and rows of the reading are the members' one after the other, (members * batch, ...)."""
        return move_toward(self.first, states, reading, self._read, least_pull)

    def _read(self, rows: Tensor) -> Tensor:
        """Read rows, the members' one after the other (members * batch, inputs), to (members * batch, 2)."""
        rows = rows.view(len(self.weight), -1, rows.shape[-1])
        with full_precision(rows):
            hidden = functional.relu(torch.baddbmm(self.hidden_bias, rows, self.hidden_weight))
            return torch.baddbmm(self.bias, hidden, self.weight).flatten(0, 1)


def joined_readings(readings: Sequence[MarketReading], horizon: int, copies: int = 1) -> MarketReading:
    """Readings of several policies, (horizon * batch, ...) each, one of (horizon * members * copies * batch, ...)."""

    def together(parts: list[Tensor]) -> Tensor:
        stacked = [part.view(horizon, len(part) // horizon, *part.shape[1:]) for part in parts for _ in range(copies)]
        return torch.stack(stacked, dim=1).flatten(0, 2)

    return MarketReading.join(readings, together)


class PolicyEnsemble(ExpertPolicy):
    """Policy whose decision is the mean of its members' decisions, each in the same blend.

    Its gate, experts and aim are the members' means, weighed by the share of the way that each member trades: they
    lead to the same decision at the mean trade rate.
    """

    def __init__(self, members: Sequence[ExpertPolicy], blend: Blend | None = None) -> None:
        nn.Module.__init__(self)
        self.members = nn.ModuleList(members)
        first = members[0]
        self.blend = blend
        self.expert_cloning, self.dropout_rate = first.expert_cloning, first.dropout_rate

    def policies(self) -> list[ExpertPolicy]:
        return [one for one in self.members if isinstance(one, ExpertPolicy)]

    def read_market(self, states: States, noise: Generator | None = None, gate_only: bool = False) -> MarketReading:
        """Readings of the members, side by side in the second dimension: (groups, members, ...)."""
        readings = [one.read_market(states, noise, gate_only) for one in self.policies()]
        return MarketReading.join(readings, lambda parts: torch.stack(parts, dim=1))

    def trade_toward(self, states: States, reading: MarketReading, least_pull: float = 0.0) -> Decision:
        count, batch = len(self.members), len(states.portfolio)
        of_members = reading.each(lambda part: part.transpose(0, 1).flatten(0, 1))
        repeated = states._replace(portfolio=states.portfolio.repeat(count, 1))
        decisions = BatchedPolicies(self.policies()).trade_toward(repeated, of_members, least_pull)
        experts, gate, aim, rate, centre, log_scale = (
            part.view(count, batch, *part.shape[1:]) for part in decisions[:6] if part is not None
        )
        weight = 1.0 / count
        traded = (weight * rate).sum(dim=0)
        share = weight * rate / traded.clamp(min=torch.finfo(rate.dtype).tiny)  # (members, batch, 1)
        shared_gate = share * gate
        mean_gate = shared_gate.sum(dim=0)
        naming = shared_gate.clamp(min=LEAST_SHARE).unsqueeze(-1)  # experts without a share have portfolios too
        mean_experts = (naming * experts).sum(dim=0) / naming.sum(dim=0)
        return Decision(
            mean_experts,
            mean_gate,
            (share * aim).sum(dim=0),
            traded,
            (weight * centre).sum(dim=0),
            (weight * log_scale).sum(dim=0),
            None if reading.listed is None else reading.listed[:, 0],
        )


def deployed_policy(policy: ExpertPolicy, members: Iterable[nn.Module], blend: Blend | None) -> ExpertPolicy:
    """Policy that an agent decides by: itself until a blend is decided on, then with the members, all in that blend.

    The members are the policies of the blocks of the training years. Without any confidence one policy is enough.
    """
    learned = [policy, *(one for one in members if isinstance(one, ExpertPolicy))]
    if blend is None:
        return policy
    if float(blend.confidence) == 0.0 or len(learned) == 1:
        return blended(policy, blend)
    return PolicyEnsemble([blended(one, blend) for one in learned], blend)


def load_members(policy: ExpertPolicy, tensors: Mapping[str, Tensor]) -> nn.ModuleList:
    """Policies shaped like another one, from their tensors in a file; none where it has none.

    A RuntimeError if they do not fit.
    """
    members = nn.ModuleList(copy.deepcopy(policy) for _ in {name.partition(".")[0] for name in tensors})
    members.load_state_dict(dict(tensors))
    return members


def load_like(policy: ExpertPolicy, tensors: Mapping[str, Tensor]) -> ExpertPolicy:
    """Policy shaped like another one, from its tensors in a file; the other one where it has none.

    A RuntimeError if they do not fit.
    """
    if not tensors:
        return policy
    loaded = copy.deepcopy(policy)
    loaded.load_state_dict(dict(tensors))
    return loaded


class FrozenPolicy(PolicyEnsemble):
    """Policy that an agent was deployed with, frozen: copies of one or several, in the blend that was decided on.

    Its tensors alone describe it, so that a checkpoint holds nothing but tensors: fine-tuning is held to it.

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
        named = {name.removeprefix("members."): tensor for name, tensor in tensors.items()}
        blend = Blend.from_tensor(named.pop("blend_numbers"))
        return cls([one for one in load_members(like, named) if isinstance(one, ExpertPolicy)], blend)
