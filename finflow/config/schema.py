"""The typed schema of every configuration key.

Frozen pydantic models, one a section. Each field carries its default, its bounds and a sentence on what it does,
so that help texts, error messages and documentation are derived from here and nowhere else. Reading files,
environment variables and overrides is `finflow.config`'s work.

Units: rates of return are simple and per year where the name says "rate", per bar otherwise; costs are in basis
points of the traded value; an episode is `env.episode_length` decisions of one portfolio; an update is one gradient
update.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, model_validator


def _whole(value: Any) -> Any:
    """Take 1e5 for a whole number; leave the rest to the strict check."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _names(value: Any) -> Any:
    """Take "AAPL MSFT" or "AAPL,MSFT" for a list of names."""
    return tuple(part for part in re.split(r"[,\s]+", value) if part) if isinstance(value, str) else value


def _dated(value: Any) -> Any:
    """Refuse numbers, which would be taken for seconds since 1970."""
    if isinstance(value, int | float):
        raise ValueError("a date is needed")
    return value


def _paths(value: Any) -> Any:
    """Take one path for a list of one, whatever characters it has."""
    return (value,) if isinstance(value, str | Path) else value


LENSES = ("volatility", "correlation", "momentum", "defensive", "growth")
"""Names of the five experts, each of which reads the features of its lens."""


def _whole_path(value: Any) -> Any:
    """Refuse what no file system takes for a name."""
    if "\0" in str(value):
        raise ValueError("a path is needed")
    return value


def _no_number(value: Any) -> Any:
    """Refuse a number in quotes, which would be taken for the name of a file."""
    try:
        float(str(value))
    except ValueError:
        return _whole_path(value)
    raise ValueError("a path is needed")


Int = Annotated[int, Strict(), BeforeValidator(_whole)]
Number = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
FilePath = Annotated[Path, BeforeValidator(_whole_path)]
Rate = Annotated[float, Strict(), Field(gt=-1, le=1)]
RateFile = Annotated[Path, BeforeValidator(_no_number)]
FilePaths = Annotated[tuple[FilePath, ...], BeforeValidator(_paths)]
Date = Annotated[dt.date, BeforeValidator(_dated)]


