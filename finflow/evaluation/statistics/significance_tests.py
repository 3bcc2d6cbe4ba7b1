"""Tests of whether a strategy's record may be luck: PSR, DSR and track record length; SPA and StepM over several.

All Sharpe ratios here are those of one bar (a day), not annualised, and kurtosis is 3 for a normal distribution, as
in the papers:

- PSR and MinTRL: Bailey and Lopez de Prado, The Sharpe Ratio Efficient Frontier, Journal of Risk 15 (2012). They allow
  for the length of the record and for skewed and fat-tailed returns;
- DSR: Bailey and Lopez de Prado, The Deflated Sharpe Ratio, Journal of Portfolio Management 40 (2014). It allows for
  the number of tries.

Both take the returns of different days as independent. The others, by arch, draw days in blocks (the stationary
bootstrap), the same days for all strategies:

- SPA: Hansen, A Test for Superior Predictive Ability, Journal of Business & Economic Statistics 23 (2005). Its null:
  no strategy has a greater mean return than the benchmark.
- StepM: Romano and Wolf, Stepwise Multiple Testing as Formalized Data Snooping, Econometrica 73 (2005). It names the
  strategies that do, such that the chance of naming a single one wrongly is at most the size.

The verdict asks all of them, and the paired bootstrap.

What counts as a try: docs/reference/verdict.md.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import scipy
from pydantic import TypeAdapter

from finflow.arrays import FloatArray
from finflow.errors import EvidenceError, refuse
from finflow.evaluation.page.page_numbers import Number, about
from finflow.evaluation.statistics.bootstrap import MINIMUM_BLOCKS, Resampling
from finflow.evaluation.statistics.metrics import FLAT
from finflow.line_file import append_line

SIZE = 0.05
FEWEST = 4  # returns: the fewest that have a kurtosis without bias


@dataclass(frozen=True)
class TrackRecord:
    """A track record: Sharpe ratio (mean over standard deviation with n - 1, a bar) and number of returns.

    Skewness and kurtosis are corrected for bias as pandas does; a normal distribution has 0 and 3.
    """

    sharpe: float
    days: int
    skewness: float = 0.0
    kurtosis: float = 3.0

    @property
    def spread(self) -> float:
        """1 - skewness * SR + (kurtosis - 1) / 4 * SR^2: the variance of the estimate of SR, times n - 1."""
        value = 1.0 - self.skewness * self.sharpe + (self.kurtosis - 1.0) / 4.0 * self.sharpe**2
        return value if value > 0.0 else math.nan

    def psr(self, benchmark: float = 0.0) -> float:
        """Probabilistic Sharpe ratio: the confidence, in [0, 1], that the true Sharpe ratio exceeds ``benchmark``.

        Phi((SR - SR*) sqrt(n - 1) / sqrt(spread)).
        """
        score = (self.sharpe - benchmark) * math.sqrt(self.days - 1) / math.sqrt(self.spread)
        return float(scipy.stats.norm.cdf(score))

    def minimum_length(self, benchmark: float = 0.0, confidence: float = 0.95) -> float:
        """Minimum track record length: the returns it takes to be that confident of exceeding ``benchmark``.

        1 + spread * (Phi^-1(confidence) / (SR - SR*))^2, in bars; infinite where SR does not exceed the benchmark.
        """
        if not self.sharpe > benchmark:
            return math.nan if math.isnan(self.sharpe) else math.inf
        return 1.0 + self.spread * (float(scipy.stats.norm.ppf(confidence)) / (self.sharpe - benchmark)) ** 2

    def dsr(self, tries: int, variance: float) -> float:
        """Deflated Sharpe ratio: the PSR against the best that luck alone would show among ``tries``."""
        return self.psr(expected_maximum(tries, variance))


UNKNOWN = TrackRecord(math.nan, 2, math.nan, math.nan)


def track_of(returns: FloatArray, name: str = "the strategy") -> TrackRecord:
    """The track record of a series of returns (days,) in excess of cash, or of another strategy.

    Raises EvidenceError if there are gaps, too few returns, or no risk; it names whose they are.
    """
    check_returns(returns, name, FEWEST)
    deviation = float(returns.std(ddof=1))
    refuse(not deviation > FLAT, f"the returns of {name} do not vary: there is no Sharpe ratio to test", EvidenceError)
    return TrackRecord(
        sharpe=float(returns.mean()) / deviation,
        days=len(returns),
        skewness=float(scipy.stats.skew(returns, bias=False)),
        kurtosis=float(scipy.stats.kurtosis(returns, bias=False)) + 3.0,
    )


def check_returns(returns: FloatArray, name: str, fewest: int) -> None:
    """Refuse what no test can judge: raises EvidenceError for gaps, or too few returns."""
    if len(returns) < fewest:
        raise EvidenceError(f"{name} has {len(returns)} returns, and the test needs {fewest}; judge a longer window")
    gaps = np.flatnonzero(~np.isfinite(returns))
    if gaps.size:
        raise EvidenceError(
            f"the returns of {name} have {'a gap' if gaps.size == 1 else f'{gaps.size} gaps'} (the first at return "
            f"{int(gaps[0]) + 1} of {len(returns)}); no test fills gaps: judge a window without them"
        )


def expected_maximum(tries: int, variance: float) -> float:
    """The greatest Sharpe ratio, a bar, that ``tries`` strategies without any skill are expected to show.

    sqrt(V) * ((1 - gamma) * Phi^-1(1 - 1 / N) + gamma * Phi^-1(1 - 1 / (N e))), V the variance of the tries' Sharpe
    ratios and gamma the Euler-Mascheroni constant. 0 for a single try: nothing was chosen, and DSR is PSR. Tries that
    resemble each other count as fewer, so to count all is the careful side.
    """
    if tries == 1:
        return 0.0
    high, higher = scipy.stats.norm.ppf([1.0 - 1.0 / tries, 1.0 - 1.0 / (tries * math.e)])
    return math.sqrt(variance) * float((1.0 - np.euler_gamma) * high + np.euler_gamma * higher)


@dataclass(frozen=True)
class Superiority:
    """Hansen's test of superior predictive ability; p-values differ in what is done about those clearly worse."""

    p_lower: Annotated[Number, about("p-value, all that are worse left out: too liberal.")]
    p_consistent: Annotated[
        Number, about("p-value, those left out that are worse by more than chance would explain: the one that decides.")
    ]
    p_upper: Annotated[Number, about("p-value, none left out: White's reality check, too careful.")]
    strategies: Annotated[int, about("Strategies tested together.")]


