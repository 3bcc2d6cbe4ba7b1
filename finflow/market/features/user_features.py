"""Features of a user: functions named in `features.extra`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.config import LENSES
from finflow.errors import MarketError, typed_line
from finflow.imports import import_path
from finflow.market.panel import MarketPanel

FloatArray = NDArray[np.float64]


class UserFeature(NamedTuple):
    """A feature of a user, the lenses that read it, and its function."""

    name: str
    lenses: tuple[str, ...]
    compute: Callable[[MarketPanel], FloatArray]


def user_feature(path: str) -> UserFeature:
    """Import a feature of a user, ``package.module:function``, for every expert, or with ``@lens`` for one.

    The function takes the panel and returns (bars, assets), or (bars,) for a feature of the market, which all experts
    read; row t may use bars up to t. Where a value is not finite, the whole asset, or the whole market, counts as
    unknown at that bar. `MarketError` if it cannot be imported; and, on computing, if it raises or returns anything
    else.
    """
    place, _, lens = path.partition("@")
    name = place.rpartition(":")[2]
    try:
        function = import_path(place)
    except Exception as error:
        raise MarketError(f"the feature {place!r} cannot be imported: {typed_line(error)}") from error
    if not callable(function):
        raise MarketError(f"the feature {place!r} is not a function of the panel")

    def compute(panel: MarketPanel) -> FloatArray:
        try:
            values = np.array(function(panel), dtype=np.float64)
        except Exception as error:
            raise MarketError(f"the feature {place!r} failed: {typed_line(error)}") from error
        if values.shape not in (panel.close.shape, (panel.n_bars,)):
            raise MarketError(
                f"the feature {place!r} has the shape {values.shape}, not {panel.close.shape} (bars by assets) or "
                f"{(panel.n_bars,)} (of the market)"
            )
        if lens and values.ndim == 1:
            raise MarketError(f"the feature {place!r} is of the market, which every expert reads; leave @{lens} out")
        if not np.isfinite(values).any():
            raise MarketError(f"the feature {place!r} has not one finite value")
        return values

    return UserFeature(name, (lens,) if lens else LENSES, compute)