class Section(BaseModel):
    """What all sections share: frozen, no unknown keys, no infinities."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


_SHARED_BY_SYNTHETIC = ("drift", "volatility", "correlation")
#: Parameters that a kind of synthetic market has beyond those.
_OF_SYNTHETIC = {
    "lognormal": ("edge",),
    "constant-drift": ("edge",),
    "mean-reverting": ("persistence",),
    "regime": ("edge", "persistence", "volatility_ratio", "defensive_ratio"),
    "exchangeable": (),
}


class SyntheticConfig(Section):
    """A made-up market whose best portfolio is known; rates are per bar."""

    kind: Literal["lognormal", "constant-drift", "mean-reverting", "regime", "exchangeable"] = Field(
        default="lognormal", description="the law of the prices; exchangeable has nothing to be found"
    )
    assets: Int = Field(default=2, ge=2, le=4, description="number of assets")
    bars: Int = Field(default=20_000, ge=400, le=40_000, description="business days, the last of them 2022-12-30")
    seed: Int = Field(default=0, ge=0, description="draws the prices; another seed is another sample of the same law")
    drift: Number | None = Field(
        default=None, ge=-0.05, le=0.05, description="expected return of the best asset; the kind's own when left out"
    )
    edge: Number | None = Field(
        default=None, ge=0, le=0.05, description="expected return of the best asset less the worst's; likewise"
    )
    volatility: Number | None = Field(
        default=None, gt=0, le=0.5, description="standard deviation of an asset's log return; likewise"
    )
    correlation: Number | None = Field(
        default=None, ge=0, lt=1, description="correlation of log returns (mean-reverting: of first and last asset)"
    )
    persistence: Number | None = Field(
        default=None, gt=0, lt=1, description="autocorrelation of the spread, or chance that a regime stays; likewise"
    )
    volatility_ratio: Number | None = Field(
        default=None, gt=0, le=10, description="volatility of the second regime over that of the first; likewise"
    )
    defensive_ratio: Number | None = Field(
        default=None,
        gt=0,
        le=10,
        description="volatility of the last asset, which leads in the second regime, over that of the first; likewise",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        known = (*_SHARED_BY_SYNTHETIC, *_OF_SYNTHETIC[self.kind])
        for name in sorted({name for names in _OF_SYNTHETIC.values() for name in names}.difference(known)):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"market.synthetic.{name} = {getattr(self, name)} means nothing where "
                    f"market.synthetic.kind = {self.kind}, which has {', '.join(known)}"
                )
        return self


class MarketConfig(Section):
    """Which prices, and how they are split by date."""

    source: Literal["embedded", "yfinance", "csv", "parquet", "synthetic"] = Field(
        default="embedded",
        description="where prices come from; embedded is skfolio's 20 stocks of the S&P 500, 1990 to 2022",
    )
    synthetic: SyntheticConfig = Field(default=SyntheticConfig(), description="the market of the source synthetic")
    path: FilePath | None = Field(
        default=None, description="file of prices, or folder of such files, for the sources csv and parquet"
    )
    tickers: Names | None = Field(default=None, description="assets to use; all of the source when left out")
    tickers_file: FilePath | None = Field(
        default=None, description="text file that names them instead, apart by commas or lines; # begins a comment"
    )
    benchmark: str | None = Field(default=None, description="column or ticker used as the index, never held")
    start: Date | None = Field(default=None, description="first date used; the source's first when left out")
    train_end: Date = Field(default=dt.date(2011, 12, 31), description="last date of the training window")
    validation_end: Date = Field(default=dt.date(2015, 12, 31), description="last date of the validation window")
    test_end: Date | None = Field(default=None, description="last date of the test window; the last bar when left out")
    cash_rate: Rate | RateFile = Field(
        default=0.0,
        description="annual rate that cash earns, or a CSV or Parquet file of dates and rates; ratios are in excess",
    )
    auto_adjust: Flag = Field(
        default=True, description="adjust prices of yfinance, and of files with an Adj Close, for splits and dividends"
    )
    cache_dir: FilePath = Field(default=Path("data/market"), description="folder of the hashed price store")
    use_cache: Flag = Field(default=True, description="read prices from the store when it has them")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        ends = [("start", self.start), ("train_end", self.train_end), ("validation_end", self.validation_end)]
        given = [(name, date) for name, date in [*ends, ("test_end", self.test_end)] if date is not None]
        for (before, earlier), (name, date) in pairwise(given):
            if date <= earlier:
                raise ValueError(f"market.{name} = {date} must come after market.{before} = {earlier}")
        if self.source in ("csv", "parquet") and self.path is None:
            raise ValueError(f"market.path = null: market.source = {self.source} needs the path of the prices")
        if self.tickers is not None and self.tickers_file is not None:
            raise ValueError("market.tickers and market.tickers_file are both set: set one of the two to null")
        if self.source == "yfinance" and self.tickers is None and self.tickers_file is None:
            raise ValueError("market.tickers = null: market.source = yfinance needs at least one ticker")
        for name in ("tickers", "tickers_file", "benchmark"):
            if self.source == "synthetic" and getattr(self, name) is not None:
                raise ValueError(f"market.{name} is set, but a synthetic market has market.synthetic.assets alone")
        if self.tickers is not None:
            if not self.tickers:
                raise ValueError("market.tickers = []: at least one asset is needed")
            twice = sorted({name for name in self.tickers if self.tickers.count(name) > 1})
            if twice:
                raise ValueError(f"market.tickers names {twice[0]} more than once")
            if any(not name.strip() for name in self.tickers):
                raise ValueError("market.tickers holds an empty name")
        return self


class CostsConfig(Section):
    """Costs beside the flat commission and slippage; the defaults add nothing."""

    minimum: Number = Field(
        default=0.0, ge=0, description="least commission of each asset traded in a decision, in money"
    )
    slippage_linear_bps: Number = Field(
        default=0.0,
        ge=0,
        le=10_000,
        description="slippage in proportion to participation, basis points when a trade equals a day's volume",
    )
    slippage_sqrt_bps: Number = Field(
        default=0.0, ge=0, le=10_000, description="the same, growing with the square root of participation"
    )
    slippage_exponential_bps: Number = Field(
        default=0.0, ge=0, le=10_000, description="the same, growing exponentially with participation"
    )
    slippage_steepness: Number = Field(
        default=5.0, gt=0, le=20, description="k of the exponential, (exp(k * participation) - 1) / (exp(k) - 1)"
    )
    impact: Number = Field(
        default=0.0,
        ge=0,
        le=10,
        description="square-root market impact, in daily volatilities when a trade equals a day's volume",
    )
    window: Int = Field(default=21, ge=2, description="bars over which volume and volatility are measured for costs")


class FeaturesConfig(Section):
    """What is said of the assets beside the features that finflow has."""

    extra: Names = Field(
        default=(),
        description="features of your own, each package.module:function, for one expert with @lens after it: a "
        "function of the panel that returns (bars, assets), or (bars,) for the market, and may use bars up to each "
        "row's own",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for path in self.extra:
            place, _, lens = path.partition("@")
            module, _, name = place.partition(":")
            if not module or not name:
                raise ValueError(f"features.extra names {path!r}: package.module:function is needed")
            if "@" in path and lens not in LENSES:
                raise ValueError(f"features.extra names {path!r}: the lens must be one of {', '.join(LENSES)}")
        if len(set(self.names)) < len(self.extra):
            raise ValueError("features.extra names two functions of one name; features are known by their names")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The functions' own names, by which the features are known."""
        return tuple(path.partition("@")[0].rpartition(":")[2] for path in self.extra)


class EnvConfig(Section):
    """What a decision may know, when it fills, and what trading costs."""

    execution_lag: Int = Field(default=1, ge=0, le=2, description="bars between the newest bar known and the fill")
    fill: Literal["close", "open"] = Field(default="close", description="price at which orders fill")
    episode_length: Int = Field(default=252, ge=2, description="decisions in an episode of one portfolio")
    initial_capital: Number = Field(
        default=1_000_000.0, gt=0, description="starting wealth, in the currency of the prices"
    )
    commission_bps: Number = Field(
        default=10.0, ge=0, le=1000, description="commission, basis points of the traded value"
    )
    slippage_bps: Number = Field(default=5.0, ge=0, le=1000, description="slippage, basis points of the traded value")
    max_weight: Number = Field(default=1.0, gt=0, le=1, description="largest weight of a risky asset")
    max_turnover: Number = Field(
        default=1.0, gt=0, le=1, description="largest half-sum of absolute trades in a decision; 1 is no limit"
    )
    no_trade_band: Number = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="a decision whose largest change of a weight is not over this is not traded",
    )
    costs: CostsConfig = Field(default=CostsConfig(), description="minimum commission, slippage by size, impact")


