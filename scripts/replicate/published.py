"""Published figures, as strings in the digits of their publication, and their sources.

Only figures that could be read in a second place besides memory are here. OLPS is the toolbox of the authors of OLMAR
and PAMR (Li, Sahoo and Hoi 2016); its repository has the logs of a run on DJIA of 29 January 2015, with six decimals.
"""

from __future__ import annotations

DGU, OLPS, PAMR = "DeMiguel et al. 2009, table 3", "log of the toolbox OLPS, 2015", "Li et al. 2012, cumulative wealth"

NAIVE_DIVERSIFICATION = {
    "1/N": "0.2240",
    "mean-variance, in sample": "0.2851",
    "mean-variance": "0.2186",
    "mean-variance, long only": "0.1084",
    "minimum variance": "0.2493",
    "minimum variance, long only": "0.2493",
    "market": "0.1138",
}
"""Monthly Sharpe ratios, of the data set MKT/SMB/HML, by policy."""

WEALTH: dict[tuple[str, str], tuple[str, str]] = {
    ("djia", "buy-and-hold"): ("0.764361", OLPS),
    ("djia", "crp"): ("0.812726", OLPS),
    ("djia", "pamr"): ("0.680050", OLPS),
    ("djia", "olmar"): ("2.537232", OLPS),
    ("djia", "olmar, opening of the toolbox"): ("2.537232", OLPS),
    ("nyse_o", "pamr"): ("5.14E+15", PAMR),
}
"""Wealth at the end, of 1 invested, by data set and rule: the figure and its source."""
