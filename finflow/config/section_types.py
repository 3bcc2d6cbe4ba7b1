"""Types of configuration values, with their checks, and the base class of sections."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict

from finflow.config.yaml_text import CONTROL
from finflow.errors import ConfigError


def _integral(value: Any) -> Any:
    """Read 1e5 as a whole number; leave other values to the strict check."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _split_names(value: Any) -> Any:
    """Read "AAPL MSFT" or "AAPL,MSFT" as a list of names."""
    return tuple(part for part in re.split(r"[,\s]+", value) if part) if isinstance(value, str) else value


def _refuse_timestamp(value: Any) -> Any:
    """Refuse numbers, which pydantic would read as seconds since 1970."""
    if isinstance(value, int | float):
        raise ValueError("a date is needed")
    return value


def _as_list(value: Any) -> Any:
    """Read one path as a list of one, whatever characters it has."""
    return (value,) if isinstance(value, str | Path) else value


def _refuse_number(value: Any) -> Any:
    """Refuse a number in quotes, which would be read as the name of a file."""
    try:
        float(str(value))
    except ValueError:
        return value
    raise ValueError("a path is needed")


def _refuse_control(value: Any) -> Any:
    """Refuse tabs and line ends, which YAML makes of Windows paths in double quotes."""
    if isinstance(value, str | Path) and CONTROL.search(str(value)):
        raise ValueError("a path without control characters is needed")
    return value


Int = Annotated[int, Strict(), BeforeValidator(_integral)]
PositiveInt = Annotated[Int, Field(ge=1)]
NonNegativeInt = Annotated[Int, Field(ge=0)]
Number = Annotated[float, Strict()]
PositiveNumber = Annotated[Number, Field(gt=0)]
NonNegativeNumber = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
PositiveShare = Annotated[Number, Field(gt=0, le=1)]
Fraction = Annotated[Number, Field(gt=0, lt=1)]
Rate = Annotated[Number, Field(gt=-100, le=100)]  # a fraction, or in percent
Flag = Annotated[bool, Strict()]
Names = Annotated[tuple[str, ...], BeforeValidator(_split_names)]
Date = Annotated[dt.date, BeforeValidator(_refuse_timestamp)]
FilePath = Annotated[Path, BeforeValidator(_refuse_control)]
FilePaths = Annotated[tuple[FilePath, ...], BeforeValidator(_as_list)]
RateFile = Annotated[FilePath, BeforeValidator(_refuse_number)]


class ConfigSection(BaseModel):
    """Base of every section: immutable, without unknown keys, NaN or infinities."""

    place: ClassVar[str] = ""  # of the section, such as "bcell."
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __setattr__(self, name: str, value: Any) -> None:
        """Raise a ConfigError, and never change anything."""
        raise ConfigError(
            f"{self.place}{name} cannot be changed in a configuration: make another one, with "
            f'load_config(..., {{"{self.place}{name}": {value!r}}})'
        )


def key(default: Any, description: str, **bounds: Any) -> Any:
    """Define a key by its default, a description of it, and bounds (gt, ge, lt, le) beyond those of its type."""
    return Field(default, description=description, **bounds)


def first_repeated(names: Sequence[str]) -> str | None:
    """Return the first name that appears a second time, or None."""
    return next((name for position, name in enumerate(names) if name in names[:position]), None)
