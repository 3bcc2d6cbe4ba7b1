"""Figures of claims, measured on the kept results of a page of evidence: see scripts/evidence/claims.yaml."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from scripts.evidence.later_years import PREFIX, RULES
from scripts.evidence.optimality import GOAL, seconds_to
from scripts.evidence.results import Result, grouped
from scripts.evidence.tables import half_width
from scripts.replicate.comparison import Comparison

Results = Mapping[str, Result]


class Found(NamedTuple):
    """Values that a measure found in a page's results.

    Attributes
    ----------
    values : sequence of float or bool
        A sample whose mean is the figure, or hits and misses whose share is.
    used : sequence of result
        The results that they are of.
    below : float, optional
        Bound of the claim, where it is one of the results.
    """

    values: Sequence[float]
    used: Sequence[Result]
    note: str = ""
    below: float | None = None

    @property
    def is_share(self) -> bool:
        """True where the values are hits and misses."""
        return all(isinstance(value, bool) for value in self.values)

    @property
    def bounds(self) -> tuple[float, float]:
        """The 95 % interval of a mean by Student's t, or of a share, exact binomial; infinite with a single value."""
        if self.is_share:
            interval = stats.binomtest(int(sum(self.values)), len(self.values)).proportion_ci()
            return float(interval.low), float(interval.high)
        values = np.array(self.values, dtype=np.float64)
        half = half_width(values) if len(values) > 1 else np.inf
        return float(values.mean() - half), float(values.mean() + half)


NOTHING = Found([], [])


def _chosen(results: Results, of: Mapping[str, Any]) -> list[Result]:
    """Results whose entries have a value, one of several, or a beginning."""

    def fits(value: object, wanted: Any) -> bool:
        if isinstance(wanted, Mapping):
            return str(value).startswith(wanted["begins"])
        return value in wanted if isinstance(wanted, list) else bool(value == wanted)

    return [one for one in results.values() if all(entry in one and fits(one[entry], of[entry]) for entry in of)]


#: Figures of a result that are not one of its entries.
DERIVED: dict[str, Callable[[Result], float]] = {
    "model over true": lambda one: one["utility"]["model"] / one["utility"]["true"],
    "of the law": lambda one: one["ndcg"]["agent"] / one["ndcg"]["law"],
    "above chance": lambda one: (
        (one["ndcg"]["agent"] - one["ndcg"]["chance"]) / (one["ndcg"]["law"] - one["ndcg"]["chance"])
    ),
}


def _figure(one: Result, entry: str) -> Any:
    """A derived figure, or an entry such as ``judged.sharpe``; None where there is none."""
    if entry in DERIVED:
        return DERIVED[entry](one)
    found: Any = one
    for key in entry.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _mean(results: Results, entry: str, of: Result, less: Result | None = None) -> Found:
    """A figure of results, or its differences to others of the same seed."""
    own = [one for one in _chosen(results, of) if _figure(one, entry) is not None]
    if less is None:
        return Found([float(_figure(one, entry)) for one in own], own)
    others = {one["seed"]: one for one in _chosen(results, less)}
    pairs = [(one, others[one["seed"]]) for one in own if one["seed"] in others]
    return Found([_figure(a, entry) - _figure(b, entry) for a, b in pairs], [one for pair in pairs for one in pair])


def _share(results: Results, entry: str, of: Result, over: float | None = None) -> Found:
    """Results with an entry that is over a limit, or is there at all."""
    own = _chosen(results, of)
    found = [one.get(entry) for one in own]
    hits = [one is not None and (over is None or one > over) for one in found]
    return Found(hits, own)


def _counted(hits: int, count: int, used: Sequence[Result], note: str = "") -> Found:
    return Found([True] * hits + [False] * (count - hits), used, note)


def _verdicts(results: Results, study: str, edge: float) -> Found:
    """Verdicts of yes, of the strategy that has most of them."""
    rows = [row for row in results[study]["rows"] if row["edge"] == edge] if study in results else []
    if not rows:
        return NOTHING
    most = max(rows, key=lambda row: int(row["yes"]))
    return _counted(most["yes"], most["markets"], [results[study]], most["strategy"])


def _sequential(results: Results, part: str) -> Found:
    if "anytime" not in results:
        return NOTHING
    found = results["anytime"]
    worst = max(found[part], key=lambda row: int(row["answers"]["sequential"]))
    return _counted(worst["answers"]["sequential"], found["study"]["paths"], [found], worst["law"])


