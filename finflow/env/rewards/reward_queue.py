"""Rewards computed by workers while decisions go on: a queue in place of a process's reward.

No decision and no state depends on a reward that was chosen by name: what an observation holds of rewards are moments
of returns. So where rewards are learned from only after many decisions, as in a rollout or in collected behaviour,
they can come later. Each is computed from the same batch by the same code as in this process, and so has the same bits.
"""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, Generic, NamedTuple, Self, TypeVar

from array_api_compat import array_namespace

from finflow.env.decision_process import DecisionProcess
from finflow.env.objective import COMPONENTS
from finflow.env.reward_context import LazyObservation, Reward, RewardContext
from finflow.env.rewards.chosen_reward import RewardSum, checked, computed, user_reward, with_reward
from finflow.worker_pool import LocalWorkers, RayWorkers, WorkerLostError

R = TypeVar("R")
KEY = "objectives.workers"
WAITING = 4  # pending calls per local worker


class OrderedPool(Generic[R]):
    """Calls of one function in other processes: of a cluster where this one is a task of it, else of this machine.

    ``function``: of the top level of a module, called as ``function(shared, *arguments)``, and again with the same
    arguments where its process was killed. ``shared``: given to each process once; picklable.
    """

    def __init__(self, function: Callable[..., R], shared: Any, workers: int, threads: int = 1) -> None:
        ray = sys.modules.get("ray")
        self._workers: LocalWorkers | RayWorkers
        if ray is not None and ray.is_initialized():
            self._workers, self._most = RayWorkers(ray, function, shared, threads), workers
        else:
            environment = {"OMP_NUM_THREADS": str(threads)}
            self._workers = LocalWorkers(function, shared, workers, lambda place: environment)
            self._most = WAITING * workers
        self._pending: deque[Any] = deque()
        self._results: list[R] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.close()

    def submit(self, *arguments: Any) -> None:
        """Submit a call; waits while too many others are pending, and may raise what `results` raises."""
        self._collect(keep=self._most - 1)
        self._pending.append(self._workers.submit(KEY, *arguments))

    def results(self) -> list[R]:
        """Wait for all calls; their results since the last time, in the order of the calls.

        Raises the exception of the earliest call that failed; a `TrainingError` where its process is lost again and
        again.
        """
        self._collect(keep=0)
        results, self._results = self._results, []
        return results

    def _collect(self, keep: int) -> None:
        """Wait for the earliest calls while more than ``keep`` are pending."""
        while len(self._pending) > keep:
            try:
                self._results.append(self._workers.result(self._pending.popleft()))
            except WorkerLostError as error:
                raise WorkerLostError(f"{KEY}: {error}") from error


class WorkersMarket(NamedTuple):
    """Market of every worker, with the built-in reward, and name and reward of each term.

    None is in place of a user's reward, which each worker imports by its name.
    """

    process: DecisionProcess
    rewards: tuple[tuple[str, Reward | None], ...]


class RewardQueue:
    """A sum of rewards, some of which the workers of a pool compute, in place of a decision process's reward.

    Components of a step are not a number until `collect` brings them.
    """

    def __init__(self, rewards: RewardSum, pool: OrderedPool[Any]) -> None:
        self.rewards = rewards
        self.names, self.horizon = rewards.names, rewards.horizon
        self.log_return_weight = rewards.log_return_weight
        self._pool = pool
        self._steps: list[tuple[RewardContext, list[Any]]] = []  # components of each term, None where a worker's

    def components(self, context: RewardContext) -> Any:
        """Hand a step to the workers; (batch, components) of what is not a number."""
        parts = []
        for place, term in enumerate(self.rewards.terms):
            parts.append(None if term.slow else term.components(context))
            if term.slow:
                sent = replace(term.visible_context(context), observe=LazyObservation(None, context.observe.state))
                self._pool.submit(place, sent)
        self._steps.append((context, parts))
        xp = array_namespace(context.weights)
        return xp.full((len(context.bar), len(self.names)), xp.nan)

    def collect(self) -> list[Any]:
        """Wait for the rewards of all steps since the last time, (batch,) each, in their order.

        `TrainingError` if a reward raised, or returned what cannot be used, or workers are lost again and again.
        """
        values = iter(self._pool.results())
        steps, self._steps = self._steps, []
        rewards = []
        for context, parts in steps:
            terms = zip(self.rewards.terms, parts, strict=True)
            known = [term.weighted(next(values), context) if part is None else part for term, part in terms]
            xp = array_namespace(context.weights)
            rewards.append(xp.sum(xp.concat(known, axis=-1), axis=-1))
        return rewards


@contextmanager
def queued_rewards(
    process: DecisionProcess, workers: int, threads: int = 1
) -> Iterator[tuple[DecisionProcess, RewardQueue | None]]:
    """The same market with rewards that workers compute, with threads each, and their queue.

    Without workers, or a reward that they would compute, there is no queue and the process is as it was.
    """
    rewards = process.reward
    if workers == 0 or not isinstance(rewards, RewardSum) or not any(term.slow for term in rewards.terms):
        yield process, None
        return
    sent = tuple((term.name, None if ":" in term.name else term.reward) for term in rewards.terms)
    plain = copy.copy(process)  # decides at the same bars, with the built-in reward
    plain.reward, plain.reward_names = None, COMPONENTS
    with OrderedPool(compute, WorkersMarket(plain, sent), workers, threads) as pool:
        queue = RewardQueue(rewards, pool)
        yield with_reward(process, queue), queue


_imported = cache(user_reward)  # made once in each worker


def compute(market: WorkersMarket, place: int, context: RewardContext) -> Any:
    """Compute a reward in a worker, (batch,)."""
    name, given = market.rewards[place]
    reward = _imported(name) if given is None else given
    context = replace(context, observe=LazyObservation(market.process, context.observe.state))
    return checked(name, computed(name, reward, context), context)
