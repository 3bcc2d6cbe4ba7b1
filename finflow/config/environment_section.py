"""Sections `env` and `objectives`: the decision process and the reward."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from finflow.config.section_types import (
    ConfigSection,
    Fraction,
    Int,
    NonNegativeNumber,
    Number,
    PositiveInt,
    PositiveNumber,
    PositiveShare,
    first_repeated,
    key,
)

REWARDS = ("builtin", "ranking", "turnover", "variance", "preference")
"""Rewards that have a name."""


class CostsConfig(ConfigSection):
    """Costs beside the flat commission and slippage; zero by default."""

    minimum: NonNegativeNumber = key(0.0, "minimum commission of each asset traded in a decision, in money")
    slippage_linear_bps: Number = key(0.0, "slippage by participation, basis points at a day's volume", ge=0, le=10_000)
    slippage_sqrt_bps: Number = key(0.0, "the same, growing with the square root of participation", ge=0, le=10_000)
    impact: Number = key(0.0, "square-root market impact, in daily volatilities at a day's volume", ge=0, le=10)


class EnvConfig(ConfigSection):
    """Information set of a decision, its fill, and the costs and limits of trading."""

    execution_lag: Int = key(1, "bars between the newest bar known and the fill", ge=0, le=2)
    fill: Literal["close", "open"] = key("close", "price at which orders fill")
    episode_length: Int = key(252, "decisions in an episode of one portfolio", ge=2)
    initial_capital: PositiveNumber = key(1_000_000.0, "starting wealth, in the currency of the prices")
    commission_bps: Number = key(10.0, "commission, basis points of the traded value", ge=0, le=1000)
    slippage_bps: Number = key(5.0, "slippage, basis points of the traded value", ge=0, le=1000)
    max_weight: PositiveShare = key(1.0, "largest weight of a risky asset")
    max_turnover: PositiveShare = key(1.0, "largest half-sum of absolute trades in a decision; 1 is no limit")
    no_trade_band: Number = key(0.0, "trade only where the largest change of a weight exceeds this", ge=0, lt=1)
    costs: CostsConfig = key(CostsConfig(), "minimum commission, slippage by size, impact")


class RankingConfig(ConfigSection):
    """Reward of how well a portfolio ranks the assets by what they return afterwards."""

    type: Literal["ndcg", "hit", "mrr", "mixed"] = key("ndcg", "NDCG@K, Hit@K, MRR@K, or NDCG and Hit weighted")
    k: PositiveInt = key(10, "assets at the top of the ranking that count")
    horizon: PositiveInt = key(5, "bars after the fill over which assets are ranked by their return")
    ndcg_weight: NonNegativeNumber = key(0.7, "weight of NDCG@K in mixed")
    hit_weight: NonNegativeNumber = key(0.3, "weight of Hit@K in mixed")
    grades: Int = key(5, "quantile grades of returns; the gain of grade g is 2^g - 1", ge=2, le=16)


class PreferenceConfig(ConfigSection):
    """Reward of a model that was learned from preferences."""

    model: Path | None = key(None, "file of the reward model that --mode prefer --learn wrote")
    paid: Literal["decision", "segment"] = key(
        "decision", "score of each decision, or on-policy their sum at the end of a segment"
    )
    segment: Int = key(21, "holding periods of a segment: of an episode, and of the pairs of a judge", ge=2)


class RewardTermConfig(ConfigSection):
    """One reward of a weighted sum."""

    name: str = key("builtin", "builtin, ranking, turnover, variance, or package.module:Name")
    weight: Number = key(1.0, "its weight, in units of what decisions change of it")


class ObjectivesConfig(ConfigSection):
    """The reward: its name or those of a weighted sum, and the settings of each."""

    reward: str = key("builtin", "builtin, ranking, turnover, variance, preference, or package.module:Name")
    rewards: tuple[RewardTermConfig, ...] = key((), "weighted sum in place of it, [{name, weight}, ...]")
    ranking: RankingConfig = key(RankingConfig(), "the reward ranking")
    preference: PreferenceConfig = key(PreferenceConfig(), "the reward preference")
    workers: Int = key(0, "processes that compute rewards of one's own; 0: none", ge=0, le=256)
    sharpe_beta: NonNegativeNumber = key(1.0, "weight of the differential Sharpe ratio")
    sharpe_eta: Fraction = key(1 / 252, "adaptation rate of its moments, per decision")
    lambda_turn: NonNegativeNumber = key(0.1, "weight of the turnover penalty")
    lambda_cvar: NonNegativeNumber = key(5.0, "weight of the penalty on losses beyond cvar_target")
    cvar_alpha: Fraction = key(0.05, "tail share of the conditional value at risk")
    cvar_target: Number = key(-0.02, "daily return below which the CVaR penalty sets in", gt=-1, le=0)
    lambda_dd: NonNegativeNumber = key(0.0, "weight of the penalty on increases in drawdown")

    @property
    def terms(self) -> tuple[RewardTermConfig, ...]:
        """Rewards that are summed, one where there is no sum."""
        return self.rewards or (RewardTermConfig(name=self.reward, weight=1.0),)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [term.name for term in self.terms]
        for name in names:
            _check_reward_name(name, "objectives.rewards" if self.rewards else "objectives.reward")
        if self.rewards and self.reward != "builtin":
            raise ValueError(
                f"objectives.reward = {self.reward} and objectives.rewards are both set: name it in objectives.rewards"
            )
        repeated = first_repeated(names)
        if repeated is not None:
            raise ValueError(f"objectives.rewards names {repeated} twice: one weight for each")
        if "preference" in names and self.preference.model is None:
            raise ValueError(
                "the reward preference needs objectives.preference.model: the file that --mode prefer --learn wrote"
            )
        if self.rewards and not any(term.weight for term in self.rewards):
            raise ValueError("objectives.rewards has no weight but zero: there is nothing to learn")
        return self


def _check_reward_name(name: str, where: str) -> None:
    if name not in REWARDS and not re.fullmatch(r"[\w.]+:\w+", name):
        raise ValueError(f"{where} names {name!r}, which is none of {', '.join(REWARDS)} and no package.module:Name")
