"""Peers on the planted markets: what they may take, and that each stands beside the default on the same samples."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.evidence.optimality import kept_peers
from scripts.evidence.rollout_peers import MAPPING, TIMES, rollout_peers, rollout_peers_table
from scripts.evidence.rollouts import FIRST_SAMPLE, PLANTED, PREFIX

RESULTS = [
    {
        "variant": PREFIX + kind,
        "kind": kind,
        "seed": FIRST_SAMPLE,
        "configuration": "one",
        "end": 0.9,
        "seconds": {"offline": 1.0, "online": 9.0},
    }
    for kind in PLANTED
]


def test_peers_learn_for_a_multiple_of_our_time_and_stand_beside_the_default(tmp_path: Path) -> None:
    script = tmp_path / "peer.py"
    script.write_text(
        "import json, sys\n"
        "print(json.dumps({'seconds': {'processor': float(sys.argv[4])}, 'curve': [[1.0, 0.3], [2.0, 0.1]],"
        " 'turnover': 40.0, 'largest_weight': 1.0}))\n"
    )
    found = rollout_peers(RESULTS, (sys.executable, str(script)), 1, tmp_path / "page.json", tmp_path)
    assert {(one["market"], one["algorithm"]) for one in found} == {
        (kind, a) for kind in PLANTED for a in ("sac", "tqc")
    }
    assert {one["seconds"]["processor"] for one in found} == {TIMES * 10.0}
    kept = kept_peers(tmp_path / "page.json", PREFIX, (MAPPING,))
    assert len(kept) == len(found)
    assert all(one in kept for one in found)
    assert kept_peers(tmp_path / "page.json") == []  # peers of another page
    lines = rollout_peers_table(RESULTS, kept).splitlines()
    assert lines[2] == "| constant-drift | 0.90 | 1 | 0.10 | 0.30 | 40 | 20 | 1 | 0.10 | 0.30 | 40 | 20 |"


def test_without_peers_the_table_is_empty() -> None:
    assert len(rollout_peers_table(RESULTS, []).splitlines()) == 2
