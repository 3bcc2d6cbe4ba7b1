"""Section `preferences`: judges of pairs of segments, and the reward models and policies that learn from answers."""

from __future__ import annotations

import re
from typing import Self

from pydantic import model_validator

from finflow.config.section_types import (
    ConfigSection,
    Names,
    NonNegativeInt,
    Number,
    PositiveNumber,
    key,
)

MEASURES = ("drawdown", "turnover", "volatility", "return", "loss")
"""Measures of a segment that rules name."""
RULE = re.compile(rf"({'|'.join(MEASURES)})\s*(<=|>=)\s*(-?\d+(?:\.\d+)?(?:e-?\d+)?)")


class JudgeConfig(ConfigSection):
    """Judge that compares segments."""

    mistakes: Number = key(0.0, "share of the answers that are reversed", ge=0, lt=0.5)
    rules: tuple[str, ...] = key(
        ("drawdown <= 0.2", "turnover <= 2", "return >= 0"),
        "of the judge rules: MEASURE <= X or MEASURE >= X; the first that decides",
    )
    strategies: Names = key(
        ("equal-weight", "buy-and-hold", "momentum", "low-volatility", "sixty-forty", "olmar"),
        "strategies whose segments are compared",
    )
    random: NonNegativeInt = key(32, "further strategies that hold random portfolios, random-0 and so on")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for rule in self.rules:
            if not RULE.fullmatch(rule.strip()):
                raise ValueError(
                    f"preferences.judge.rules has {rule!r}: a rule is one of {', '.join(MEASURES)}, then <= or >=, "
                    "then a number"
                )
        if len(set(self.strategies)) + self.random < 2:
            raise ValueError("preferences.judge.strategies and preferences.judge.random name fewer than two strategies")
        return self


class PolicyLearningConfig(ConfigSection):
    """Learning of a policy from pairs without a reward model, by DPO or SimPO."""

    dpo_beta: PositiveNumber = key(0.1, "weight of the divergence from the reference in DPO, per free dimension")
    learning_rate: PositiveNumber = key(1e-3, "learning rate of Adam")


class PreferencesConfig(ConfigSection):
    """Preferences: pairs of segments and the reward model (`--mode prefer`)."""

    judge: JudgeConfig = key(JudgeConfig(), "the judge of pairs")
    policy: PolicyLearningConfig = key(PolicyLearningConfig(), "a policy learned from pairs")
