"""Parts of an agent, its actions and explanations, and the average of its policy's weights."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from finflow.agent.batch import States, states_of
from finflow.agent.gradient_steps import SkippingAdam, make_optimiser, polyak_update
from finflow.agent.learners.offline_learner import Networks, OfflineLearner, portfolio_networks
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.decision import Blend, Decision, describe_holding, no_blend
from finflow.agent.networks.distributions import standard_normal
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.networks.policy_ensemble import FrozenPolicy, deployed_policy
from finflow.config import AveragingConfig, BCellConfig
from finflow.tensor_file import without_prefix


class PolicyAverage:
    """Average of a policy's weights over the end of training, which is validated, kept and deployed.

    Where the last updates scatter around a good policy, their mean is nearer to it than any. Until it begins, the
    average is the policy itself; ``count`` are the updates averaged over.

    References
    ----------
    Polyak and Juditsky (1992), Acceleration of Stochastic Approximation by Averaging.
    Izmailov et al. (2018), Averaging Weights Leads to Wider Optima and Better Generalization.
    """

    def __init__(self, config: AveragingConfig, policy: ExpertPolicy) -> None:
        self.config = config
        self.policy = copy.deepcopy(policy).requires_grad_(False)
        self.count = 0

    @torch.no_grad()
    def update(self, policy: ExpertPolicy, progress: float) -> None:
        """Add the policy after an update; ``progress`` is the share of the phase's updates, this one included."""
        if progress <= self.config.start:
            self.count = 0
            torch._foreach_copy_(list(self.policy.parameters()), list(policy.parameters()))
            return
        self.count += 1
        polyak_update(self.policy, policy, 1.0 / self.count if self.config.kind == "swa" else 1.0 - self.config.decay)

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {name: tensor.detach().clone() for name, tensor in self.policy.state_dict().items()}
        return tensors, {"count": self.count}

    def restore(self, tensors: Mapping[str, Tensor], state: dict[str, Any]) -> None:
        self.policy.load_state_dict(dict(tensors))
        self.count = int(state["count"])


