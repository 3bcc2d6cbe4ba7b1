"""Measures of claims: each takes its figure from what a page of evidence keeps."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from scripts.evidence.claim_measures import MEASURES, Results

CURVE, SHORT_OF_IT = [[10.0, 0.5], [30.0, 0.96]], [[10.0, 0.5], [30.0, 0.94]]
BOTH = {"ours-0": {"market": "regime", "curve": CURVE}, "ours-1": {"market": "regime", "curve": SHORT_OF_IT}}
PEER = {"peer-0": {"market": "regime", "algorithm": "sac", "limit": 60.0, "curve": SHORT_OF_IT}}
FOLD = {"variant": "later-years-fold-1", "fold": 1, "equal-weight": 0.5, "inverse-volatility": 0.9, "hand-over": 0.6}
ROWS = [
    {"edge": 0, "strategy": "momentum", "markets": 4, "yes": 1},
    {"edge": 0, "strategy": "other", "markets": 4, "yes": 0},
]
HEALTHY = {
    f"healthy-{seed}": {"variant": "guard-healthy-embedded", "seed": seed, "value": 1.0 + seed} for seed in (0, 1)
}
PUBLISHED = [("5.14E+15", 5.142e15), ("2.30", 2.2), (None, 1.0)]


@pytest.mark.parametrize(
    ("measure", "argument", "more", "results", "values"),
    [
        (
            "share",
            "alarms",
            {"of": {"variant": "healthy"}, "over": 0},
            {"a": {"variant": "healthy", "alarms": 2}},
            [True],
        ),
        ("verdicts", "verdict", {"edge": 0}, {"verdict": {"rows": ROWS}}, [True, False, False, False]),
        ("leak", "one", {}, {"foresight-leaks-0": {"flagged": {"one": 1}, "draws": 2}}, [True, False]),
        ("reached", "finflow", {}, BOTH | PEER, [True, False]),
        ("reached", "peers", {}, BOTH | PEER, [False]),
        ("seconds_to_goal", "regime", {}, BOTH | PEER, [30.0]),
        (
            "wrong_orders",
            "kills",
            {},
            {"kills": {"lost": 1, "added": 0, "changed": 1, "orders": 3}},
            [True, True, False],
        ),
        ("later_years", "own", {}, {"a": {**FOLD, "own": 1.2}, "b": {**FOLD, "own": 0.8}}, [pytest.approx(0.1)]),
        (
            "near",  # undisturbed 1 and 2, standard deviation .71: .5 is near its own, 1.2 is not
            "fault",
            {},
            HEALTHY | {f"f-{s}": {"variant": "fault", "seed": s, "value": v} for s, v in ((0, 0.5), (1, 1.2))},
            [True, False],
        ),
        (
            "identical",
            "durability",
            {},
            {
                "durability": {
                    "kills": [{"identical": True}],
                    "faults": [{"identical": False}],
                    "power": {"identical": 1, "resumes": 2},
                }
            },
            [True, False, True, False],
        ),
        (
            "transfer",
            "resident",
            {"less": "visitor"},
            {"a": {"variant": "transfer-embedded", "targets": {"others": {"resident": 1.0, "visitor": 0.75}}}},
            [0.25],
        ),
        (
            "flagged",
            "rows",
            {},
            {
                "a": {
                    "rows": {
                        "rule": {"whole": {"share": 0.4}, "block": {"share": 1.2}},
                        "other": {"whole": None, "block": None},
                    }
                }
            },
            [True, False],
        ),
        (
            "agreeing",  # to the last published digit; what was not published does not count
            ["olmar", "pamr"],
            {},
            {"olmar": {"rows": [{"data": "a", "what": "b", "value": v, "published": p} for p, v in PUBLISHED]}},
            [True, False],
        ),
        (
            "sequential",  # of the law with most alarms
            "nulls",
            {},
            {
                "anytime": {
                    "study": {"paths": 3},
                    "nulls": [{"law": law, "answers": {"sequential": n}} for law, n in (("normal", 0), ("heavy", 2))],
                }
            },
            [True, True, False],
        ),
    ],
)
def test_each_measure_takes_its_figure_from_what_a_page_keeps(
    measure: str, argument: object, more: Mapping[str, object], results: Results, values: list[float]
) -> None:
    assert list(MEASURES[measure](results, argument, **more).values) == values
    assert list(MEASURES[measure]({}, argument, **more).values) == []
