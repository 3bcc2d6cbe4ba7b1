"""The B-Cell agent online: distributional soft actor-critic with calibrated CQL, seeded from IQL.

References
----------
Haarnoja et al. (2018), Soft Actor-Critic Algorithms and Applications.
Kuznetsov et al. (2020), Truncated Quantile Critics.
Kumar et al. (2020), Conservative Q-Learning. Nakamoto et al. (2023), Cal-QL.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.anchor import anchor_loss, anchor_weight
from finflow.agent.averaging import PolicyAverage
from finflow.agent.batch import Batch, States
from finflow.agent.climbing import linear_in
from finflow.agent.critic import CriticEnsemble, NetworkShape, ValueNetwork
from finflow.agent.losses import (
    actor_loss,
    bellman_target,
    conservative_loss,
    mean_loss,
    pessimistic_value,
    pinball_loss,
    temperature_loss,
)
from finflow.agent.networks import Encoding
from finflow.agent.offline_learner import OfflineLearner, trade_range
from finflow.agent.optimisation import CarefulAdam, descend, follow, freeze, make_optimiser
from finflow.agent.policy import Decision, ExpertPolicy
from finflow.agent.simplex import standard_normal
from finflow.config import BCellConfig
from finflow.errors import CheckpointError
from finflow.tensor_file import read_tensors, write_tensors

TRUNCATION_UPDATES = 2000  # over which the truncation of top quantiles is switched on, from IQL's none


class CoverageProposals(NamedTuple):
    """Proposals for CQL from the coverage mixture, with their log densities.

    Attributes
    ----------
    portfolios : Tensor, (batch, P, K)
    log_density : Tensor, (batch, P)
    """

    portfolios: Tensor
    log_density: Tensor


class AgentNetworks(NamedTuple):
    """The networks of an agent, or what answers the same calls on another task."""

    policy: ExpertPolicy
    critic: CriticEnsemble
    value: ValueNetwork


class BCell:
    """Five experts, their critics, and one update.

    Parameters
    ----------
    shape : NetworkShape
    config : BCellConfig
    generator : Generator
        Draws initial weights, on the CPU.
    device : torch.device
    networks : AgentNetworks, optional
        In place of those that decide on portfolios: see `box_sac`.
    """

    def __init__(
        self,
        shape: NetworkShape,
        config: BCellConfig,
        generator: Generator,
        device: torch.device,
        networks: AgentNetworks | None = None,
    ) -> None:
        self.shape = shape
        self.config = config
        self.device = device
        parts = networks or AgentNetworks(
            ExpertPolicy(shape, generator, config.dropout, trade_range(config)),
            CriticEnsemble(shape, config.n_critics, config.n_quantiles, generator, config.dropout),
            ValueNetwork(shape, generator),
        )
        self.policy = parts.policy.to(device)
        self.critic = parts.critic.to(device)
        self.target_critic = copy.deepcopy(self.critic)
        self.behaviour_value = parts.value.to(device)
        self.prior = copy.deepcopy(self.policy)
        self.average = PolicyAverage.of(config.averaging, self.policy)
        freeze([self.target_critic, self.behaviour_value, self.prior])
        self.log_alpha = torch.tensor(math.log(config.alpha_init), device=device, requires_grad=True)
        self.policy_optimiser = make_optimiser(self.policy, config.actor_lr, config.weight_decay)
        self.critic_optimiser = make_optimiser(self.critic, config.critic_lr, config.weight_decay)
        self.alpha_optimiser = CarefulAdam([self.log_alpha], lr=config.alpha_lr, fused=True)
        self.action_noise = Generator(device=device).manual_seed(0)

    def seed_from(self, learner: OfflineLearner) -> None:
        """Take policy, critics and targets over from the offline phase, bit for bit; the optimisers start afresh."""
        self.policy.load_state_dict(learner.policy.state_dict())
        self.critic.load_state_dict(learner.critic.state_dict())
        self.target_critic.load_state_dict(learner.target_critic.state_dict())
        self.behaviour_value.load_state_dict(learner.value.state_dict())
        self.prior.load_state_dict(learner.policy.state_dict())
        self.follow_average(0.0)

    @property
    def deployed(self) -> ExpertPolicy:
        """The policy that decides where it counts: the average, where there is one."""
        return self.policy if self.average is None else self.average.policy

    def follow_average(self, progress: float) -> None:
        """Take an update into the average, at a share of the online updates."""
        if self.average is not None:
            self.average.follow(self.policy, progress)

    @torch.no_grad()
    def decide(self, states: States) -> Decision:
        """Decisions and what led to them."""
        decision: Decision = self.deployed(states)
        return decision

    @torch.no_grad()
    def explore(self, states: States, noise: Generator) -> Tensor:
        """Portfolios drawn from the policy, (batch, K)."""
        distribution = self.policy(states).distribution
        batch, dimensions = distribution.location.shape
        drawn, _ = distribution.sample(standard_normal((batch, 1, dimensions), noise, distribution.location))
        portfolios: Tensor = drawn[:, 0]
        return portfolios

    def update_sac(
        self,
        batch: Batch,
        coverage: CoverageProposals | None,
        noise: Generator,
        update: int,
        actor: bool = True,
        alpha: float | None = None,
        target: float | None = None,
    ) -> dict[str, Tensor]:
        """One update of critics, policy and temperature.

        Parameters
        ----------
        batch : Batch
        coverage : CoverageProposals, optional
            For CQL; none are needed, and none are drawn from the policy, where its weight is zero.
        noise : Generator
            Draws the actions.
        update : int
            Updates done before this one.
        actor : bool
            Whether the policy learns too: right after the hand-over only the critics do.
        alpha : float, optional
            A scheduled entropy coefficient, in place of the tuned one.
        target : float, optional
            A scheduled target entropy, in place of ``bcell.target_entropy``.

        Returns
        -------
        dict of Tensor, ()
        """
        config, states = self.config, batch.states
        dropout_noise = noise if config.dropout > 0.0 else None
        decision = self.policy(states, dropout_noise)
        with torch.no_grad():
            next_distribution = self.policy(batch.next_states).distribution
        size, dimensions = next_distribution.location.shape
        conservative = coverage is not None and config.cql_alpha > 0.0
        draws = (size, 1 + config.cql_samples * int(conservative), dimensions)
        drawn, log_density = decision.distribution.sample(standard_normal(draws, noise, batch.actions))
        next_drawn, next_log_density = next_distribution.sample(standard_normal(draws, noise, batch.actions))

        goal, samples = self._targets(batch, next_drawn[:, :1], update)
        encoding = self.critic.encode(states)
        proposals = None
        if coverage is not None and conservative:
            proposals = CoverageProposals(
                torch.cat([coverage.portfolios, drawn[:, 1:].detach(), next_drawn[:, 1:]], dim=1),
                torch.cat([coverage.log_density, log_density[:, 1:].detach(), next_log_density[:, 1:]], dim=1),
            )
        critic_loss, metrics = self._critic_loss(batch, encoding, proposals, goal, samples, dropout_noise)
        temperature = self.log_alpha.detach().exp() if alpha is None else torch.tensor(alpha, device=self.device)
        if actor:
            policy_loss, entropy = self._policy_loss(
                states, encoding.detach(), drawn[:, :1], log_density[:, 0], temperature
            )
            anchor = anchor_weight(config.anchor, update)
            if anchor > 0.0:
                held = anchor_loss(config.anchor, decision, batch, self.prior)
                policy_loss = policy_loss + anchor * held
                metrics["anchor_loss"] = held.detach()
        metrics["critic_gradient"] = descend(critic_loss, self.critic_optimiser, config.gradient_norm)
        if actor:
            metrics["policy_gradient"] = descend(policy_loss, self.policy_optimiser, config.gradient_norm)
            metrics |= {"actor_loss": policy_loss.detach(), "entropy": entropy}
            metrics |= decision.figures()
            if alpha is None and config.alpha_mode == "auto":
                self._update_alpha(log_density[:, 0], dimensions, config.target_entropy if target is None else target)
        metrics["alpha"] = temperature
        follow(self.target_critic, self.critic, config.tau)
        return metrics

    def _targets(self, batch: Batch, next_actions: Tensor, update: int) -> tuple[Tensor, Tensor]:
        """Targets of m, (B,), and samples for q, (E, B, n); entropy is left out of the backup."""
        config, next_states = self.config, batch.next_states
        with torch.no_grad():
            ahead = self.target_critic.value(self.target_critic.encode(next_states), next_states, next_actions)
            spread = ahead.spread[:, :, 0]
            share = min(update / TRUNCATION_UPDATES, 1.0)
            dropped = min(config.dropped_quantiles, config.n_quantiles - 1)
            next_value = pessimistic_value(ahead.mean[..., 0], spread, dropped, share)
            target = bellman_target(batch.rewards, batch.terminated, next_value, config.gamma)
            samples = target.unsqueeze(-1) + config.gamma * (1.0 - batch.terminated).unsqueeze(-1) * spread
        return target, samples

    def _critic_loss(
        self,
        batch: Batch,
        encoding: Encoding,
        proposals: CoverageProposals | None,
        target: Tensor,
        samples: Tensor,
        noise: Generator | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Squared loss of m, pinball loss of q and the conservative penalty, from one encoding of the states."""
        portfolios = batch.actions.unsqueeze(1)
        if proposals is not None:
            portfolios = torch.cat([portfolios, proposals.portfolios], dim=1)
        valuation = self.critic.value(encoding, batch.states, portfolios, noise=noise)
        data = valuation.mean[..., 0]
        q_loss = mean_loss(data, target)
        quantile_loss = torch.zeros_like(q_loss)
        if self.config.n_quantiles > 1:
            quantile_loss = pinball_loss(valuation.quantiles[:, :, 0], samples)
        loss = q_loss + quantile_loss
        metrics = {
            "q_loss": q_loss.detach(),
            "quantile_loss": quantile_loss.detach(),
            "q": data.mean().detach(),
            "q_largest": data.detach().abs().max(),
        }
        if proposals is None:
            return loss, metrics
        count = proposals.portfolios.shape[1]
        policy_drawn = torch.arange(count, device=data.device) >= self.config.cql_samples
        penalty = conservative_loss(
            valuation.mean[..., 1:],
            proposals.log_density,
            data,
            policy_drawn,
            batch.calibrations,
            n_dimensions=self.policy.free_dimensions(batch.actions),
        )
        return loss + self.config.cql_alpha * penalty, metrics | {"cql_loss": penalty.detach()}

    def _policy_loss(
        self, states: States, encoding: Encoding, drawn: Tensor, log_density: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The actor's loss, with gradients through the action and none for the critics."""
        value = linear_in(
            drawn, lambda action: self.critic.value(encoding, states, action, with_quantiles=0).mean.min(dim=0).values
        )
        dimensions = self.policy.free_dimensions(drawn)
        return actor_loss(log_density, value[:, 0], alpha, dimensions), -log_density.mean().detach()

    def _update_alpha(self, log_density: Tensor, dimensions: int, share: float) -> None:
        """Move the temperature so that the policy's entropy comes to its target."""
        target = self.policy.target_entropy(share, dimensions)
        loss = temperature_loss(self.log_alpha, log_density, target, dimensions)
        self.alpha_optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.alpha_optimiser.beware(loss)
        self.alpha_optimiser.step()

    def act(self, observation: Mapping[str, Any], deterministic: bool = True) -> NDArray[np.float32]:
        """Target weights for an observation of the environment, or for a batch of them.

        Parameters
        ----------
        observation : mapping of arrays
            ``assets``, ``market``, ``portfolio``, as the single or the vector environment gives them.
        deterministic : bool
            The centre of the policy; otherwise a draw from it, by the agent's own generator.

        Returns
        -------
        array, (K,) or (batch, K)
            On the simplex, cash last.
        """
        states = states_of(observation, self.device)
        if deterministic:
            weights = self.decide(states).distribution.centre()
        else:
            weights = self.explore(states, self.action_noise)
        chosen: NDArray[np.float32] = weights.cpu().numpy()
        return chosen if np.ndim(observation["market"]) == 2 else chosen[0]

    def explain(self, observation: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
        """Gate, the five portfolios, aim, trade rate and centre behind a decision, each with a batch in front."""
        decision = self.decide(states_of(observation, self.device))
        shown = decision._asdict() | {"centre": decision.distribution.centre()}
        return {name: shown[name].cpu().numpy() for name in ("gate", "experts", "aim", "trade_rate", "centre")}

    def save(self, path: str | Path) -> None:
        """Write the agent as one verified safetensors file."""
        state = {"shape": self.shape._asdict(), "bcell": self.config.model_dump(mode="json")}
        write_tensors(Path(path), {name: part for name, part in self._tensors()}, state)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> BCell:
        """Read an agent from its own file or from a training's checkpoint of the online phase.

        Raises
        ------
        CheckpointError
            If the file is missing, damaged, or holds no B-Cell agent.
        """
        tensors, state = read_tensors(Path(path))
        shape = state.get("shape", {})
        own = {name.removeprefix("bcell/"): t for name, t in tensors.items()}
        if "log_alpha" not in own or "bcell" not in state:
            raise CheckpointError(f"{path} holds no B-Cell agent; give a checkpoint of the online phase")
        largest = max(tensor.numel() for tensor in own.values())
        try:
            lenses = tuple(tuple(int(column) for column in lens) for lens in shape["lenses"])
            sizes = NetworkShape(shape["n_asset_features"], shape["n_market_features"], shape["hidden"], lenses)
            if not all(type(size) is int and 0 < size <= largest for size in sizes[:3]):
                raise ValueError("its sizes are none")
            agent = cls(sizes, BCellConfig(**state["bcell"]), Generator(), torch.device(device))
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:120]
            raise CheckpointError(f"{path} does not fit this finflow: it describes no agent ({reason})") from error
        with torch.no_grad():
            for name, tensor in agent._tensors():
                if name not in own or own[name].shape != tensor.shape:
                    raise CheckpointError(f"{path} does not fit this finflow: {name} is missing or has another shape")
                tensor.copy_(own[name])
        agent.prior.load_state_dict(agent.policy.state_dict())
        return agent

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What the agent has learned, by name, as training checkpoints name it."""
        for part in ("policy", "critic", "target_critic", "behaviour_value"):
            for name, tensor in getattr(self, part).state_dict().items():
                yield f"{part}/{name}", tensor
        if self.average is not None:
            for name, tensor in self.average.policy.state_dict().items():
                yield f"average/{name}", tensor
        yield "log_alpha", self.log_alpha


def states_of(observation: Mapping[str, Any], device: torch.device) -> States:
    """An observation of the environment, single or batched, as states."""
    batched = np.ndim(observation["market"]) == 2
    arrays = (np.asarray(observation[name], dtype=np.float32) for name in ("assets", "market", "portfolio"))
    assets, market, portfolio = (torch.as_tensor(array if batched else array[None], device=device) for array in arrays)
    return States(assets, market, portfolio, complete=bool((np.asarray(observation["assets"])[..., -1] > 0.5).all()))
