"""Types of `metrics.json` as a whole, and the JSON schemas generated from them.

`Report` is that of a run, `ComparisonNumbers` that of a comparison. Every key there may be is named in a type:
another one does not pass the schema.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema
from typing_extensions import TypedDict

from finflow.config import ProtocolConfig
from finflow.evaluation.analysis.attribution import SourceEarnings
from finflow.evaluation.analysis.decision_explanation import Explanation
from finflow.evaluation.analysis.expert_traits import ExpertTraits, GateState
from finflow.evaluation.analysis.factors import Factors
from finflow.evaluation.analysis.feature_distance import FeatureDistance
from finflow.evaluation.analysis.optimality import KnownOptimum
from finflow.evaluation.analysis.ranking import RankingNumbers
from finflow.evaluation.analysis.stress import StressPeriod
from finflow.evaluation.analysis.training_sections import Generalisation, OutOfFold
from finflow.evaluation.multi_run.comparison_page import ComparedMetric, Seeds
from finflow.evaluation.multi_run.joined_verdict import WalkForwardVerdict
from finflow.evaluation.report.report_numbers import (
    Answer,
    Cost,
    High,
    Low,
    Number,
    Numbers,
    Probability,
    Return,
    Share,
    Sharpe,
    Turnover,
    Volatility,
    about,
    one_of,
)
from finflow.evaluation.report.results import Bootstrap, DifferenceNumbers, StrategyNumbers, Window
from finflow.evaluation.statistics.backtest_overfitting import OverfittingNumbers
from finflow.evaluation.statistics.bootstrap import Interval
from finflow.evaluation.statistics.metrics import Metrics
from finflow.evaluation.statistics.report_statistics import StepM, VerdictNumbers
from finflow.evaluation.statistics.run_statistics import RunFigures, Spread


class TaxSettings(TypedDict):
    """Settings as configured under evaluation.tax."""

    days: Annotated[int, about("Gains of lots held for this long or less are short-term.")]
    short_rate: Annotated[Share, about("Tax on short-term gains and interest.")]
    long_rate: Annotated[Share, about("Tax on long-term gains.")]


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
    capacity: Annotated[Number, about("Capital at which size-dependent costs take half of the lead over equal weight.")]


class ProtocolWindow(RunFigures, Window):
    """Figures of one training in one window."""

    fold: Annotated[int, about("Fold of the training.")]
    seed: Annotated[int, about("Its seed.")]
    window: Annotated[int, about("Number of the window, from 1, in the order of time.")]
    path: Annotated[int, about("The path that it belongs to, from 1, of its seed.")]


class ProtocolPath(RunFigures):
    """Figures of one path."""

    pbo: Annotated[Share, about("Probability that choosing among it and the strategies by Sharpe ratio is overfitted.")]


Spreads = dict[Annotated[str, one_of(RunFigures.__annotations__)], Spread]


class Improvement(TypedDict):
    """Probability that an agent drawn at random is ahead of equal weight, by Sharpe ratio."""

    probability: Probability
    interval_low: Low
    interval_high: High


class ProtocolImprovement(Improvement):
    """Probability that a training is ahead of equal weight, by Sharpe ratio, in a window drawn at random."""

    windows: Annotated[int, about("Windows.")]
    trainings_of_a_window: Annotated[int, about("Trainings that judged each.")]


class ProtocolPbo(TypedDict):
    """Probability of backtest overfitting of the paths."""

    median: Annotated[Share, about("Median over the paths.")]
    strategies: Annotated[int, about("Number of strategies chosen among, the path itself included.")]


class Protocol(TypedDict):
    """Trainings made anew for every fold, and the spread of their results."""

    name: Annotated[str, about("walk-forward or cpcv.")]
    settings: Annotated[ProtocolConfig, about("As configured under evaluation.protocol.")]
    windows: Annotated[dict[str, ProtocolWindow], about("By training and window: fold F, seed S, window W.")]
    paths: Annotated[dict[str, ProtocolPath], about("By number: windows that follow one another, of one seed.")]
    shown_path: Annotated[int, about("The path of median Sharpe ratio, which the rest of the report shows.")]
    of_windows: Annotated[Spreads, about("Over the windows; empty for one.")]
    of_paths: Annotated[Spreads, about("Over the paths; empty for one.")]
    improvement: Annotated[ProtocolImprovement, about("Probability that a training is ahead of equal weight.")]
    pbo: Annotated[ProtocolPbo, about("Of the paths.")]


class BestOfSeveral(TypedDict):
    """The one with the best Sharpe ratio, judged as the best of several."""

    name: Annotated[str, about("Its name.")]
    beats_equal_weight: Annotated[Answer, about("The answer, with the choice taken into account.")]
    tries: Annotated[int, about("Number that deflates: those chosen among, or the readings on file if more.")]
    psr: Annotated[Number, about("Probabilistic Sharpe ratio of its return over equal weight, against zero.")]
    dsr: Annotated[Number, about("The same, deflated for the tries.")]
    spa_p: Annotated[Number, about("Consistent p-value of SPA, of all of them together.")]
    sharpe_difference_interval: Annotated[Interval, about("Of the paired difference of Sharpe ratios.")]


class ChoiceNumbers(TypedDict):
    """Choice of the best of several configurations."""

    overfitting: Annotated[OverfittingNumbers | None, about("CSCV of that choice; null where it cannot be computed.")]
    best: Annotated[BestOfSeveral | None, about("The best of them; null where that was not asked.")]


class EnsembleFigures(RunFigures):
    """Figures of the ensemble."""

    agents_behind: Annotated[Number, about("Share of the agents whose Sharpe ratio is below that of the ensemble.")]


class SeedAgents(TypedDict):
    """Agents of several seeds, each judged alone beside the ensemble of them."""

    agents: Annotated[dict[str, RunFigures], about("By agent.")]
    ensemble: Annotated[EnsembleFigures, about("The mean of their portfolios.")]
    baseline: Annotated[RunFigures, about("Equal weight.")]
    of_agents: Annotated[Spreads, about("Over the agents; empty for one.")]
    improvement: Annotated[Improvement, about("Probability that an agent drawn at random is ahead of equal weight.")]
    optimality: NotRequired[
        Annotated[Numbers, about("By agent, in a synthetic market: 1 is the best policy, 0 the baseline.")]
    ]


class Report(TypedDict):
    """Every number of `report.html`.

    Fractions, not percent; null where a figure is undefined. No times of day and no paths. What a report has nothing to
    say of is left out; a key that is not named here does not belong.
    """

    agent: Annotated[str, about("Name of the judged strategy: a key of strategies.")]
    against_equal_weight: DifferenceNumbers
    bootstrap: Bootstrap
    cvar_alpha: Annotated[Number, about("Level of the CVaR.")]
    experts: Annotated[dict[str, Metrics], about("By expert of the agent, deciding alone.")]
    strategies: Annotated[dict[str, StrategyNumbers], about("By strategy, the judged one among them.")]
    window: Window
    verdict: Annotated[VerdictNumbers | None, about("Verdict against equal weight; null where it was not compared.")]
    stepm: Annotated[StepM | None, about("StepM of all strategies together; null where it cannot be made.")]
    overfitting: Annotated[
        OverfittingNumbers | None, about("Of choosing the best by Sharpe ratio; null where it cannot be computed.")
    ]
    optimum: NotRequired[KnownOptimum]
    attribution: NotRequired[
        Annotated[dict[str, SourceEarnings], about("By strategy: earnings of 1 invested, by source, in money.")]
    ]
    decisions: NotRequired[
        Annotated[dict[str, Explanation], about("By date of the fill: the largest trades of an agent.")]
    ]
    tax: NotRequired[Tax]
    sweeps: NotRequired[Sweeps]
    stress: NotRequired[Annotated[dict[str, StressPeriod], about("By period.")]]
    factors: NotRequired[Factors]
    ranking: NotRequired[RankingNumbers]
    protocol: NotRequired[Protocol]
    walk_forward: NotRequired[WalkForwardVerdict]
    choice: NotRequired[ChoiceNumbers]
    generalisation: NotRequired[Generalisation]
    out_of_fold: NotRequired[OutOfFold]
    feature_distance: NotRequired[FeatureDistance]
    seeds: NotRequired[SeedAgents]
    gate_states: NotRequired[
        Annotated[
            dict[str, GateState],
            about(
                "By state of the market, by the crisis score that the agent observed: calm (under 0.2), between, or "
                "crisis (0.8 or more); states that never were are left out."
            ),
        ]
    ]
    expert_traits: NotRequired[ExpertTraits]


class ComparedRun(RunFigures):
    """One run of a comparison, as its own report has it."""

    judged: Annotated[str, about("The strategy that it judged.")]
    seed: Annotated[int | None, about("Of its training, where it has one.")]
    beats_equal_weight: Annotated[Answer | None, about("Its own verdict, of it alone; null where it was not compared.")]
    annual_volatility: Volatility
    cvar: Annotated[Number, about("Mean of the worst daily returns.")]
    annual_cost: Cost
    dsr: Annotated[Number, about("Deflated Sharpe ratio of its return over equal weight.")]
    spa_p: Annotated[Number, about("Consistent p-value of SPA, of it alone.")]
    intervals: Annotated[dict[ComparedMetric, Interval], about("By metric, its bootstrap interval.")]


class ComparisonNumbers(TypedDict):
    """Every number of the page that --mode compare writes: fractions, not percent; null where one is undefined."""

    runs: Annotated[dict[str, ComparedRun], about("By run.")]
    seeds: Annotated[dict[str, Seeds], about("By group of runs that differ by the seed alone.")]
    choice: ChoiceNumbers
    differences: Annotated[dict[str, dict[str, str]], about("By key of the configuration, by run: its value, as JSON.")]
    window: Window
    panel: Annotated[str, about("SHA-256 of the prices.")]


class _Closed(GenerateJsonSchema):
    """Schemas whose objects take no key that is not named, without titles."""

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return self._close(super().typed_dict_schema(schema))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return self._close(super().dataclass_schema(schema))

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        return self._close({**made, "required": list(made["properties"])})

    def _close(self, made: JsonSchemaValue) -> JsonSchemaValue:
        return {key: value for key, value in {**made, "additionalProperties": False}.items() if key != "title"}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema(kind: Literal["report", "comparison"]) -> dict[str, Any]:
    """JSON schema (draft 2020-12) of the `metrics.json` of a run or a comparison, with a description of every key."""
    types: dict[str, Any] = {"report": Report, "comparison": ComparisonNumbers}
    return schema_of(types[kind], f"metrics.json of a finflow {kind}")


def schema_of(content: Any, title: str) -> dict[str, Any]:
    """JSON schema (draft 2020-12) of a `TypedDict` or dataclass: closed, with a description of every key."""
    schema = TypeAdapter(content).json_schema(schema_generator=_Closed)
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema, "title": title}
