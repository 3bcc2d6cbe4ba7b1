"""The quantstats tear sheet of an agent against equal weight: from an independent program."""

from __future__ import annotations

import logging
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finflow.errors import OutputError
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.page.drawing import pyplot_restored

_THEME: dict[Any, Any] = {
    "font.size": 12.0,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": "white",
    "xtick.color": "#666666",
    "ytick.color": "#666666",
    "legend.fontsize": 11.0,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "text.color": "#333333",
    "svg.hashsalt": "finflow",  # the same tear sheet twice is the same file
}


def tear_sheet_obstacle(agent: Backtest, baseline: Backtest | None) -> str | None:
    """Reason why quantstats cannot make a tear sheet of these two; None where it can.

    Its regression fails on constant returns, and it takes a series that never loses and gains over 100 % in a day for
    prices.
    """
    if baseline is None:
        return "there is no equal weight to compare with"
    for run in (agent, baseline):
        if len(run.returns) < 2:
            return f"{run.name} has only {len(run.returns)} return"
        if not np.isfinite(run.returns).all():
            return f"the returns of {run.name} have gaps"
        if run.returns.min() >= 0.0 and run.returns.max() > 1.0:
            return f"quantstats would take the returns of {run.name} for prices"
    if agent.returns.max() == agent.returns.min():
        return f"the returns of {agent.name} are all the same"
    return None


def tear_sheet(agent: Backtest, baseline: Backtest) -> str:
    """Let quantstats judge the agent against a baseline, on one self-contained page; see `tear_sheet_obstacle` first.

    The page loads nothing from the network (quantstats asks for an icon; that is taken out), and matplotlib's settings
    are as they were afterwards. Cash is handed over as one annual rate, the mean of its daily returns compounded.
    """
    import matplotlib

    frame = pd.DataFrame(
        {"agent": agent.returns, "baseline": baseline.returns},
        index=pd.DatetimeIndex(agent.dates.astype("datetime64[ns]")),
    )
    rate = float((1.0 + agent.cash_returns.mean()) ** agent.bars_per_year - 1.0)
    fonts = logging.getLogger("matplotlib.font_manager")  # complains at each label that Arial is missing
    level = fonts.level
    try:
        fonts.setLevel(logging.ERROR)
        with pyplot_restored(), tempfile.TemporaryDirectory() as folder:
            import quantstats.reports

            matplotlib.rcdefaults()  # its import changes them
            matplotlib.rcParams.update(_THEME)
            output = Path(folder) / "tearsheet.html"
            quantstats.reports.html(  # type: ignore[no-untyped-call]
                frame["agent"],
                frame["baseline"],
                rf=max(rate, 0.0),
                periods_per_year=agent.bars_per_year,
                title=_plain(f"{agent.name} against {baseline.name}"),
                strategy_title=_plain(agent.name),
                benchmark_title=_plain(baseline.name),
                match_dates=False,
                output=str(output),
            )
            page = output.read_text(encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"cannot make the tear sheet in {tempfile.gettempdir()}: {error.strerror or error}"
        ) from error
    finally:
        fonts.setLevel(level)
    page = re.sub(r"<link\b[^>]*>", '<link rel="icon" href="data:,">', page)
    page = page.replace('onload="save()"', "")
    return re.sub(r"<dc:date>[^<]*</dc:date>", "", page)


def _plain(name: str) -> str:
    """Leave out what HTML, the template of quantstats or matplotlib would read as markup."""
    return re.sub(r"[<>&\"'{}$\\]", " ", name)
