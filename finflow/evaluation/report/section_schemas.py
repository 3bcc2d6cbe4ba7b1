"""Types of the numbers in `metrics.json` of sections that only some reports have: analyses of one run."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict

from finflow.evaluation.report.number_types import (
    Cost,
    Gate,
    Number,
    Numbers,
    Return,
    Share,
    Sharpe,
    Turnover,
    about,
)


class OptimumWindow(TypedDict):
    """The best policy and the baseline over this window."""

    optimum: Annotated[Number, about("Log growth a bar of the best policy.")]
    baseline: Annotated[Number, about("Of the better of equal weight and holding.")]
    baseline_name: Annotated[str, about("Name of that one.")]


class Score(TypedDict):
    """One strategy's score."""

    score: Annotated[Number, about("1 is the optimum, 0 the baseline.")]
    standard_error: Annotated[Number, about("Of the score.")]
    utility: Annotated[Number, about("Expected log growth a bar of its weights under the price process.")]


class Optimum(TypedDict):
    """Nearness to the best policy, in a synthetic market."""

    parameters: Annotated[dict[str, Any], about("Of the price process, per bar; the names depend on the process.")]
    method: Annotated[str, about("Method that found the best policy.")]
    policy: Annotated[dict[str, Any], about("Its targets for an account in equal weights; names depend on the method.")]
    utility: Annotated[Number, about("Its log growth a bar, in the long run.")]
    window: Annotated[OptimumWindow, about("Over this window.")]
    scores: Annotated[dict[str, Score], about("By strategy.")]


class Earned(TypedDict):
    """Earnings of one strategy by source; assets (or the lines of the experts), cash and costs sum to the total."""

    total: Annotated[Number, about("Total net return over the window.")]
    assets: Annotated[Numbers, about("By asset.")]
    risky: Annotated[Number, about("Sum over the assets.")]
    experts: Annotated[Numbers | None, about("By expert; `none` is what no expert named. Null without an agent.")]
    cash: Annotated[Number, about("Interest on cash.")]
    costs: Annotated[Number, about("Costs, negative.")]


class DecisionWeights(TypedDict):
    """Weights of one asset, from what was held to what is held."""

    held: Annotated[Number, about("As observed.")]
    experts: Annotated[Numbers, about("By expert, its portfolio.")]
    aim: Annotated[Number, about("The experts mixed by the gate.")]
    target: Annotated[Number, about("Part of the way there.")]
    filled: Annotated[Number, about("After the fill, at its prices.")]


class FeaturePart(TypedDict):
    """Share of one feature in a trade."""

    value: Annotated[Number, about("In training deviations from the training mean; the mean over listed assets.")]
    part: Annotated[Number, about("Its contribution to the trade.")]
    by_asset: Annotated[Numbers, about("By asset, for features of assets.")]


class IntegratedGradients(TypedDict):
    """A trade divided among the features."""

    baseline: Annotated[Number, about("The trade with every feature at its training mean.")]
    completeness_error: Annotated[Number, about("Sum of the parts less (traded - baseline).")]
    steps: Annotated[int, about("Of the quadrature.")]
    features: Annotated[dict[str, FeaturePart], about("By feature.")]
    by_trade: Annotated[dict[str, Numbers], about("By asset, for the largest trades: feature -> part in its target.")]


class Change(TypedDict):
    """A decision with one feature at another value."""

    before: Annotated[Number, about("Its value.")]
    after: Annotated[Number, about("The value given to it.")]
    gate: Gate
    trade_rate: Annotated[Number, about("Share of the way to the aim.")]
    traded: Annotated[Number, about("Half-sum of the moves.")]
    target: Annotated[Numbers, about("By asset and cash.")]


class Decision(TypedDict):
    """One decision of an agent, taken apart."""

    known: Annotated[str, about("Newest bar that it knew.")]
    gate: Gate
    trade_rate: Annotated[Number, about("Share of the way to the aim that it goes.")]
    traded: Annotated[Number, about("Half-sum of the moves that it asks for.")]
    turnover: Annotated[Number, about("Of the fill.")]
    cost: Annotated[Number, about("Of the fill, a fraction of wealth.")]
    next_return: Annotated[Number, about("Net, over the bar after the fill.")]
    earned: Annotated[Numbers, about("By asset, cash and costs, its contribution to that return.")]
    weights: Annotated[dict[str, DecisionWeights], about("By asset, and cash.")]
    integrated_gradients: Annotated[IntegratedGradients, about("The trade divided among the features.")]
    what_if: Annotated[dict[str, Change], about("By feature (or ASSET:FEATURE), at another value.")]