class ActingAgent:
    """Networks, coefficients and optimisers of an agent, and its decisions; alone or in a blend with a reference.

    Parameters
    ----------
    generator : Generator
        Draws initial weights, on the CPU.
    networks : Networks, optional
        In place of those for portfolios.
    blocks : int, optional
        Blocks of the training years whose learners' policies are deployed together with this one's, in a blend.

    Attributes
    ----------
    policy, average : ExpertPolicy, PolicyAverage or None
        The policy learns and explores; the average, where there is one, decides in its place.
    prior, reference : ExpertPolicy, FrozenPolicy or None
        The policy as it was handed over; one from an agent's file that on-policy learning holds the policy to instead.
    blend, members : Tensor or None, ModuleList or None
        The blend, once decided on, and the policies of the blocks of the training years, which decide with this one.
    log_cql_alpha : Tensor or None
        None unless the weight of the conservative penalty is tuned.
    action_noise : Generator
        Of the random actions of `act`.
    feature_names : dict of list of str, or None
        Names of the features of the ``assets`` and of the ``market`` that it reads, where they are known.
    advantage_scale : float
        ``sigma_A``, the unit of the weights of anchor, entropy and CQL, in scaled rewards; 1 until it is measured.
    """

    def __init__(
        self,
        shape: NetworkShape,
        config: BCellConfig,
        generator: Generator,
        device: torch.device,
        networks: Networks | None = None,
        blocks: int | None = None,
    ) -> None:
        self.shape, self.config, self.device = shape, config, device
        self.advantage_scale = 1.0
        parts = networks or portfolio_networks(shape, config, generator)
        self.policy = parts.policy.to(device)
        self.critic = parts.critic.to(device)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.behaviour_value = parts.value.to(device).requires_grad_(False)
        self.prior = copy.deepcopy(self.policy).requires_grad_(False)
        self.average = None if config.averaging.kind == "none" else PolicyAverage(config.averaging, self.policy)
        self.reference: FrozenPolicy | None = None
        self.log_alpha = torch.tensor(math.log(config.alpha_init), device=device, requires_grad=True)
        self.policy_optimiser = make_optimiser(self.policy, config.actor_lr)
        self.critic_optimiser = make_optimiser(self.critic, config.critic_lr)
        self.alpha_optimiser = make_optimiser([self.log_alpha], config.alpha_lr)
        self.log_cql_alpha: Tensor | None = None
        self.cql_optimiser: SkippingAdam | None = None
        if config.cql_mode == "lagrange":
            self.log_cql_alpha = torch.tensor(math.log(config.cql_alpha), device=device, requires_grad=True)
            self.cql_optimiser = make_optimiser([self.log_cql_alpha], config.critic_lr)
        self.blend = None if blocks is None else no_blend(device)
        self.members: nn.ModuleList | None = None
        if blocks is not None:
            self.members = nn.ModuleList(copy.deepcopy(self.policy) for _ in range(blocks)).requires_grad_(False)
        self.action_noise = Generator(device=device).manual_seed(0)
        self.feature_names: dict[str, list[str]] | None = None

    def seed_from(self, learner: OfflineLearner) -> None:
        """Copy policy, critics and targets from the offline phase, bit for bit; the optimisers start afresh."""
        parts = {name: getattr(learner, name).state_dict() for name in ("policy", "critic", "target_critic", "value")}
        self.load_networks({f"{part}/{name}": t for part, state in parts.items() for name, t in state.items()})
        self.advantage_scale = learner.advantage_scale

    def load_networks(self, networks: Mapping[str, Tensor]) -> None:
        """Take over the networks of an offline learner, by their names there.

        The policy is from here on the pretrained one, and the first of the average.
        """
        for part in ("policy", "critic", "target_critic", "value"):
            own = self.behaviour_value if part == "value" else getattr(self, part)
            own.load_state_dict(without_prefix(networks, f"{part}/"))
        self.prior.load_state_dict(self.policy.state_dict())
        self.update_average(0.0)

    def update_average(self, progress: float) -> None:
        """Add the policy to its average, at a share of the online updates."""
        if self.average is not None:
            self.average.update(self.policy, progress)

    @property
    def deployed(self) -> ExpertPolicy:
        """Policy that is validated and deployed: the average, where there is one, with the members, in the blend."""
        policy = self.policy if self.average is None else self.average.policy
        return deployed_policy(policy, self.members or (), Blend.from_tensor(self.blend))

    @property
    def holds(self) -> str:
        """Holding in words: that of its own policy, or a blend with a reference."""
        return describe_holding(Blend.from_tensor(self.blend))

    def leave_blend(self) -> None:
        """Decide by the own policy alone: the evidence for a blend is about the policy as it was."""
        if self.blend is not None and Blend.from_tensor(self.blend) is not None:
            warnings.warn(
                f"this agent {self.holds}; it goes on learning and decides by its own policy now", stacklevel=3
            )
            self.blend.copy_(no_blend(self.device))

    @property
    def held_to(self) -> ExpertPolicy:
        """Policy that the penalty for leaving a reference is about."""
        return self.prior if self.reference is None else self.reference

    @torch.no_grad()
    def decide(self, states: States) -> Decision:
        """Decisions of the deployed policy, without gradients."""
        return self.deployed(states)

    @torch.no_grad()
    def explore(self, states: States, noise: Generator) -> Tensor:
        """Portfolios drawn from the policy, (batch, K)."""
        distribution = self.policy(states).distribution
        batch, dimensions = distribution.location.shape
        drawn, _ = distribution.sample(standard_normal((batch, 1, dimensions), noise, distribution.location))
        return drawn[:, 0]

    def act(self, observation: Mapping[str, Any], deterministic: bool = True) -> NDArray[np.float32]:
        """Target weights (K,) for an observation of the environment, or (batch, K) for a batch; cash last.

        Parameters
        ----------
        observation : mapping of arrays
            ``assets``, ``market``, ``portfolio``, as the single or the vector environment gives them.
        deterministic : bool
            The centre of the policy, or else a random action by the agent's own generator.
        """
        states = states_of(observation, self.device)
        if deterministic:
            weights = self.decide(states).distribution.centre()
        else:
            weights = self.explore(states, self.action_noise)
        chosen: NDArray[np.float32] = weights.cpu().numpy()
        return chosen if np.ndim(observation["market"]) == 2 else chosen[0]

    def explain(self, observation: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
        """Gate, portfolios of the experts and of a blend's reference, aim, trade rate and centre, a batch in front."""
        decision = self.decide(states_of(observation, self.device))
        shown = decision._asdict() | {"centre": decision.distribution.centre()}
        return {name: shown[name].cpu().numpy() for name in ("gate", "experts", "aim", "trade_rate", "centre")}