def _flagged(results: Results, entry: str) -> Found:
    own = [one for one in results.values() if entry in one]
    parts = [[row[part] for part in ("whole", "block") if row[part]] for one in own for row in one[entry].values()]
    return Found([any(part["share"] > 1.0 for part in both) for both in parts], own)


def _leak(results: Results, kind: str) -> Found:
    """Leaks of a size that are found: by what the other decisions do, how many there are, and the share that leaks."""
    if "foresight-leaks-0" not in results:
        return NOTHING
    one = results["foresight-leaks-0"]
    return _counted(one["flagged"][kind], one["draws"], [one])


def _reached(results: Results, who: str) -> Found:
    """Trainings that reach the goal: ours, or those of peers."""
    chosen = [one for one in results.values() if ("algorithm" in one) == (who == "peers")]
    return Found([seconds_to(one["curve"], GOAL) is not None for one in chosen], chosen)


def _seconds_to_goal(results: Results, market: str) -> Found:
    """Seconds to the goal where it was reached; to be below the least of the peers', or of their limits."""
    both = [one for one in results.values() if one.get("market") == market]
    own, peers = [one for one in both if "algorithm" not in one], [one for one in both if "algorithm" in one]
    if not peers:
        return NOTHING
    reached = [seconds for one in own if (seconds := seconds_to(one["curve"], GOAL)) is not None]
    times = [seconds_to(one["curve"], GOAL) for one in peers]
    limits = [one["limit"] if time is None else time for one, time in zip(peers, times, strict=True)]
    below = min(limits)
    note = f"{times.count(None)} of {len(peers)} trainings of peers never in {below:.0f} s"
    return Found(reached, own, note, below)


def _identical(results: Results, name: str) -> Found:
    if name not in results:
        return NOTHING
    one = results[name]
    runs = [bool(run["identical"]) for run in (*one["kills"], *one["faults"])]
    power = one["power"]
    return Found(runs + list(_counted(power["identical"], power["resumes"], []).values), [one])


def _wrong_orders(results: Results, name: str) -> Found:
    if name not in results:
        return NOTHING
    one = results[name]
    return _counted(one["lost"] + one["added"] + one["changed"], one["orders"], [one])


def _near(results: Results, variant: str) -> Found:
    """Trainings with a fault that end within a standard deviation of the same seed undisturbed."""
    own, healthy = (_chosen(results, {"variant": name}) for name in (variant, "guard-healthy-embedded"))
    values = {one["seed"]: one["value"] for one in healthy}
    own = [one for one in own if one["seed"] in values]
    near = np.std(list(values.values()), ddof=1) if len(values) > 1 else 0.0
    return Found([bool(abs((one["value"] or np.inf) - values[one["seed"]]) <= near) for one in own], own)


def _later_years(results: Results, judged: str) -> Found:
    """Sharpe ratio of a policy less the best of the rules and of the policy at the hand-over; one mean a fold."""
    used, gaps = _chosen(results, {"variant": {"begins": PREFIX}}), []
    for own in grouped(used, "fold").values():
        means = {name: np.mean([one[name] for one in own]) for name in (*RULES, "hand-over", judged)}
        gaps.append(float(means.pop(judged) - max(means.values())))
    return Found(gaps, used)


def _transfer(results: Results, name: str, less: str) -> Found:
    """Differences of Sharpe ratios on names that agents were not trained on, one a drawing of names."""
    own = _chosen(results, {"variant": "transfer-embedded"})
    return Found([one["targets"]["others"][name] - one["targets"]["others"][less] for one in own], own)


def _agreeing(results: Results, names: Sequence[str]) -> Found:
    """Published figures that are computed anew to the last digit."""
    used = [results[name] for name in names if name in results]
    rows = [Comparison(**row) for one in used for row in one["rows"]]
    return Found([row.difference == "0" for row in rows if row.published is not None], used)


#: Name in the list of claims -> measure; its value there is the first argument, and other keys are by name.
MEASURES: dict[str, Callable[..., Found]] = {
    "mean": _mean,
    "share": _share,
    "verdicts": _verdicts,
    "sequential": _sequential,
    "flagged": _flagged,
    "leak": _leak,
    "reached": _reached,
    "seconds_to_goal": _seconds_to_goal,
    "identical": _identical,
    "wrong_orders": _wrong_orders,
    "near": _near,
    "later_years": _later_years,
    "transfer": _transfer,
    "agreeing": _agreeing,
}