def superior_ability(
    benchmark: FloatArray, strategies: Mapping[str, FloatArray], resampling: Resampling
) -> Superiority:
    """Hansen's SPA test of mean returns: of named strategies against a benchmark, each (days,).

    Raises EvidenceError if there are gaps, or the window has fewer than `MINIMUM_BLOCKS` blocks.
    """
    found = _spa(benchmark, strategies, resampling).pvalues
    lower, consistent, upper = (float(found[kind]) for kind in ("lower", "consistent", "upper"))
    return Superiority(lower, consistent, upper, len(strategies))


def superior_strategies(
    benchmark: FloatArray, strategies: Mapping[str, FloatArray], resampling: Resampling
) -> tuple[str, ...]:
    """Names of the strategies that beat the benchmark by Romano and Wolf's StepM, in the order given.

    The chance of naming even one wrongly is at most `SIZE`; raises as `superior_ability` does.
    """
    left, found = dict(strategies), set()
    while left:  # arch's own StepM breaks off with an error where every strategy is superior in the end
        names = list(left)
        better = {names[int(index)] for index in _spa(benchmark, left, resampling).better_models(SIZE)}
        if not better:
            break
        found |= better
        left = {name: returns for name, returns in left.items() if name not in better}
    return tuple(name for name in strategies if name in found)


def _spa(benchmark: FloatArray, strategies: Mapping[str, FloatArray], resampling: Resampling) -> Any:
    """The test by arch, which compares losses."""
    from arch.bootstrap import SPA

    fewest = max(MINIMUM_BLOCKS * resampling.block_length, 3)
    check_returns(benchmark, "the benchmark", fewest)
    for name, returns in strategies.items():
        check_returns(returns, name, fewest)
    test = SPA(
        -benchmark,
        -np.column_stack(list(strategies.values())),
        block_size=resampling.block_length,
        reps=resampling.samples,
        bootstrap="stationary",
        seed=np.random.default_rng(resampling.seed),
    )
    test.compute()
    return test


def newey_west(values: FloatArray, design: FloatArray, lags: int, few: bool = False) -> Any:
    """Least squares of ``values`` on ``design``, with the standard errors of Newey and West, by statsmodels.

    They are corrected for ``few`` values where that is asked for.
    """
    from statsmodels.regression.linear_model import OLS

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return OLS(values, design).fit(cov_type="HAC", cov_kwds={"maxlags": lags, "use_correction": few})


