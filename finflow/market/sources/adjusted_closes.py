"""The close of a file that has an Adj Close: adjusted for dividends and splits, or as it is."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from finflow.errors import MarketError

ADJUSTED = "adj_close"


def with_adjusted_closes(
    path: Path, tables: dict[str, pd.DataFrame], auto_adjust: bool
) -> tuple[dict[str, pd.DataFrame], dict[str, str]]:
    """Make the close of a file's tables the one asked for, without the field `ADJUSTED`.

    With ``auto_adjust`` an Adj Close becomes the close, and open, high and low are multiplied by Adj Close / Close;
    else it is left out. The second result says in words how the prices are adjusted. `MarketError` if the file does not
    have the close that is asked for.
    """
    if ADJUSTED not in tables:
        words = "as in the file; dividends and splits count only if its prices are adjusted for them"
        return tables, {"adjusted": words}
    rest = {field: table for field, table in tables.items() if field != ADJUSTED}
    if not auto_adjust:
        if "close" not in rest:
            raise MarketError(
                f"{path} has Adj Close and no Close; set market.auto_adjust=true and market.dividends=reinvested"
            )
        words = "the file's Close, not its Adj Close (market.auto_adjust=false): dividends are left out"
        return rest, {"adjusted": words}
    adjusted = tables[ADJUSTED]
    words = "the file's Adj Close, which counts dividends and splits"
    if "close" not in rest:
        out = [field for field in ("open", "high", "low") if rest.pop(field, None) is not None]
        note = {"fields_left_out": f"{', '.join(out)}: the file has no Close, so how to adjust them is unknown"}
        return {"close": adjusted, **rest}, {"adjusted": words, **(note if out else {})}
    close = rest["close"]
    lacking = [name for name in close.columns if name not in adjusted or not adjusted[name].notna().any()]
    if lacking:
        raise MarketError(
            f"{path}: {lacking[0]!r} has no Adj Close, and others have; give it to all of them, or set "
            "market.auto_adjust=false to use Close"
        )
    ratio = adjusted[list(close.columns)] / close
    for field in ("open", "high", "low"):
        if field in rest:
            rest[field] = rest[field] * ratio[list(rest[field].columns)]
    rest["close"] = adjusted[list(close.columns)]
    return rest, {"adjusted": f"{words}; open, high and low times Adj Close / Close"}
