"""Sections of what is done with agents: `evaluation`, `tune`, `preferences` and `trading`."""

from __future__ import annotations

import difflib
import re
from typing import Literal, Self

from pydantic import model_validator

from finflow.config.section_types import (
    ConfigSection,
    Flag,
    Fraction,
    Int,
    Names,
    NonNegativeInt,
    NonNegativeNumber,
    Number,
    PositiveInt,
    PositiveNumber,
    key,
)


class TaxConfig(ConfigSection):
    """Tax on capital gains and interest, computed beside every backtest; no strategy takes it into account."""

    enabled: Flag = key(False, "compute results after tax")
    short_rate: Number = key(0.37, "rate on gains of lots held for tax.days or less, and on interest", ge=0, lt=1)
    long_rate: Number = key(0.20, "rate on gains of lots held for longer", ge=0, lt=1)
    days: NonNegativeInt = key(365, "calendar days a lot must be held for more than, to be long-term")


class ProtocolConfig(ConfigSection):
    """Folds of an evaluation that retrains for each of them (`--protocol walk-forward` or `cpcv`).

    All within training and validation windows; the test window is not read.
    """

    folds: Int = key(5, "walk-forward: consecutive evaluated windows", ge=2)
    first_share: Fraction = key(0.5, "walk-forward: share of the bars that the first fold may learn from")
    groups: Int = key(6, "cpcv: groups that the bars are cut into", ge=3)
    test_groups: Int = key(2, "cpcv: groups that each fold is evaluated on", ge=2)
    purge: NonNegativeInt | None = key(
        None, "bars next to an evaluated window that are not learned from; null: the longest feature"
    )
    embargo: NonNegativeInt = key(21, "cpcv: bars after an evaluated window that are held out as well")
    validation_share: Fraction = key(0.2, "share of a fold's bars, the last of them, for the choice of its checkpoint")
    seeds: PositiveInt = key(1, "trainings of each fold, with the seeds from train.seed on")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.test_groups >= self.groups:
            raise ValueError(
                f"evaluation.protocol.test_groups = {self.test_groups} must be below "
                f"evaluation.protocol.groups = {self.groups}: something has to be left to learn from"
            )
        return self


class EvaluationConfig(ConfigSection):
    """Statistics of the evaluation, and refits of the classical strategies."""

    bootstrap_samples: Int = key(2000, "resamples behind each interval", ge=100)
    block_length: PositiveInt = key(21, "mean block of the stationary bootstrap, in bars")
    rebalance_every: PositiveInt = key(21, "decisions between refits of a rolling strategy")
    lookback: Int = key(252, "bars that a rolling strategy is fitted on", ge=20)
    sweeps: Flag = key(True, "run again at other costs, lags and capital, and over stress periods; backtests always do")
    tax: TaxConfig = key(TaxConfig(), "tax on capital gains and interest")
    protocol: ProtocolConfig = key(ProtocolConfig(), "evaluations that train for every fold")
    configurations_tried: PositiveInt = key(1, "configurations tried on this panel, the evaluated one included")


RANKING_OBJECTIVES = ("ndcg", "hit", "mrr", "rank_ic")
"""Objectives of a study that judge the weights as a ranking of the assets."""

OBJECTIVES = ("sharpe", "sortino", "calmar", "cvar", "dsr", *RANKING_OBJECTIVES)
"""Objectives of a study, all maximised; cvar is a return."""

Choice = bool | int | float | str


class SearchedConfig(ConfigSection):
    """Values of one key that a study tries: a range, or a few choices."""

    low: Number | None = key(None, "smallest value")
    high: Number | None = key(None, "largest value")
    log: Flag = key(False, "sample uniformly in the logarithm")
    step: PositiveNumber | None = key(None, "distance between values, counted from low")
    choices: tuple[Choice, ...] | None = key(None, "the values, instead of a range")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.step is not None or self.log:
                raise ValueError("choices stand alone, without low, high, log and step")
            if not self.choices or len(set(map(repr, self.choices))) < len(self.choices):
                raise ValueError("choices need one value at least, and none of them twice")
        elif self.low is None or self.high is None:
            raise ValueError("low and high are needed, or choices")
        elif self.low > self.high:
            raise ValueError(f"low = {self.low:g} is above high = {self.high:g}")
        elif self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("log needs low above 0, and no step")
        return self