FILE = "readings.jsonl"


@dataclass(frozen=True)
class Reading:
    """One final evaluation."""

    panel: str  # SHA-256 of the panel whose test window was read
    judged: str  # the hash of a policy's weights, or of a rule's name and settings
    name: str
    compared: tuple[str, ...]
    configuration: str  # its hash
    configurations: int  # how many it was chosen among, as it says
    window: tuple[str, str]
    active_sharpe: float | None  # of its return over equal weight's, a bar; None: there was none, or none was shown
    run: str
    date: str  # in UTC (ISO 8601)
    leak: str = ""  # reason why an audit found that what is judged looks ahead; such a line is no reading


_READING = TypeAdapter(Reading)


@dataclass(frozen=True)
class Tries:
    """Number of tries, and their Sharpe ratios, for the deflated Sharpe ratio."""

    configurations: int = 1  # that the judged one was chosen among, itself included
    others: int = 0  # strategies or agents whose readings of the same panel's test window are on file
    sharpes: tuple[float, ...] = ()  # active, a bar, of the others, as far as known and no audit found a leak
    names: tuple[str, ...] = ()  # of those
    leaks: tuple[str, ...] = ()  # others that look ahead, each with the reason: they count, and their ratios do not

    def dominating(self, own: float) -> tuple[str, float] | None:
        """Name and ratio (a bar) of the try without which the variance would be less than half; None without one."""
        known = np.array([own, *self.sharpes])
        if len(known) < 3:
            return None
        rest = [float(np.delete(known, place).var(ddof=1)) for place in range(1, len(known))]
        place = int(np.argmin(rest))
        return (self.names[place], self.sharpes[place]) if rest[place] < 0.5 * float(known.var(ddof=1)) else None

    @property
    def total(self) -> int:
        """N of the deflated Sharpe ratio."""
        return self.configurations + self.others

    def variance(self, own: float, days: int) -> float:
        """V of the deflated Sharpe ratio, of the tries' Sharpe ratios (a bar).

        That of the known ones, the judged one's ``own`` included, but no less than 1 / (days - 1), the variance of
        tries without skill: a few similar tries are no evidence of a smaller variance.
        """
        known = np.array([own, *self.sharpes])
        observed = float(known.var(ddof=1)) if len(known) > 1 else 0.0
        return max(observed, 1.0 / (days - 1))


def readings_of(path: Path, panel: str) -> tuple[Reading, ...]:
    """Readings of one panel's test window, in the order of the file; none where there is no file yet.

    Raises EvidenceError if a line is damaged, other than one that a crash cut short: a ledger with holes counts too
    little.
    """
    if not path.exists():
        return ()
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceError(f"the ledger of test readings {path} cannot be read: {error}; repair or move it") from error
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            found.append(_READING.validate_json(line))
        except ValueError as error:
            if line.strip() and (not line.startswith("{") or line.endswith("}")):
                raise EvidenceError(
                    f"line {number} of the ledger of test readings {path} is damaged; repair it, or move the file away "
                    "and begin another (the count of earlier readings is lost then)"
                ) from error
    return tuple(reading for reading in found if reading.panel == panel)


def tries_of(readings: Sequence[Reading], judged: str, configurations: int) -> Tries:
    """Tries to deflate by, from the readings of a panel; earlier ones of what is judged now are no other try."""
    leaks = {reading.judged: f"{reading.name} ({reading.leak})" for reading in readings if reading.leak}
    others = {reading.judged: reading for reading in readings if reading.judged != judged and not reading.leak}
    known = [(reading.active_sharpe, reading.name) for reading in others.values() if reading.judged not in leaks]
    finite = [(value, name) for value, name in known if value is not None and math.isfinite(value)]
    return Tries(
        configurations=configurations,
        others=len(others),
        sharpes=tuple(value for value, _ in finite),
        names=tuple(name for _, name in finite),
        leaks=tuple(reason for one, reason in leaks.items() if one in others),
    )


def record(path: Path, reading: Reading) -> None:
    """Add a reading to the ledger; raises OutputError if the file cannot be written."""
    content = {name: value for name, value in asdict(reading).items() if name != "leak" or value}
    append_line(path, json.dumps(content, sort_keys=True, allow_nan=False, ensure_ascii=False))