class ObjectivesConfig(Section):
    """Weights and settings of the parts of the reward."""

    sharpe_beta: Number = Field(default=1.0, ge=0, description="weight of the differential Sharpe ratio")
    sharpe_eta: Number = Field(default=1 / 252, gt=0, lt=1, description="adaptation rate of its moments, per decision")
    lambda_turn: Number = Field(default=0.1, ge=0, description="weight of the turnover penalty")
    lambda_cvar: Number = Field(default=5.0, ge=0, description="weight of the penalty on losses beyond cvar_target")
    cvar_alpha: Number = Field(default=0.05, gt=0, lt=1, description="tail share of the conditional value at risk")
    cvar_target: Number = Field(
        default=-0.02, gt=-1, le=0, description="daily return below which the CVaR penalty sets in"
    )
    lambda_dd: Number = Field(default=0.0, ge=0, description="weight of the penalty on increases in drawdown")


class EntropyScheduleConfig(Section):
    """How the entropy coefficient is annealed when bcell.alpha_mode is annealed."""

    kind: Literal["linear", "cosine", "exponential"] = Field(default="linear", description="shape of the schedule")
    initial: Number = Field(default=0.01, gt=0, description="entropy coefficient at the first online update")
    final: Number = Field(default=0.001, gt=0, description="entropy coefficient after the last step, and from then on")
    steps: Int = Field(default=100_000, ge=1, description="gradient updates from initial to final")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.final > self.initial:
            raise ValueError(
                f"train.entropy_schedule.final = {self.final} must not exceed "
                f"train.entropy_schedule.initial = {self.initial}"
            )
        return self


class TargetEntropyScheduleConfig(Section):
    """How the target entropy moves where bcell.alpha_mode is auto; shares as bcell.target_entropy has them."""

    enabled: Flag = Field(default=False, description="move the target entropy; otherwise bcell.target_entropy stays")
    kind: Literal["linear", "cosine", "exponential"] = Field(default="linear", description="shape of the schedule")
    initial: Number = Field(default=0.4, gt=0, lt=1, description="target entropy at the first online update")
    final: Number = Field(default=0.1, gt=0, lt=1, description="target entropy after the last step, and from then on")
    steps: Int = Field(default=15_000, ge=1, description="gradient updates from initial to final")


class RewardNormalizationConfig(Section):
    """Rewards in units of their recent past, on top of the fixed scale; off by default, which keeps the units."""

    enabled: Flag = Field(default=False, description="normalise rewards as they are sampled, in both phases")
    window_size: Int = Field(default=1000, ge=2, le=1_000_000, description="rewards that mean and deviation are of")
    warmup: Int = Field(default=100, ge=0, description="rewards seen before any is normalised")
    clip: Number = Field(default=10.0, gt=0, description="normalised rewards lie between minus this and this")
    shift: Flag = Field(
        default=True, description="take the mean off; without, rewards are scaled alone and the objective is unchanged"
    )


