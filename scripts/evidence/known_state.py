"""Feature for synthetic markets: the expected return of each asset under the true price process, given the past.

The optimum of such a market is a function of the process's belief (`finflow.market.sources.synthetic_market`) and the
portfolio. The features that finflow has let through only a part of that belief, so that a learner that reads them can
be as good as that part allows, and no better. With this one added, the learner alone is measured. It is causal,
and knows the parameters of the process, which no feature of a real market can.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from finflow.config import SyntheticConfig
from finflow.errors import MarketError
from finflow.market.panel import MarketPanel
from finflow.market.sources.synthetic_market import process_of

EXPECTED_RETURNS = "scripts.evidence.known_state:expected_returns"  # as ``features.extra`` names it


def expected_returns(panel: MarketPanel) -> NDArray[np.float64]:
    """Expected return of each asset over the next bar, given prices up to a bar, (bars, assets).

    Raises
    ------
    MarketError
        If the market is not a synthetic one.
    """
    facts = panel.provenance
    if facts.get("source") != "synthetic":
        raise MarketError("only a synthetic market (market.source = synthetic) has a known price process")
    process = process_of(SyntheticConfig(kind=facts["kind"], assets=panel.n_assets, **facts["parameters"]))
    nodes = [process.scenarios(belief) for belief in process.beliefs]
    expected = np.stack([node.probability @ np.expm1(node.returns) for node in nodes])  # (beliefs, assets)
    beliefs = process.filtered(np.log(panel.close))
    return np.stack([np.interp(beliefs, process.beliefs, of_asset) for of_asset in expected.T], axis=1)
