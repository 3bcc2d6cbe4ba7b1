"""The B-Cell agent: its networks, optimisers and update in the online phase, and its file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from finflow.agent.batch import Batch
from finflow.agent.gradient_steps import (
    compute_gradients,
    cosine,
    gradient_step,
    polyak_update,
    set_learning_rate,
    step,
    update_precision,
)
from finflow.agent.learners.acting import ActingAgent
from finflow.agent.learners.offline_learner import make_policy
from finflow.agent.learners.soft_actor_critic import (
    Coefficients,
    Draws,
    Metrics,
    UpdatePoint,
    critics_losses,
    is_conservative,
    policy_losses,
)
from finflow.agent.losses.off_policy_losses import CoverageProposals
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.decision import Blend
from finflow.agent.networks.distributions import standard_normal
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.networks.policy_ensemble import deployed_policy, load_members
from finflow.config import BCellConfig
from finflow.errors import CheckpointError, one_line
from finflow.tensor_file import read_tensors, without_prefix, write_tensors

PREFIX = "bcell/"  # of an agent's tensors in a checkpoint of a training
LEARNER = "learner/"  # of those of the offline phase's learner
LEVEL_RATE = 0.2  # share of the values' mean error over several decisions that an update takes away


class BCell(ActingAgent):
    """Policy of five experts with its critics, trained by soft actor-critic."""

    def set_learning_rates(self, progress: float, ramp: float | None = None) -> None:
        """Set learning rates for a share of the online updates; ``ramp``, where given, multiplies the policy's."""
        decays = self.config.online_schedule == "cosine"
        if ramp is None and not decays:
            return
        actor, critic = (cosine(rate, progress * decays) for rate in (self.config.actor_lr, self.config.critic_lr))
        set_learning_rate(self.policy_optimiser, actor if ramp is None else actor * ramp)
        set_learning_rate(self.critic_optimiser, critic)

    def update_sac(
        self,
        batch: Batch,
        coverage: CoverageProposals | None = None,
        noise: Generator | None = None,
        update: int = 1,
        actor: bool = True,
        alpha: float | None = None,
        target: float | None = None,
        total: int = 1,
    ) -> dict[str, Tensor]:
        """Take one step of critics, policy and temperature down their losses: see `soft_actor_critic`.

        An agent in a blend with a reference leaves it, with a warning, when its policy learns.

        Parameters
        ----------
        coverage : CoverageProposals, optional
            For CQL, which without them, or where its weight is zero, has no penalty.
        noise : Generator, optional
            Draws the actions; by default the agent's own, which also draws those of `act`.
        update, total : int
            Updates done before this one, and all of them; by default schedules are at their end.
        actor : bool
            False right after the hand-over, when only the critics learn.
        alpha, target : float, optional
            Scheduled entropy coefficient and target entropy, in place of the tuned one and of ``bcell.target_entropy``.

        Returns
        -------
        dict of Tensor, ()
        """
        if actor:
            self.leave_blend()
        noise, point = noise or self.action_noise, UpdatePoint(update, total, alpha, target)
        with update_precision(batch.rewards.device, self.config.mixed_precision):
            coefficients = Coefficients.of(self, batch.actions, batch.states, point)
            size = (len(batch.actions), self.policy.coordinate_count(batch.actions))
            drawn = standard_normal(size, noise, batch.actions)
            draws = Draws.of(self, batch, noise, is_conservative(self.config, coverage))
            encoding = self.critic.encode(batch.states)
            critics = critics_losses(self, batch, coverage, draws, coefficients, point, encoding)
            compute_gradients(critics.loss, self.critic_optimiser)
            metrics: Metrics = {}
            if actor:  # by the critics as they are before their step
                loss, temperature, metrics = policy_losses(self, batch, drawn, coefficients, point, encoding, noise)
                compute_gradients(loss, self.policy_optimiser)
                metrics |= self.step_policy(temperature, point)
                self.update_average(point.progress)
            return critics.metrics | self.step_critics(critics.cql_weight) | metrics | self.logged(coefficients)

    def step_policy(self, temperature: Tensor, point: UpdatePoint) -> Metrics:
        """Step along the policy's computed gradients, and tune the temperature down its loss where it is tuned."""
        if point.alpha is None and self.config.alpha_mode == "auto":
            gradient_step(temperature, self.alpha_optimiser)
        return {"policy_gradient": step(self.policy_optimiser, self.config.gradient_norm)}

    def step_critics(self, cql_weight: Tensor | None) -> Metrics:
        """Step along the critics' computed gradients, tune the penalty's weight, and move the targets."""
        if cql_weight is not None and self.cql_optimiser is not None:
            gradient_step(cql_weight, self.cql_optimiser)
        norm = step(self.critic_optimiser, self.config.gradient_norm)
        polyak_update(self.target_critic, self.critic, self.config.tau)
        return {"critic_gradient": norm}

    @torch.no_grad()
    def move_level(self, error: Tensor, point: UpdatePoint) -> None:
        """Move all values by a share of their mean error, (), over several decisions (Naik et al. 2024).

        Most of a value over a hundred decisions is the same in all states, and learned by weights for hundreds of
        updates. An error that is not finite moves nothing, as its gradient does not.
        """
        rate = LEVEL_RATE if self.config.online_schedule == "constant" else cosine(LEVEL_RATE, point.progress)
        for critic in (self.critic, self.target_critic):
            critic.level.add_(rate * error.nan_to_num(0.0, 0.0, 0.0))

    def logged(self, coefficients: Coefficients) -> Metrics:
        return {
            "alpha": coefficients.alpha,
            "advantage_scale": coefficients.alpha.new_tensor(self.advantage_scale),
            "effective_alpha": coefficients.effective_alpha,
        }

    def save(self, path: str | Path) -> None:
        """Write the agent as one verified safetensors file."""
        facts = {"shape": self.shape._asdict(), "bcell": self.config.model_dump(mode="json")}
        if self.feature_names is not None:
            facts["features"] = self.feature_names
        write_tensors(Path(path), self.state_dict(), facts)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> BCell:
        """Read an agent from its own file or from any checkpoint of a training.

        From one of the offline phase the networks are taken as the online phase would take them. A CheckpointError if
        the file is missing, damaged, or holds no B-Cell agent.
        """
        saved = SavedAgent.of(Path(path), *read_tensors(Path(path)))
        if "log_alpha" not in saved.tensors:
            raise CheckpointError(f"{path} holds no B-Cell agent; give a checkpoint of a training")
        members = {name.partition(".")[0] for name in saved.part("members")}
        blocks = len(members) if "blend" in saved.tensors else None
        agent = cls(saved.shape, saved.config, Generator(), torch.device(device), blocks=blocks)
        agent.feature_names = saved.features
        agent.load_state_dict(saved.tensors, str(path))
        return agent

    def load_state_dict(self, tensors: Mapping[str, Tensor], origin: str = "the state") -> None:
        """Take over what `state_dict` gave; a CheckpointError, before anything changes, where it does not fit."""
        own = self.state_dict()
        for name, tensor in own.items():
            if name not in tensors or tensors[name].shape != tensor.shape:
                raise CheckpointError(f"{origin} does not fit this finflow: {name} is missing or has another shape")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(tensors[name])
        if self.members is None:
            self.prior.load_state_dict(self.policy.state_dict())

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors of all networks and coefficients, by name; they go on to learn with the agent."""
        networks: dict[str, nn.Module] = {"policy": self.policy, "critic": self.critic}
        networks |= {"target_critic": self.target_critic, "behaviour_value": self.behaviour_value}
        if self.members is not None:
            networks |= {"members": self.members, "prior": self.prior}
        if self.average is not None:
            networks["average"] = self.average.policy
        tensors = {f"{part}/{name}": t for part, one in networks.items() for name, t in one.state_dict().items()}
        single = {"log_alpha": self.log_alpha, "blend": self.blend, "log_cql_alpha": self.log_cql_alpha}
        return tensors | {name: tensor for name, tensor in single.items() if tensor is not None}


class SavedAgent(NamedTuple):
    """Networks and settings of an agent, from its own file or from a checkpoint of either phase of a training.

    ``tensors`` have the names that an agent gives them, and others of the checkpoint as they are.
    """

    path: Path
    tensors: dict[str, Tensor]
    shape: NetworkShape
    config: BCellConfig
    features: dict[str, list[str]] | None

    @classmethod
    def of(cls, path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> SavedAgent:
        """Raise CheckpointError if they describe no agent."""
        try:
            config, shape = BCellConfig(**facts["bcell"]), NetworkShape.from_facts(facts["shape"])
            largest = max((tensor.numel() for tensor in tensors.values()), default=0)
            if max(shape.hidden, shape.n_asset_features, shape.n_market_features) > largest:
                raise ValueError("no network of the sizes that it says")
        except (LookupError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path} does not say how its agent is configured ({one_line(error)}); use another checkpoint"
            ) from error
        return cls(path, _agent_tensors(tensors, config), shape, config, facts.get("features"))

    def part(self, name: str) -> dict[str, Tensor]:
        return without_prefix(self.tensors, f"{name}/")

    def policy(self, device: torch.device) -> ExpertPolicy:
        """The policy as it is deployed: the average, where there is one, with the blocks' policies, in a blend.

        Raises CheckpointError if there is none that fits.
        """
        policy = make_policy(self.shape, self.config, Generator()).to(device)
        try:
            policy.load_state_dict(self.part("average") or self.part("policy"))
            members = load_members(policy, self.part("members"))
            return deployed_policy(policy, members, Blend.from_tensor(self.tensors.get("blend")))
        except (RuntimeError, ValueError, TypeError, LookupError) as error:
            raise CheckpointError(
                f"the policy in {self.path} does not fit this finflow ({one_line(error)}); use the one that wrote it"
            ) from error

    def carry_over(self, agent: BCell) -> None:
        """Load the networks into another agent; of a policy and its average the average, which was validated there.

        Raises CheckpointError if a network is missing or does not fit.
        """
        parts = {name: self.part(name) for name in ("critic", "target_critic")}
        parts |= {"policy": self.part("average") or self.part("policy"), "value": self.part("behaviour_value")}
        try:
            agent.load_networks({f"{part}/{name}": t for part, state in parts.items() for name, t in state.items()})
        except (RuntimeError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"the networks in {self.path} do not fit the configuration ({one_line(error)}); leave "
                "bcell.n_quantiles and bcell.hidden_dim as they were"
            ) from error


def _agent_tensors(tensors: Mapping[str, Tensor], config: BCellConfig) -> dict[str, Tensor]:
    """Tensors of a file by an agent's names.

    Of a checkpoint of the offline phase, the coefficients that are tuned online, and the average, are those that the
    online phase begins with.
    """
    agent = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    learner = without_prefix(tensors, LEARNER)
    if learner and "log_alpha" not in agent:
        agent |= {name: tensor for name, tensor in learner.items() if not name.startswith("value/")}
        agent |= {f"behaviour_value/{name}": tensor for name, tensor in without_prefix(learner, "value/").items()}
        agent |= {f"average/{name}": tensor for name, tensor in without_prefix(learner, "policy/").items()}
        for name, coefficient in (("log_alpha", config.alpha_init), ("log_cql_alpha", config.cql_alpha)):
            agent[name] = torch.tensor(math.log(max(coefficient, 1e-30)))
    return agent