class TuneConfig(ConfigSection):
    """A search for better values of keys (`--mode tune`); affects no result of a training itself.

    All within training and validation windows; the test window is not read.
    """

    n_trials: PositiveInt = key(100, "configurations tried, those that fail among them")
    objective: Names = key(
        ("sharpe",), "sharpe, sortino, calmar, cvar, dsr, ndcg, hit, mrr or rank_ic; several: Pareto front"
    )
    folds: PositiveInt = key(2, "evaluated windows of a trial, by evaluation.protocol; 1 is the validation window")
    seeds: PositiveInt = key(2, "trainings of each fold, with the seeds from train.seed on")
    sampler: Literal["tpe", "random"] = key("tpe", "sampler of configurations")
    pruner: Literal["median", "hyperband", "none"] = key("median", "pruner of trials at their validation points")
    startup_trials: PositiveInt = key(10, "random trials before tpe")
    seed: Int = key(0, "seed of the sampler", ge=0, lt=2**31)
    name: str | None = key(None, "name of the study in its storage; that of its folder when left out")
    storage: str | None = key(None, "URL of a database, or journal:PATH; null: SQLite in the study's folder")
    space: dict[str, SearchedConfig] | None = key(None, "keys searched: {low, high, log, step} or {choices}")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in self.objective:
            if name not in OBJECTIVES:
                near = difflib.get_close_matches(name, OBJECTIVES, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(f"tune.objective names {name!r}, which is not one of {', '.join(OBJECTIVES)}{hint}")
        if not self.objective or len(set(self.objective)) < len(self.objective):
            raise ValueError("tune.objective needs one objective at least, and none of them twice")
        if self.space is not None and not self.space:
            raise ValueError("tune.space = {}: there is nothing to search; leave it out for the usual keys")
        return self


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


class AlpacaConfig(ConfigSection):
    """Account at Alpaca; its keys come from the environment alone."""

    live: Flag = key(False, "trade real money, which has to be confirmed (--live); otherwise the paper account")
    address: str | None = key(None, "base address of the interface; left out: Alpaca's own, on paper or live")
    time_in_force: Literal["day", "opg", "cls"] = key(
        "day", "from the next open on, or in the auction of the open or close"
    )


class RetrainConfig(ConfigSection):
    """Comparison of a retrained agent with the old one (`--mode retrain`), on bars that neither was trained on."""

    window: PositiveInt | None = key(None, "bars that a retraining learns from; left out: as many as the old agent")
    folds: PositiveInt = key(3, "consecutive evaluated windows, each with a retraining of its own")
    margin: NonNegativeNumber = key(0.1, "Sharpe ratio a year by which the new agent must lead to replace the old one")


class TradingConfig(ConfigSection):
    """Orders of a decision, what its prices are checked for, and what a retrained agent has to show."""

    lot: NonNegativeNumber = key(1.0, "shares of a lot; orders are whole lots; 0: any fraction of a share")
    cash_reserve: Number = key(0.0, "share of the account that orders leave in cash", ge=0, lt=1)
    calendar: str | None = key(None, "exchange of exchange_calendars, such as XNYS; null: the one that the dates fit")
    max_age: NonNegativeInt = key(1, "sessions that the newest bar may be older than the day of the decision")
    drift_limit: PositiveNumber = key(4.0, "training deviations outside its range at which a feature is refused")
    broker: Literal["paper", "alpaca"] = key("paper", "broker of --mode paper: the ledger, or an account at Alpaca")
    alpaca: AlpacaConfig = key(AlpacaConfig(), "account at Alpaca")
    retrain: RetrainConfig = key(RetrainConfig(), "comparison of a retrained agent with the old one")