class TrainConfig(Section):
    """How long, how often and on what the agent learns."""

    seed: Int = Field(default=0, ge=0, lt=2**32, description="seed of every random number of a run")
    seeds: Int = Field(
        default=1, ge=1, description="agents that are trained, with the seeds from train.seed on, and judged together"
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(default="auto", description="device that learns")
    threads: Int = Field(
        default=1, ge=1, le=1024, description="processor threads for learning; part of what makes runs repeatable"
    )
    n_envs: Int = Field(default=16, ge=1, description="portfolios that step together online")
    updates_per_vector_step: Int = Field(default=1, ge=1, description="gradient updates after each vector step")
    offline_episodes: Int = Field(default=500, ge=1, description="behaviour episodes collected")
    offline_training_epochs: Int = Field(default=50, ge=0, description="passes of IQL over the offline dataset")
    online_episodes: Int = Field(default=1000, ge=0, description="episodes of online fine-tuning")
    offline_batch_size: Int = Field(default=512, ge=2, description="transitions in a batch of the offline phase")
    online_batch_size: Int = Field(default=256, ge=2, description="transitions in a batch of the online phase")
    offline_share_start: Number = Field(
        default=0.75, ge=0, le=1, description="share of offline data in the first online batch"
    )
    offline_share_end: Number = Field(
        default=0.25, ge=0, le=1, description="share of offline data in the last online batch"
    )
    warmup_episodes: Int = Field(
        default=16, ge=0, description="episodes of the pretrained policy before the first update"
    )
    critic_only_updates: Int = Field(default=500, ge=0, description="online updates before the policy starts to move")
    actor_ramp_updates: Int = Field(
        default=0, ge=0, description="online updates from there on in which the policy's rate rises to its full height"
    )
    checkpoint_interval: Int = Field(default=100, ge=1, description="online episodes between checkpoints")
    checkpoint_updates: Int = Field(default=1200, ge=1, description="updates between checkpoints, if that comes first")
    validation_updates: Int = Field(
        default=1000, ge=1, description="updates between backtests on the validation window"
    )
    best_by: Literal["value", "sharpe"] = Field(
        default="value",
        description="what the best checkpoint has most of on the validation window, net: mean reward or Sharpe ratio",
    )
    save_best: Flag = Field(default=True, description="keep the checkpoint that is best on the validation window")
    save_latest: Flag = Field(default=True, description="keep the newest checkpoint, for --resume")
    max_checkpoints: Int = Field(default=5, ge=0, description="numbered checkpoints kept, newest first")
    reward_reference: Literal["equal-weight", "none"] = Field(
        default="equal-weight",
        description="whose log return over the same bar, before costs, learners see rewards in excess of",
    )
    generalisation: Flag = Field(
        default=True,
        description="measure the policy in training worlds, training and validation windows at each validation",
    )
    profile: Flag = Field(
        default=False, description="write a torch profiler trace of a few updates of each phase into the run folder"
    )
    observation_noise: Number = Field(
        default=0.0,
        ge=0,
        le=1,
        description="deviation of noise on the features in batches to learn from, in units of their deviation",
    )
    entropy_schedule: EntropyScheduleConfig = Field(
        default=EntropyScheduleConfig(), description="annealing of the entropy coefficient"
    )
    target_entropy_schedule: TargetEntropyScheduleConfig = Field(
        default=TargetEntropyScheduleConfig(), description="annealing of the target entropy"
    )
    reward_normalization: RewardNormalizationConfig = Field(
        default=RewardNormalizationConfig(), description="rewards in units of their recent past"
    )


class WorldsConfig(Section):
    """Worlds beside the one history that happened, to learn in; each is off by default (docs/reference/worlds.md)."""

    assets: Annotated[Int, Field(ge=2)] | Literal["half"] | None = Field(
        default=None,
        description="assets of an episode, drawn anew for each; the others are as if not listed; null: all of them",
    )
    bootstraps: Int = Field(
        default=0, ge=0, le=64, description="resampled histories beside the real one, from the training window's bars"
    )
    block_length: Int = Field(default=63, ge=1, description="mean block of a resampled history, in bars")
    cost_low: Number = Field(default=1.0, ge=0, le=10, description="least multiple of all costs in an episode")
    cost_high: Number = Field(
        default=1.0, ge=0, le=10, description="greatest multiple; drawn log-uniformly between the two, and not shown"
    )
    phases: Literal["both", "offline", "online"] = Field(
        default="both", description="where resampled histories and other costs are met; assets are drawn in both"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.cost_high < self.cost_low:
            raise ValueError(f"worlds.cost_high = {self.cost_high} must not be below worlds.cost_low = {self.cost_low}")
        if self.cost_low == 0.0 < self.cost_high:
            raise ValueError("worlds.cost_low = 0.0: a log-uniform draw begins above zero, unless both ends are zero")
        if self.assets is not None and self.phases != "both":
            raise ValueError(
                f"worlds.phases = {self.phases} leaves worlds.assets to one phase, but an online batch holds "
                "transitions of both: set worlds.phases to both"
            )
        return self


class AnchorConfig(Section):
    """What holds the online policy back."""

    weight: Number = Field(default=1.0, ge=0, description="weight in the actor's loss at the first update; 0 is off")
    final: Number | None = Field(
        default=None, ge=0, description="weight after anchor.updates, linearly; held at anchor.weight when left out"
    )
    updates: Int = Field(default=15_000, ge=1, description="online updates from anchor.weight to anchor.final")
    to: Literal["pretrained", "behaviour", "equal-weight", "equal-sleeve"] = Field(
        default="equal-weight",
        description="KL to the policy as pretrained, likelihood of the behaviour families' decisions, KL of the aim to "
        "equal weight, or that of what the aim holds in assets, cash left free",
    )


class AveragingConfig(Section):
    """The policy that is validated, kept and deployed: the last one, or an average over the end of training."""

    kind: Literal["none", "ema", "swa"] = Field(
        default="none", description="exponential moving average, or plain mean, of the online policy's weights"
    )
    start: Number = Field(default=0.5, ge=0, lt=1, description="share of the online updates after which it begins")
    decay: Number = Field(default=0.999, gt=0, lt=1, description="of the exponential moving average, per update")


class OfflineConfig(Section):
    """What the agent learns from before it decides for itself, and how."""

    method: Literal["iql", "td3bc", "bc"] = Field(
        default="iql", description="implicit Q-learning, TD3+BC or behaviour cloning"
    )
    group_size: Int = Field(
        default=8, ge=1, description="transitions of one bar that share a batch, where there are enough; 1 mixes freely"
    )
    evaluation_updates: Int = Field(
        default=400, ge=0, description="updates of fitted Q evaluation after the offline phase; 0 leaves it out"
    )
    td_lambda: Number = Field(
        default=0.95, ge=0, le=1, description="lambda of the returns that the behaviour's value is fitted to"
    )
    decisions: FilePaths = Field(
        default=(), description="CSV files of your own decisions, dates and weights, to learn from as well"
    )


class BCellConfig(Section):
    """Networks, losses and optimisers of IQL and the B-Cell."""

    iql_expectile: Number = Field(default=0.7, gt=0, lt=1, description="expectile of IQL's value function")
    iql_temperature: Number = Field(
        default=3.0, ge=0, description="beta in the advantage weight min(exp(beta * A), 100)"
    )
    iql_extraction: Literal["awr", "gradient"] = Field(
        default="awr",
        description="how IQL's policy is read off its values: weighted cloning, as published, or the critics' gradient",
    )
    iql_cloning: Number = Field(
        default=1.0, ge=0, description="weight of plain cloning where IQL's policy follows the critics' gradient"
    )
    alpha_init: Number = Field(default=0.75, gt=0, description="entropy coefficient at the start")
    alpha_mode: Literal["auto", "fixed", "annealed"] = Field(
        default="auto", description="auto tunes it to target_entropy, annealed follows train.entropy_schedule"
    )
    alpha_lr: Number = Field(default=3e-4, gt=0, le=1, description="learning rate of the entropy coefficient")
    target_entropy: Number = Field(
        default=0.2, gt=0, lt=1, description="target entropy of the policy, as exp((H - H_max) / (K - 1))"
    )
    entropy_backup: Literal["none", "relative"] = Field(
        default="none", description="entropy in the critics' targets: none, or what is over the target entropy"
    )
    risk_measure: Literal["neutral", "cvar", "wang"] = Field(
        default="neutral",
        description="what the policy climbs and the best checkpoint has most of: the mean of the return's "
        "distribution, the mean of its worst share, or a mean that Wang's transform distorts",
    )
    risk_level: Number = Field(default=0.25, gt=0, le=1, description="the worst share that cvar looks at; 1 is neutral")
    risk_strength: Number = Field(
        default=0.75, ge=-3, le=3, description="of wang: above zero it fears risk, below zero it seeks it"
    )
    cql_alpha: Number = Field(default=5.0, ge=0, description="weight of the conservative penalty")
    cql_mode: Literal["fixed", "lagrange"] = Field(
        default="fixed",
        description="lagrange tunes the weight, from cql_alpha on, so that the penalty comes to cql_gap",
    )
    cql_gap: Number = Field(
        default=0.0,
        description="how far a critic's soft maximum over portfolios may lie above its value of the data's before the "
        "tuned weight grows, in scaled rewards; 0 is where a critic that values all proposed portfolios alike lies",
    )
    cql_samples: Int = Field(default=10, ge=1, description="proposals of each kind in the conservative penalty")
    calibration: Literal["fitted", "returns", "none"] = Field(
        default="fitted",
        description="what the penalty does not push the policy's own proposals under (Cal-QL): the behaviour's fitted "
        "value, the raw returns-to-go of the data, or nothing, which is plain CQL",
    )
    expert_cloning: Number = Field(
        default=1.0,
        ge=0,
        description="weight of what keeps each expert what it is called, in both phases: the divergence of its "
        "portfolio from the mean of those that its family's rules name",
    )
    gate_balance: Number = Field(
        default=0.3,
        ge=0,
        description="weight, online, of what keeps the gate open to every expert: the divergence of equal use from the "
        "gate's mean over a batch; 0 is off",
    )
    one_head: Flag = Field(
        default=False,
        description="one portfolio made from every feature in place of five experts and their gate, to compare with",
    )
    least_pull: Number = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of the way at least by which an aim learns online as if it were traded; 0 is off",
    )
    actor_lr: Number = Field(default=3e-4, gt=0, le=1, description="learning rate of the policy")
    critic_lr: Number = Field(default=3e-4, gt=0, le=1, description="learning rate of critics and value function")
    critic_schedule: Literal["constant", "cosine"] = Field(
        default="constant",
        description="offline, whether that rate stays, as published, or falls along a cosine as the actor's does",
    )
    online_schedule: Literal["constant", "cosine"] = Field(
        default="constant",
        description="online, whether the rates of policy and critics stay, as published, or fall along a cosine to the "
        "end of the phase",
    )
    gamma: Number = Field(default=0.99, gt=0, lt=1, description="discount per decision")
    tau: Number = Field(
        default=0.005, gt=0, le=1, description="share of the critic that moves into its target per update"
    )
    n_critics: Int = Field(default=2, ge=1, le=20, description="critics in the ensemble")
    n_quantiles: Int = Field(
        default=32, ge=1, description="quantiles of each critic's return distribution; 1 is a scalar critic"
    )
    dropped_quantiles: Int = Field(
        default=2, ge=0, description="top quantiles of each critic left out of online targets"
    )
    hidden_dim: Int = Field(default=256, ge=8, le=8192, description="width of the hidden layers")
    memory_capacity: Int = Field(default=50_000, ge=1, description="online transitions kept for replay")
    dropout: Number = Field(default=0.0, ge=0, lt=1, description="dropout in the hidden layers of policy and critics")
    gradient_norm: Number = Field(
        default=10.0, gt=0, description="largest norm of a gradient, longer ones are shortened"
    )
    actor_weight_decay: Number = Field(
        default=0.0,
        ge=0,
        le=100,
        description="decoupled decay of the policy's weights, per update and unit of learning rate",
    )
    critic_weight_decay: Number = Field(
        default=0.0, ge=0, le=100, description="the same of the critics and of the value networks"
    )
    trade_rate_floor: Number = Field(
        default=0.0, ge=0, le=1, description="least share of the way to its aim that the policy goes in a decision"
    )
    trade_rate_ceiling: Number = Field(default=1.0, gt=0, le=1, description="greatest share of it")
    anchor: AnchorConfig = Field(default=AnchorConfig(), description="what holds the online policy back")
    averaging: AveragingConfig = Field(default=AveragingConfig(), description="average of the online policy")
    mixed_precision: Flag = Field(
        default=False, description="matrix products of an update in bfloat16; decisions and losses stay in float32"
    )
    gradient_checkpointing: Flag = Field(
        default=False, description="compute hidden layers again in the backward pass, in place of keeping them"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.dropped_quantiles >= self.n_quantiles > 1:
            raise ValueError(
                f"bcell.dropped_quantiles = {self.dropped_quantiles} must be below "
                f"bcell.n_quantiles = {self.n_quantiles}"
            )
        if self.trade_rate_floor >= self.trade_rate_ceiling:
            raise ValueError(
                f"bcell.trade_rate_floor = {self.trade_rate_floor} must be below "
                f"bcell.trade_rate_ceiling = {self.trade_rate_ceiling}"
            )
        if self.risk_measure != "neutral" and self.n_quantiles == 1:
            raise ValueError(
                f"bcell.risk_measure = {self.risk_measure} needs a distribution: bcell.n_quantiles = 1 is a mean alone"
            )
        if self.cql_mode == "lagrange" and self.cql_alpha == 0.0:
            raise ValueError("bcell.cql_mode = lagrange starts from bcell.cql_alpha, which must be above 0")
        return self


def period_of(text: str) -> tuple[str, dt.date, dt.date]:
    """Name, first and last day of a period written NAME:FIRST-DAY:LAST-DAY.

    Raises
    ------
    ValueError
        Saying what is wrong with it.
    """
    parts = text.rsplit(":", 2)
    try:
        name, first, last = parts[0].strip(), dt.date.fromisoformat(parts[1]), dt.date.fromisoformat(parts[2])
    except (IndexError, ValueError):
        name = ""
    if not name:
        raise ValueError(
            f"evaluation.periods names {text!r}: NAME:FIRST-DAY:LAST-DAY is needed, as in crash:1987-10-01:1987-12-31"
        )
    if first >= last:
        raise ValueError(f"evaluation.periods names {text!r}, whose first day is not before its last")
    return name, first, last


class TaxConfig(Section):
    """Tax on capital gains and interest, reckoned beside every backtest; no strategy decides by it."""

    enabled: Flag = Field(default=False, description="reckon what is left after tax")
    short_rate: Number = Field(
        default=0.37, ge=0, lt=1, description="rate on gains of lots held for tax.days or less, and on interest"
    )
    long_rate: Number = Field(default=0.20, ge=0, lt=1, description="rate on gains of lots held for longer")
    days: Int = Field(default=365, ge=0, description="calendar days a lot must be held for more than, to be long-term")
    method: Literal["fifo", "hifo"] = Field(
        default="fifo", description="which lots a sale takes: the oldest first, or those that cost most"
    )


class StabilityConfig(Section):
    """What the stability monitor calls healthy; values are in scaled rewards."""

    q_limit: Number = Field(
        default=100.0, gt=0, description="magnitude of Q that is too large at gamma 0.99; scales with 1 / (1 - gamma)"
    )
    entropy_limit: Number = Field(
        default=0.01, ge=0, lt=1, description="too concentrated: H(w) / ln K, or exp((H - H_max) / (K - 1)), below it"
    )
    actor_loss_limit: Number = Field(default=50.0, gt=0, description="actor loss that is too large")
    critic_loss_limit: Number = Field(default=20.0, gt=0, description="critic loss that is too large")
    sharpe_limit: Number = Field(default=-0.5, description="validation Sharpe ratio that is too low")
    gate_limit: Number = Field(
        default=0.99, gt=0, le=1, description="weight of one expert, on average, over which the gate has collapsed"
    )
    turnover_ratio: Number = Field(
        default=5.0, gt=1, description="turnover that explodes, as a multiple of the last healthy policy's"
    )
    growth_limit: Number = Field(
        default=3.0, gt=1, description="growth of a network's parameters since the last healthy snapshot, as a multiple"
    )
    reward_outlier: Number = Field(
        default=50.0, gt=0, description="robust deviations from the median at which a reward is an outlier"
    )
    reward_limit: Number = Field(
        default=1000.0, gt=0, description="magnitude of a reward that no market makes: it is not learned from"
    )
    deviations: Number = Field(
        default=10.0, gt=0, description="robust deviations from its own recent values at which a signal is unusual"
    )
    window: Int = Field(default=100, ge=20, description="updates that a signal is compared with")
    warmup: Int = Field(default=30, ge=5, description="updates of a phase before a signal is compared with itself")
    hits: Int = Field(default=5, ge=1, description="updates in a row beyond a limit before there is an alarm")
    quiet: Int = Field(default=30, ge=0, description="updates without alarms after a phase begins or is restored")
    check_interval: Int = Field(default=10, ge=1, description="updates between looks at the policy and the parameters")
    probe_states: Int = Field(default=64, ge=2, description="recorded states on which the policy is looked at")
    skip_limit: Int = Field(default=5, ge=1, description="updates skipped in a row before there is an alarm")


#: save_interval, max_checkpoints, kl_threshold, loss_spike, reward_drop of the presets
_ROLLBACK_PRESETS = {"conservative": (50, 10, 0.05, 2.0, 0.7), "aggressive": (200, 3, 0.15, 5.0, 0.3)}


class RollbackConfig(Section):
    """When a training goes back to an earlier state, and how far; intervals are in gradient updates."""

    preset: Literal["default", "conservative", "aggressive"] = Field(
        default="default",
        description="conservative or aggressive values of the five keys that follow, where they are not given",
    )
    save_interval: Int = Field(default=100, ge=1, description="updates between snapshots in memory")
    max_checkpoints: Int = Field(default=5, ge=1, description="snapshots kept, the newest; the best is kept beside")
    kl_threshold: Number = Field(
        default=0.1, gt=0, description="KL to the last healthy policy that is too far, nats per free dimension"
    )
    loss_spike: Number = Field(default=3.0, gt=1, description="rise of a loss that is too much, in multiples of usual")
    reward_drop: Number = Field(
        default=0.5, gt=0, lt=1, description="share of the usual mean reward under which it has dropped"
    )
    metric_window_size: Int = Field(default=10, ge=3, description="looks that losses and rewards are compared with")
    probation: Int = Field(default=100, ge=0, description="updates without an alarm after which a snapshot is healthy")
    lr_factor: Number = Field(default=0.5, gt=0, lt=1, description="learning rates are lowered by it")
    recovery: Int = Field(
        default=200, ge=1, description="updates without an alarm after which learning rates grow back a step"
    )
    max_retries: Int = Field(default=3, ge=0, description="rollbacks in a row, without a recovery, before a stop")
    max_rollbacks: Int = Field(default=10, ge=0, description="rollbacks of a phase before a stop")

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, given: Any) -> Any:
        """The preset's values where a key was not given."""
        if not isinstance(given, dict) or given.get("preset") not in _ROLLBACK_PRESETS:
            return given
        names = ("save_interval", "max_checkpoints", "kl_threshold", "loss_spike", "reward_drop")
        return dict(zip(names, _ROLLBACK_PRESETS[given["preset"]], strict=True)) | given


class GuardConfig(Section):
    """What keeps learning safe."""

    enabled: Flag = Field(default=True, description="watch every update, and go back to a healthy state where needed")
    stability: StabilityConfig = Field(default=StabilityConfig(), description="what is healthy")
    rollback: RollbackConfig = Field(default=RollbackConfig(), description="going back")


class ProtocolConfig(Section):
    """How an evaluation that trains anew for every fold (`--protocol walk-forward` or `cpcv`) cuts the bars.

    All of it within training and validation windows; the test window stays unread.
    """

    folds: Int = Field(default=5, ge=2, description="walk-forward: windows that are judged one after another")
    first_share: Number = Field(
        default=0.5, gt=0, lt=1, description="walk-forward: share of the bars that the first fold may learn from"
    )
    groups: Int = Field(default=6, ge=3, description="cpcv: groups that the bars are cut into")
    test_groups: Int = Field(default=2, ge=2, description="cpcv: groups that each fold is judged on")
    purge: Int | None = Field(
        default=None,
        ge=0,
        description="bars beside a judged window that are not learned from; left out: as many as the longest feature",
    )
    embargo: Int = Field(default=21, ge=0, description="cpcv: bars after a judged window that are held out as well")
    validation_share: Number = Field(
        default=0.2, gt=0, lt=1, description="share of a fold's bars, the last of them, to choose its checkpoint by"
    )
    seeds: Int = Field(default=1, ge=1, description="trainings of each fold, with the seeds from train.seed on")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.test_groups >= self.groups:
            raise ValueError(
                f"evaluation.protocol.test_groups = {self.test_groups} must be below evaluation.protocol.groups = "
                f"{self.groups}: something has to be left to learn from"
            )
        return self


class EvaluationConfig(Section):
    """How results are judged, and how the classical strategies are fitted."""

    bootstrap_samples: Int = Field(default=2000, ge=100, description="resamples behind each interval")
    confidence: Number = Field(default=0.95, gt=0, lt=1, description="coverage of the intervals")
    block_length: Int = Field(default=21, ge=1, description="mean block of the stationary bootstrap, in bars")
    rebalance_every: Int = Field(default=21, ge=1, description="decisions between refits of a rolling strategy")
    lookback: Int = Field(default=252, ge=20, description="bars that a rolling strategy is fitted on")
    sweeps: Flag = Field(
        default=True,
        description="run again at other costs, lags and capital, and over the stress periods; a backtest always does",
    )
    periods: Names = Field(
        default=(), description="stress periods of your own beside the four, each NAME:FIRST-DAY:LAST-DAY"
    )
    top: Int = Field(default=5, ge=1, description="K of the ranking view, in assets")
    tax: TaxConfig = Field(default=TaxConfig(), description="tax on capital gains and interest")
    protocol: ProtocolConfig = Field(default=ProtocolConfig(), description="evaluations that train for every fold")
    configurations_tried: Int = Field(
        default=1,
        ge=1,
        description="configurations that the judged one was chosen among on this panel, itself one",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [name for name, _, _ in map(period_of, self.periods)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"evaluation.periods names {twice[0]} more than once")
        return self


OBJECTIVES = ("sharpe", "sortino", "calmar", "cvar", "dsr")
"""What a study may look for, more being better in all of them; cvar is a return, so less negative."""

Choice = bool | int | float | str


class SearchedConfig(Section):
    """The values of one key that a study tries: a range, or a few choices."""

    low: Number | None = Field(default=None, description="least value")
    high: Number | None = Field(default=None, description="greatest value")
    log: Flag = Field(default=False, description="draw evenly in the logarithm")
    step: Number | None = Field(default=None, gt=0, description="distance between values, counted from low")
    choices: tuple[Choice, ...] | None = Field(default=None, description="the values, in place of a range")

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


class TuneConfig(Section):
    """A search for better values of keys (`--mode tune`); decides no result of a training itself.

    All of it within training and validation windows; the test window stays unread.
    """

    n_trials: Int = Field(default=100, ge=1, description="configurations tried, those that fail among them")
    objective: Names = Field(
        default=("sharpe",),
        description="what is looked for: sharpe, sortino, calmar, cvar or dsr, net of costs, on the judged windows; "
        "several are looked for at once (Pareto front)",
    )
    folds: Int = Field(
        default=2,
        ge=1,
        description="judged windows of a trial, by the walk-forward protocol of evaluation.protocol; 1 is the "
        "validation window",
    )
    seeds: Int = Field(default=2, ge=1, description="trainings of each fold, with the seeds from train.seed on")
    aggregate: Literal["cautious", "median", "mean"] = Field(
        default="cautious",
        description="what a trial's trainings count for together; cautious is the mean less tune.deviations deviations",
    )
    deviations: Number = Field(
        default=0.5, ge=0, description="deviations between trainings that are taken off the mean where it is cautious"
    )
    sampler: Literal["tpe", "random"] = Field(default="tpe", description="how configurations are drawn")
    pruner: Literal["median", "hyperband", "none"] = Field(
        default="median", description="how trials that fall behind are stopped at validation points"
    )
    startup_trials: Int = Field(default=10, ge=1, description="trials drawn at random before tpe")
    pruned_after: Int = Field(
        default=5, ge=1, description="trials that come to their end before any is pruned by median; Optuna's default"
    )
    seed: Int = Field(default=0, ge=0, lt=2**31, description="of the sampler")
    name: str | None = Field(default=None, description="of the study in its storage; that of its folder when left out")
    storage: str | None = Field(
        default=None,
        description="where trials are kept: an URL such as postgresql://host/database, or journal:PATH for a shared "
        "folder; left out: SQLite in the study's folder",
    )
    heartbeat: Int = Field(
        default=30, ge=1, description="seconds between signs of life; a trial without any for four times that is lost"
    )
    retries: Int = Field(default=3, ge=0, description="times that a trial is run again whose worker was lost")
    space: dict[str, SearchedConfig] | None = Field(
        default=None,
        description="the keys that are searched, each with low and high (log, step) or choices; left out: those in "
        "docs/guide/tuning.md",
    )

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


class OutputConfig(Section):
    """Where files go; decides no result."""

    logs_dir: FilePath = Field(default=Path("logs"), description="folder that holds the run folders")
    offline_dir: FilePath = Field(default=Path("data/offline"), description="folder of collected offline datasets")
    readings: FilePath | None = Field(
        default=None, description="ledger of test readings; left out: readings.jsonl in logs_dir"
    )


class Config(Section):
    """The whole configuration; `Config()` is the default one."""

    market: MarketConfig = Field(default=MarketConfig(), description="prices and their split")
    features: FeaturesConfig = Field(default=FeaturesConfig(), description="features of your own")
    env: EnvConfig = Field(default=EnvConfig(), description="execution, costs and constraints")
    objectives: ObjectivesConfig = Field(default=ObjectivesConfig(), description="the reward")
    train: TrainConfig = Field(default=TrainConfig(), description="length and rhythm of learning")
    offline: OfflineConfig = Field(default=OfflineConfig(), description="the offline phase")
    worlds: WorldsConfig = Field(default=WorldsConfig(), description="randomised worlds to learn in")
    bcell: BCellConfig = Field(default=BCellConfig(), description="the agent")
    guard: GuardConfig = Field(default=GuardConfig(), description="safety of learning")
    evaluation: EvaluationConfig = Field(default=EvaluationConfig(), description="the judgement")
    tune: TuneConfig = Field(default=TuneConfig(), description="the search for better values")
    output: OutputConfig = Field(default=OutputConfig(), description="files")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.train.target_entropy_schedule.enabled and self.bcell.alpha_mode != "auto":
            raise ValueError(
                f"bcell.alpha_mode = {self.bcell.alpha_mode} has no target entropy: "
                "train.target_entropy_schedule.enabled belongs to bcell.alpha_mode = auto"
            )
        if self.worlds.assets is not None and self.offline.decisions:
            raise ValueError(
                f"worlds.assets = {self.worlds.assets} and offline.decisions are both set, but decisions of your own "
                "are about all assets; set worlds.assets to null, or leave the decisions out"
            )
        if self.bcell.risk_measure != "neutral" and self.train.reward_normalization.enabled:
            raise ValueError(
                f"bcell.risk_measure = {self.bcell.risk_measure} needs rewards in units that stay: "
                "train.reward_normalization.enabled must be false"
            )
        return self