class TaxSettings(TypedDict):
    """Settings as configured under evaluation.tax."""

    days: Annotated[int, about("Gains of lots held for this long or less are short-term.")]
    short_rate: Annotated[Share, about("Tax on short-term gains and interest.")]
    long_rate: Annotated[Share, about("Tax on long-term gains.")]
    method: Annotated[Literal["fifo", "hifo"], about("Lots that a sale takes: the oldest, or the dearest.")]


class Taxed(TypedDict):
    """Figures of one strategy before and after tax."""

    before: Annotated[Number, about("Return a year before tax.")]
    after: Annotated[Number, about("Return a year after tax.")]
    liquidated: Annotated[Number, about("Return a year after tax, with everything sold and taxed at the end.")]
    sharpe: Annotated[Number, about("Sharpe ratio after tax, a year.")]
    rate: Annotated[Number, about("Tax a year, as a fraction of mean wealth.")]
    short_share: Annotated[Share, about("Share of the gains that is short-term; null without gains.")]
    tax_paid: Annotated[Number, about("In money, in all.")]
    interest: Annotated[Number, about("On cash, in money, in all.")]


class Tax(TypedDict):
    """Figures after tax."""

    settings: Annotated[TaxSettings, about("As configured under evaluation.tax.")]
    strategies: Annotated[dict[str, Taxed], about("By strategy.")]


class Condition(TypedDict):
    """Figures of one strategy under other conditions."""

    sharpe: Sharpe
    annual_return: Return
    annual_turnover: Turnover
    annual_cost: Cost
    refused: Annotated[int, about("Trades that the account could not pay for.")]


class BreakEven(TypedDict, total=False):
    """Costs at which the judged strategy breaks even with equal weight."""

    return_bps: Annotated[Number, about("Cost a trade, in basis points, at which mean returns are equal.")]
    return_beyond_bps: Annotated[Number, about("Highest cost tried, where it was ahead there too.")]
    sharpe_bps: Annotated[Number, about("The same by Sharpe ratio.")]
    sharpe_beyond_bps: Annotated[Number, about("The same by Sharpe ratio.")]


class Sweeps(TypedDict):
    """All strategies run again under other conditions; each condition by strategy."""

    costs_bps: Annotated[dict[str, dict[str, Condition]], about("By cost of every trade in basis points.")]
    lags: Annotated[dict[str, dict[str, Condition]], about("By execution lag in bars.")]
    configured: Annotated[dict[str, Condition], about("As configured.")]
    break_even: Annotated[BreakEven, about("Costs at which the judged strategy breaks even with equal weight.")]
    capital: Annotated[dict[str, dict[str, Condition]], about("By initial capital, where costs depend on it.")]
    capacity: Annotated[Number, about("Capital at which costs of size take half of the lead over equal weight.")]


# in the functional form, since `return` is a keyword of Python
Stressed = TypedDict(
    "Stressed",
    {
        "return": Annotated[Number, about("Over the period.")],
        "annual_volatility": Annotated[Number, about("Of its days.")],
        "sharpe": Annotated[Number, about("Of its days.")],
        "max_drawdown": Annotated[Number, about("Within it.")],
        "turnover": Annotated[Number, about("Within it, not a year.")],
        "worst_day": Annotated[Number, about("Lowest daily return.")],
    },
)


Stressed.__doc__ = "Figures of one strategy in a stress period."


class StressPeriod(TypedDict):
    """Figures of all strategies in one stress period."""

    first: Annotated[str, about("First day.")]
    last: Annotated[str, about("Last day.")]
    days: Annotated[int, about("Days that count.")]
    sample: Annotated[str, about("in-sample, validation or out-of-sample, or several of these.")]
    strategies: Annotated[dict[str, Stressed], about("By strategy.")]


class Exposure(TypedDict):
    """Least-squares regression of a strategy's daily returns in excess of cash."""

    alpha: Annotated[Number, about("Intercept, a fraction a year.")]
    alpha_error: Annotated[Number, about("Its Newey-West standard error.")]
    beta: Annotated[Numbers, about("By factor, its coefficient.")]
    error: Annotated[Numbers, about("By factor, the coefficient's Newey-West standard error.")]
    days: Annotated[int, about("Days of the regression.")]
    r_squared: Annotated[Number, about("Share of the variance explained.")]


