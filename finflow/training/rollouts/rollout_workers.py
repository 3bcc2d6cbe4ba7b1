"""Rollouts by workers: the portfolios of a vector environment in fixed parts, each stepped in another process.

The parts are fixed by the configuration and not by the number of workers, and each has its own generators, seeded by
the environment's. So every number of workers gives the same bits. They are not those of one process that steps all
portfolios together: its portfolios draw from one generator in turn, and matrix products and the equations of trades are
solved for all of them at once, which rounds otherwise for fewer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import Config
from finflow.env.portfolio_state import join_states
from finflow.env.rewards.chosen_reward import with_reward
from finflow.env.rewards.reward_queue import SentRewards, with_builtin_reward
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.training.data.replay import MarketTensors
from finflow.training.rollouts.rollout_steps import Reference, RolloutDecisions, decide, join_decisions, start_groups
from finflow.worker_pool import OrderedPool

KEY = "train.rollout_workers"
PARTS = 4  # at most; each more is another call of the networks
CPU = torch.device("cpu")
Arrays = dict[str, NDArray[Any]]


class WorkerMarket(NamedTuple):
    """Environments and networks of every worker.

    Attributes
    ----------
    config : Config
    env : PortfolioVectorEnv
        Of one part; its process has the built-in reward.
    rewards : SentRewards or None
        The chosen reward.
    policy : ExpertPolicy
        Of the policy's shape; each call brings the parameters.
    """

    config: Config
    env: PortfolioVectorEnv
    rewards: SentRewards | None
    policy: ExpertPolicy


class PortfolioPart(NamedTuple):
    """Portfolios that a worker steps.

    Attributes
    ----------
    arrays : dict of array
        State of their environments.
    seeds : tuple of int
        Of the environments' generator and of the actions'.
    policy : dict of array
        Parameters.
    reference : tuple or None
        Parameters of the reference, and its beta.
    steps : int
    """

    arrays: Arrays
    seeds: tuple[int, int]
    policy: Arrays
    reference: tuple[Arrays, float] | None
    steps: int


class PartDecisions(NamedTuple):
    """Decisions of a part, tensors as arrays, and the state of its environments after them."""

    decisions: RolloutDecisions
    arrays: Arrays


def count_parts(config: Config) -> int:
    """Number of parts that the portfolios are stepped in: the largest up to four that keeps groups whole."""
    online = config.online
    units = online.portfolios // (online.group_size if online.advantages == "group" else 1)
    return next(count for count in range(PARTS, 0, -1) if units % count == 0)


class RolloutWorkers:
    """Steps the portfolios of an environment in other processes.

    Parameters
    ----------
    pool : OrderedPool
        Of `decide_part`.
    config : Config
    """

    def __init__(self, pool: OrderedPool[PartDecisions], config: Config) -> None:
        self._pool = pool
        self._config = config

    def decide(
        self,
        env: PortfolioVectorEnv,
        policy: ExpertPolicy,
        steps: int,
        reference: Reference | None,
        device: torch.device,
    ) -> RolloutDecisions:
        """Step the environments so many times by actions drawn from a policy, as `rollout_steps.decide` does.

        Raises
        ------
        TrainingError
            If a reward cannot be computed, or workers are lost again and again.
        """
        parts = count_parts(self._config)
        size = env.num_envs // parts
        arrays, _ = env.get_state()
        seeds = env.np_random.integers(2**63, size=(parts, 2))
        sent = parameters_of(policy)
        held = None if reference is None else (parameters_of(reference.policy), reference.beta)
        try:
            for part in range(parts):
                rows = slice(part * size, (part + 1) * size)
                own = {name: array[rows] for name, array in arrays.items()}
                self._pool.submit(PortfolioPart(own, (int(seeds[part, 0]), int(seeds[part, 1])), sent, held, steps))
            results = self._pool.results()
        except BaseException:
            self._pool.discard()
            raise
        joined = {name: np.concatenate([one.arrays[name] for one in results]) for name in arrays}
        env.set_state(joined, dict(env.np_random.bit_generator.state))
        decided = [one.decisions.map_tensors(torch.tensor) for one in results]  # arrays of Ray cannot be written to
        states = [join_states(of_step) for of_step in zip(*(part.states for part in decided), strict=True)]
        return join_decisions(decided, states, dim=1).map_tensors(lambda tensor: tensor.to(device))


@contextmanager
def rollout_workers(env: PortfolioVectorEnv, policy: ExpertPolicy, config: Config) -> Iterator[RolloutWorkers | None]:
    """Start workers that step the environments' portfolios; None without ``train.rollout_workers``."""
    workers = config.train.rollout_workers
    if workers == 0:
        yield None
        return
    size = env.num_envs // count_parts(config)
    plain, rewards = with_builtin_reward(env.process), SentRewards.of(env.process.reward)
    own = PortfolioVectorEnv(plain, env.window, size, env.episode_length, env.random_portfolios, env.worlds)
    shared = WorkerMarket(config, own, rewards, copy.deepcopy(policy).cpu())
    with OrderedPool(decide_part, shared, workers, KEY, config.train.threads) as pool:
        yield RolloutWorkers(pool, config)


class _WorkerState(NamedTuple):
    """Environments and networks as a worker uses them."""

    env: PortfolioVectorEnv
    market: MarketTensors
    policy: ExpertPolicy
    reference: ExpertPolicy


_ready: tuple[WorkerMarket, _WorkerState] | None = None


def decide_part(shared: WorkerMarket, part: PortfolioPart) -> PartDecisions:
    """Take the decisions of a part of the portfolios in a worker.

    Raises
    ------
    TrainingError
        If a reward raises, or returns what cannot be used.
    """
    worker, online = _worker_state(shared), shared.config.online
    env = worker.env
    env.set_state(part.arrays, dict(np.random.default_rng(part.seeds[0]).bit_generator.state))
    set_parameters(worker.policy, part.policy)
    reference = None
    if part.reference is not None:
        set_parameters(worker.reference, part.reference[0])
        reference = Reference(worker.reference, part.reference[1])
    if online.advantages == "group":
        start_groups(env, online)
    generator = Generator().manual_seed(part.seeds[1])
    decisions = decide(env, worker.policy, worker.market, generator, part.steps, reference)
    arrays, _ = env.get_state()
    return PartDecisions(decisions.map_tensors(Tensor.numpy), arrays)


def _worker_state(shared: WorkerMarket) -> _WorkerState:
    """Environments and networks, made once in each worker."""
    global _ready
    if _ready is None or _ready[0] is not shared:
        env = copy.copy(shared.env)
        if shared.rewards is not None:
            env.process = with_reward(env.process, shared.rewards.restored())
        market = MarketTensors.of(env.process, CPU)
        _ready = shared, _WorkerState(env, market, copy.deepcopy(shared.policy), copy.deepcopy(shared.policy))
    return _ready[1]


def parameters_of(policy: ExpertPolicy) -> Arrays:
    """Parameters of a policy as arrays, by name."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in policy.state_dict().items()}


def set_parameters(policy: ExpertPolicy, parameters: Arrays) -> None:
    """Give a policy other parameters."""
    policy.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in parameters.items()})
