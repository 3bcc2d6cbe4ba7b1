"""JSON schemas of the files that finflow writes, generated from the types of their contents."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema
from typing_extensions import TypedDict

from finflow.evaluation.analysis.decision_explanation import Explanation
from finflow.evaluation.analysis.optimality import KnownOptimum
from finflow.evaluation.report.report_numbers import Bounds, Number, Share, about
from finflow.evaluation.statistics.metrics import Metrics
from finflow.evaluation.statistics.report_statistics import VerdictNumbers

Figures = dict[str, Any]


class StrategyNumbers(Metrics):
    """One strategy: its metrics, track record against cash and bootstrap intervals."""

    psr: Annotated[Share, about("Probabilistic Sharpe ratio: confidence that the true ratio over cash is above zero.")]
    minimum_track_record: Annotated[
        Number, about("Days needed to be 95 % confident of that; null where none would do.")
    ]
    intervals: Annotated[dict[str, Bounds], about("By metric, low and high end of its bootstrap interval.")]


class Report(TypedDict):
    """Every number of `report.html`.

    Fractions, not percent; null where a figure is undefined. No times of day and no paths. What a report has nothing to
    say of is left out; a key that is not named here does not belong.
    """

    agent: Annotated[str, about("Name of the judged strategy: a key of strategies.")]
    against_equal_weight: Annotated[Figures, about("Sharpe ratio less that of equal weight: interval and finding.")]
    bootstrap: Annotated[Figures, about("Settings of the stationary bootstrap; blocks in days.")]
    cvar_alpha: Annotated[Number, about("Level of the CVaR.")]
    experts: Annotated[dict[str, Metrics], about("By expert of the agent, deciding alone.")]
    strategies: Annotated[dict[str, StrategyNumbers], about("By strategy, the judged one among them.")]
    window: Annotated[Figures, about("End of the first and of the last holding period, and their number.")]
    verdict: Annotated[VerdictNumbers | None, about("Verdict against equal weight; null where it was not compared.")]
    stepm: Annotated[Figures | None, about("StepM of all strategies together; null where it cannot be made.")]
    overfitting: Annotated[
        Figures | None, about("CSCV of choosing the best by Sharpe ratio; null where it cannot be computed.")
    ]
    optimum: NotRequired[KnownOptimum]
    attribution: NotRequired[Annotated[Figures, about("By strategy: earnings of 1 invested, by source, in money.")]]
    decisions: NotRequired[
        Annotated[dict[str, Explanation], about("By date of the fill: the largest trades of an agent.")]
    ]
    tax: NotRequired[Annotated[Figures, about("Settings, and by strategy a year's return before and after tax.")]]
    sweeps: NotRequired[Annotated[Figures, about("Strategies at other costs, lags and capital; break-even costs.")]]
    stress: NotRequired[Annotated[Figures, about("By stress period: its days, and figures by strategy.")]]
    factors: NotRequired[Annotated[Figures, about("Regressions on factors of the panel and on ETFs, by strategy.")]]
    ranking: NotRequired[Annotated[Figures, about("The weights as a ranking of the assets, by horizon in bars.")]]
    protocol: NotRequired[Annotated[Figures, about("Trainings for every fold, their windows, paths and spread.")]]
    walk_forward: NotRequired[Annotated[Figures, about("Verdict over all judged years of a walk-forward.")]]
    choice: NotRequired[Annotated[Figures, about("Choice of the best of several configurations.")]]
    generalisation: NotRequired[Annotated[Figures, about("Values in training and validation, first, best and last.")]]
    out_of_fold: NotRequired[Annotated[Figures, about("Evidence from blocks of training years that were left out.")]]
    feature_distance: NotRequired[Annotated[Figures, about("Features of another market against those of training.")]]
    seeds: NotRequired[Annotated[Figures, about("Agents of several seeds, each alone, beside their ensemble.")]]
    gate_states: NotRequired[Annotated[Figures, about("Shares of the experts by the crisis score that was observed.")]]
    expert_traits: NotRequired[Annotated[Figures, about("Traits of the experts' portfolios, and of equal weight.")]]


class _Closed(GenerateJsonSchema):
    """Schemas whose objects take no key that is not named, without titles."""

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return self._close(super().typed_dict_schema(schema))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return self._close(super().dataclass_schema(schema))

    def _close(self, made: JsonSchemaValue) -> JsonSchemaValue:
        return {key: value for key, value in {**made, "additionalProperties": False}.items() if key != "title"}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """JSON schema of the `metrics.json` of a run: every key that it may have, and what stands there."""
    return schema_of(Report, "metrics.json of a finflow report")


def schema_of(content: Any, title: str) -> dict[str, Any]:
    """JSON schema (draft 2020-12) of a `TypedDict` or dataclass: closed, with a description of every key."""
    schema = TypeAdapter(content).json_schema(schema_generator=_Closed)
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema, "title": title}
