"""Units of the learners' rewards: in excess of a reference, over one fixed scale; normalised on request.

Portfolios of one bar share the return of the market. The reference is the return of equal weight over the same bar: no
action changes it, so subtracting it changes no comparison between actions and no best policy, and removes most of the
noise from the critics' targets.

References
----------
Dietterich, Trimponias and Chen (2018), Discovering and Removing Exogenous State Variables and Rewards for
Reinforcement Learning, theorem 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.arrays import FloatArray
from finflow.config import Config
from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import equal_weight_log_returns
from finflow.env.rewards.chosen_reward import BUILTIN, RANKING, Made, RewardSum, named_rewards, with_reward
from finflow.errors import ConfigError, MarketError
from finflow.preferences.preference_reward import PREFERENCE, PreferenceReward
from finflow.training.data.reward_normalizer import RewardNormalizer


class RewardUnits(NamedTuple):
    """Conversion of raw rewards into those that learners see."""

    scale: float  # the deviation of the behaviour's rewards, stored with the dataset
    reference: Tensor  # (bars,): subtracted from the rewards of decisions at each bar; zeros without a reference
    normalizer: RewardNormalizer | None = None
    whole_spread: bool = False  # the spread that critics learn is of the whole reward, as risk measures need it

    @classmethod
    def of(cls, process: DecisionProcess, scale: float, reference: str, device: torch.device) -> RewardUnits:
        """The units of a process, for ``train.reward_reference``.

        Of a chosen reward the reference is what holding equal weight is rewarded with, without a trade.

        Ruin ends the rewards of a portfolio, but not those of the reference: the shortfall after ruin is left out.
        """
        earned = np.zeros(len(process.growth))
        if reference == "equal-weight":
            earned[:-1] = equal_weight_log_returns(process.panel, process.env.fill)[1:]
            if process.reward is not None:
                earned = process.reward.log_return_weight * earned + equal_weight_rewards(process)
        return cls(scale, torch.from_numpy(earned).float().to(device))

    def scaled(self, rewards: Tensor, bars: Tensor) -> Tensor:
        """Raw rewards of decisions at ``bars``, each (batch,), in these units."""
        scaled = (rewards - self.reference[bars]) / self.scale
        return scaled if self.normalizer is None else self.normalizer.apply(scaled)

    def unscaled(self, reward: float) -> float:
        """A reward in these units, in excess of the reference, as a daily log return; clipping cannot be undone."""
        return self.scale * (reward if self.normalizer is None else self.normalizer.denormalize(reward))

    def references(self, bars: Tensor) -> Tensor | None:
        """Scaled reference of decisions at ``bars``, (batch,); None where spreads are without it."""
        return self.reference[bars] / self.scale if self.whole_spread else None

    def remember(self, rewards: FloatArray, bars: NDArray[np.integer[Any]]) -> None:
        """Update the normaliser with raw rewards of decisions at ``bars``, each (n,)."""
        if self.normalizer is not None:
            places = torch.as_tensor(bars, dtype=torch.int64, device=self.reference.device)
            self.normalizer.update((rewards - self.reference[places].double().cpu().numpy()) / self.scale)


UNIT_BARS = 512  # on which decisions are compared
UNIT_DECISIONS = 8  # on each
BARS_AT_ONCE = 1024
PURPOSE = 90  # of the generator that draws them


def choose_reward(config: Config, process: DecisionProcess, windows: Sequence[range]) -> DecisionProcess:
    """The market of a training with its configured reward; the process itself with the built-in one.

    ``windows``: bars that may be learned from; units are fitted on these alone.

    Raises ConfigError if a reward cannot be used, or the online algorithm cannot follow it.
    """
    file = config.objectives.preference.model
    learned: Made = {} if file is None else {PREFERENCE: lambda: PreferenceReward(file)}
    rewards = named_rewards(config.objectives, process.n_weights - 1, learned)
    if config.objectives.workers and not (rewards and any(term.slow for term in rewards.terms)):
        raise ConfigError(
            f"objectives.workers = {config.objectives.workers} has nothing to compute: {BUILTIN} and {RANKING} are "
            "computed where they are needed; set it to 0, or name a reward of your own as package.module:Name"
        )
    if rewards is None:
        return process
    name = rewards.not_differentiable
    if name is not None and not config.online.on_policy and config.bcell.expansion:
        raise ConfigError(
            f"the reward {name} declares no gradient (differentiable = True), which bcell.expansion = "
            f"{config.bcell.expansion} exact decisions follow: set bcell.expansion=0, or use ppo, ppo-kl, trpo, a2c or "
            "reinforce"
        )
    rewards = rewards.with_tables(process.panel)
    if len(rewards.terms) > 1:
        rewards = rewards.with_units(reward_units_of(process, rewards, windows))
    return with_reward(process, rewards)


def reward_units_of(process: DecisionProcess, rewards: RewardSum, windows: Sequence[range]) -> list[float]:
    """Unit of each term: its deviation between decisions on the same bar, over bars of the training window.

    Raises ConfigError if a reward is the same for every decision.
    """
    plain = RewardSum([replace(term, weight=1.0, unit=1.0) for term in rewards.terms])
    market = with_reward(process, plain)
    bars = np.concatenate([np.asarray(market.decision_bars(window), dtype=np.int64) for window in windows])
    if not len(bars):
        horizon = market.reward_horizon
        raise MarketError(f"the training window has no bar whose reward, over {horizon} bars, ends within it")
    rng = np.random.default_rng(np.random.SeedSequence([PURPOSE]))
    chosen = bars[np.linspace(0, len(bars) - 1, min(UNIT_BARS, len(bars))).astype(np.int64)].repeat(UNIT_DECISIONS)
    held, targets = (draw_coverage(rng, len(chosen), market.n_weights)[0] for _ in range(2))
    components = market.step(market.start(chosen, held), targets).components
    units, first = [], 0
    for term in plain.terms:
        rewarded = components[:, first : first + len(term.names)].sum(axis=1).reshape(-1, UNIT_DECISIONS)
        units.append(float(np.sqrt(rewarded.var(axis=1, ddof=1).mean())))
        if not units[-1] > 0.0:
            raise ConfigError(f"the reward {term.name} is the same for every decision: there is nothing to learn from")
        first += len(term.names)
    return units


def equal_weight_rewards(process: DecisionProcess) -> FloatArray:
    """Reward of holding equal weight at each bar, the built-in one left out, (bars,).

    No decision changes it, so that learners may see rewards in excess of it; a ranking's chance is such a reward. Zero
    at bars whose reward is not known within the market.
    """
    rewards_of_equal_weight = np.zeros(len(process.growth))
    terms = process.reward.terms if isinstance(process.reward, RewardSum) else ()
    chosen = [term for term in terms if term.reward is not None]
    if not chosen:
        return rewards_of_equal_weight
    market = with_reward(process, RewardSum(chosen))
    bars = np.arange(process.first_bar, len(process.growth) - market.reward_horizon)
    for start in range(0, len(bars), BARS_AT_ONCE):
        some = bars[start : start + BARS_AT_ONCE]
        equal = np.full((len(some), process.n_weights), 1.0 / (process.n_weights - 1))
        equal[:, -1] = 0.0
        state = market.start(some, equal)
        rewards_of_equal_weight[some] = market.step(state, state.weights).reward
    return rewards_of_equal_weight
