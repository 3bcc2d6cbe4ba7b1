"""Numbers of `metrics.json` and of pages: their types, their places, their JSON, and their formats.

Numbers are fractions, not percent, and NaN, null in JSON, where they are undefined. The types describe themselves, for
the JSON schemas.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from finflow.evaluation.page.drawing import MINUS, TIMES
from finflow.market.bar_frequency import BARS_PER_YEAR, SPACINGS, bar_name

THIN = "\N{NARROW NO-BREAK SPACE}"
DASH = "\N{EN DASH}"
#: Unit -> factor that a value is multiplied by to be shown, and what follows the number.
UNITS = {
    "": (1.0, ""),
    "%": (100.0, f"{THIN}%"),
    "bp": (1.0, f"{THIN}bp"),
    TIMES: (1.0, TIMES),
    ",": (1.0, ""),
    "g": (1.0, ""),
    "years": (1.0 / BARS_PER_YEAR, ""),
    **{f"years of {one.name}s": (1.0 / year, "") for year, one in SPACINGS.items() if year != BARS_PER_YEAR},
}

Path = tuple[str, ...]


def years_unit(bars_per_year: int) -> str:
    """Unit of a number of bars that is shown in years."""
    return "years" if bars_per_year == BARS_PER_YEAR else f"years of {bar_name(bars_per_year)}s"


def about(description: str) -> FieldInfo:
    field: FieldInfo = Field(description=description)
    return field


@dataclass(frozen=True)
class Shown:
    """Form of a field in tables, among its annotations: heading, unit (a key of `UNITS`), decimals, sign."""

    heading: str
    unit: str = ""
    decimals: int = 2
    plus: bool = False


def _within(**limits: float) -> WithJsonSchema:
    """Schema of a number that may be undefined: NaN here, which is null in JSON."""
    return WithJsonSchema({"anyOf": [{"type": "number", **limits}, {"type": "null"}]})


Number = Annotated[float, _within()]
Numbers = dict[str, Number]
Share = Annotated[float, _within(minimum=0.0, maximum=1.0)]
Bounds = Annotated[list[float], Field(min_length=2, max_length=2)] | None
Answer = Literal["yes", "no", "not shown"]

Sharpe = Annotated[
    Number, about("Mean over standard deviation of returns in excess of cash, annualised."), Shown("Sharpe")
]
Return = Annotated[
    Number,
    about("Geometric mean of the net returns, a fraction a year; -1 after ruin."),
    Shown("Return a year", "%", 1),
]
Volatility = Annotated[
    float,
    _within(minimum=0.0),
    about("Standard deviation of the returns of bars, annualised."),
    Shown("Volatility", "%", 1),
]
Drawdown = Annotated[
    float,
    _within(minimum=-1.0, maximum=0.0),
    about("Deepest fall below the highest value so far, a fraction."),
    Shown("Maximum drawdown", "%", 1),
]
Turnover = Annotated[
    float,
    _within(minimum=0.0),
    about("Times a year that the whole portfolio is replaced."),
    Shown("Turnover a year", TIMES, 1),
]
Cost = Annotated[Number, about("Trading costs a year, as a fraction of wealth."), Shown("Costs a year", "%")]
Probability = Annotated[Share, about("Estimated probability.")]
Gate = Annotated[Numbers, about("By expert, its share in the aim; in a blend that of the reference too.")]


def look_up(numbers: Mapping[str, object], path: Path) -> float:
    """The number at a path; NaN for None.

    Raises KeyError if there is none: a table must not show what the file does not have.
    """
    found = find(numbers, path)
    if found is None:
        return math.nan
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise KeyError(f"{'/'.join(path)} is no number")
    return float(found)


def find(numbers: object, path: Path) -> object:
    """The value at a path; a KeyError if there is nothing."""
    found: Any = numbers
    try:
        for key in path:
            found = found[int(key)] if isinstance(found, list | tuple) else found[key]
    except (LookupError, TypeError, ValueError) as error:
        raise KeyError("/".join(path)) from error
    return found


def show(value: float, unit: str = "", decimals: int = 2, *, plus: bool = False, keep_sign: bool = False) -> str:
    """Write a number with its unit; a dash where it is undefined."""
    if not math.isfinite(value):
        return DASH
    scale, suffix = UNITS[unit]
    text = format(value * scale, f"{'+' * plus}{',' * (unit == ',')}.{decimals}{'g' if unit == 'g' else 'f'}")
    if not keep_sign and float(text.replace(",", "")) == 0.0:
        text = text.lstrip("+-")
    return text.replace("-", MINUS) + suffix


def agreeing_decimals(one: float, other: float, fewest: int = 2, most: int = 5) -> int:
    """Decimals with which the difference of the two numbers as printed is their difference as printed."""
    return next(
        (
            places
            for places in range(fewest, most)
            if abs(round(one, places) - round(other, places) - round(one - other, places)) < 10.0 ** -(places + 1)
        ),
        fewest if math.isnan(one - other) else most,
    )


def plain(value: Any) -> Any:
    """The same as JSON knows it: mappings for dataclasses, and None for numbers that are not finite."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def json_text(content: Mapping[str, object]) -> str:
    """JSON text of a page's numbers: sorted keys, two spaces, a line break at the end; null for what is undefined."""
    return json.dumps(plain(content), indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"


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


def schema_of(content: Any, title: str) -> dict[str, Any]:
    """JSON schema (draft 2020-12) of a `TypedDict` or dataclass: closed, with a description of every key."""
    schema = TypeAdapter(content).json_schema(schema_generator=_Closed)
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema, "title": title}