class Factors(TypedDict):
    """Exposure to factors, by strategy."""

    panel: Annotated[dict[str, Exposure], about("On market, momentum and volatility built from the panel.")]
    etfs: Annotated[dict[str, Exposure], about("On the index and five factor ETFs less the index.")]


class Horizon(TypedDict):
    """Ranking measures at one horizon."""

    fills: Annotated[int, about("Fills counted.")]
    ndcg: Annotated[Number, about("NDCG@K.")]
    ndcg_chance: Annotated[Number, about("NDCG@K of a random ranking.")]
    hit: Annotated[Number, about("Hit@K: how often the best asset is among the K largest weights.")]
    hit_chance: Annotated[Number, about("Hit@K of a random ranking.")]
    mrr: Annotated[Number, about("MRR@K.")]
    mrr_chance: Annotated[Number, about("MRR@K of a random ranking.")]
    rank_ic: Annotated[Number, about("Mean rank correlation of weights and returns.")]
    rank_ic_error: Annotated[Number, about("Its standard error.")]


class Ranking(TypedDict):
    """Weights of the judged strategy as a ranking of the assets."""

    k: Annotated[int, about("K of NDCG@K, Hit@K and MRR@K.")]
    horizons: Annotated[dict[str, Horizon], about("By horizon in bars.")]


class GeneralisationPoint(TypedDict):
    """Value of the policy at one point of its training."""

    update: Annotated[int, about("Gradient updates before it.")]
    worlds_value: Annotated[Number, about("Mean reward of a decision in the synthetic training markets.")]
    worlds_sharpe: Annotated[Number, about("Sharpe ratio a year, net, in the synthetic training markets.")]
    train_value: Annotated[Number, about("Mean reward of a decision in the real training window.")]
    train_sharpe: Annotated[Number, about("Sharpe ratio a year, net, in the real training window.")]
    validation_value: Annotated[Number, about("Mean reward of a decision in the validation window.")]
    validation_sharpe: Annotated[Number, about("Sharpe ratio a year, net, in the validation window.")]
    gap: Annotated[Number, about("Value in training less that in validation.")]
    kl: Annotated[Number, about("KL from the pretrained policy, nats per free dimension of the action.")]


class Generalisation(TypedDict):
    """Generalisation of the training; the test window has no part in it."""

    points: Annotated[int, about("Points measured.")]
    first: Annotated[GeneralisationPoint, about("The first measured.")]
    best: NotRequired[Annotated[GeneralisationPoint, about("The best by validation value.")]]
    last: Annotated[GeneralisationPoint, about("The last.")]


class GateState(TypedDict):
    """Means over the decisions in one state of the market."""

    decisions: Annotated[int, about("Decisions in this state.")]
    gate: Annotated[dict[str, float], about("By expert, its mean share in the aim.")]
    cash: Annotated[float, about("Mean share of cash in the aim.")]


class Traits(TypedDict):
    """Traits of one expert's portfolio, or of equal weight."""

    volatility: Annotated[Number, about("Yearly volatility over the last known year.")]
    diversification: Annotated[Number, about("Weighted mean of the assets' volatilities over the portfolio's.")]
    momentum: Annotated[Number, about("Log return of the last known year without its last month, weighted.")]
    beta: Annotated[Number, about("To the equally weighted market, over the last known year.")]
    growth: Annotated[
        Number,
        about("Log growth a year: means over 3 years, shrunk half-way to that of all assets, less half the variance."),
    ]


class AsCalled(TypedDict):
    """Agreement of one expert's portfolio with the trait that its name claims."""

    sleeve: Annotated[bool | None, about("Of the risky sleeve.")]
    total: Annotated[bool | None, about("With cash.")]
    invested: Annotated[bool, about("No more than 70 % cash on average.")]


class ExpertTraits(TypedDict):
    """Traits of the experts' portfolios in the validation window, by what was known at the time; means."""

    days: Annotated[int, about("Decisions measured.")]
    sleeve: Annotated[dict[str, Traits], about("Of the risky sleeve, whose weights sum to one.")]
    total: Annotated[dict[str, Traits], about("With cash.")]
    cash: Annotated[Numbers, about("Share of cash.")]
    as_called: Annotated[dict[str, AsCalled], about("By expert.")]
