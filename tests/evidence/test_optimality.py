"""The evidence about optimality: what is measured of a training, how long a score took, and peers beside it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finflow.config import Config, dump_config
from finflow.errors import EvidenceError
from scripts.evidence.optimality import followed, limit_of, optimality_table, peers_on, seconds_to
from scripts.evidence.results import Variant, ask_peer, run_missing
from scripts.evidence.rollouts import planted_variant
from tests.short_trainings import SHORT

SMALL: dict[str, object] = {
    **SHORT,
    "market.synthetic.bars": 1500,
    "market.train_end": "2020-12-31",
    "market.validation_end": "2021-07-30",
    "train.online_episodes": 8,
    "train.validation_updates": 5,
}
ROOT = Path(__file__).resolve().parents[2]


def small() -> Variant:
    variant = followed(planted_variant("regime", 1))
    return replace(variant, overrides={**variant.overrides, **SMALL}, seeds=(0,))


def result(market: str, end: float, seed: int = 0) -> dict[str, object]:
    curve = [[10.0, 0.5], [20.0, 0.96], [30.0, end]]
    more = {"configuration": "one", "variant": f"optimality-{market}", "turnover": 2.0, "largest_weight": 0.5}
    return {"market": market, "seed": seed, "seconds": {"processor": 30.0}, "curve": curve, **more}


def test_a_training_is_followed_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    (found,) = run_missing([small()], tmp_path / "page.json", tmp_path / "runs")
    seconds = [at for at, _ in found["curve"]]
    assert seconds == sorted(seconds)
    assert 0.0 < seconds[-1] <= found["seconds"]["processor"]
    assert all(score <= 1.0 for _, score in found["curve"])
    assert 0.0 < found["largest_weight"] <= 1.0
    table = optimality_table([found], []).splitlines()
    assert table[2].startswith(f"| regime | finflow | 1 | {found['curve'][-1][1]:.2f} |")
    assert "never (1 tried)" in table[2]


def test_the_table_has_times_to_the_goal_and_peers_beside_ours() -> None:
    assert seconds_to([[10.0, 0.5], [20.0, None], [30.0, 0.95], [40.0, 0.2]], 0.95) == 30.0
    assert seconds_to([[10.0, 0.5]], 0.95) is None
    peers = [{**result("regime", 0.4), "algorithm": "sac", "mapping": "softmax"}]
    ours, theirs = optimality_table([result("regime", 0.9), result("regime", 0.8, 1)], peers).splitlines()[2:]
    assert ours.startswith("| regime | finflow | 2 | 0.85 ± ")
    assert "| 20 (2 of 2) |" in ours
    assert theirs.startswith("| regime | SAC, softmax | 1 | 0.40 |")


def test_peers_learn_once_for_twice_what_ours_took_and_a_failure_says_why(tmp_path: Path) -> None:
    script = tmp_path / "peer.py"
    script.write_text(
        "import json, sys\n"
        "print(json.dumps({'seconds': {'processor': float(sys.argv[4])}, 'curve': [[1.0, 0.1]], 'turnover': 0.0,"
        " 'largest_weight': 1.0}))\n"
    )
    own, program = result("regime", 0.9), (sys.executable, str(script))
    found = peers_on(own, Config(), program, tmp_path / "page.json", limit_of(own))
    assert [(one["algorithm"], one["mapping"]) for one in found] == [
        (algorithm, "softmax") for algorithm in ("sac", "tqc")
    ]
    assert {one["seconds"]["processor"] for one in found} == {2.0 * 30.0}
    script.write_text("raise SystemExit('nothing is installed')\n")
    assert peers_on(own, Config(), program, tmp_path / "page.json", limit_of(own)) == found  # kept
    with pytest.raises(EvidenceError, match=r"peer\.py ended without a result: nothing is installed"):
        peers_on({**own, "configuration": "another"}, Config(), program, tmp_path / "page.json", 1.0)


def test_a_peer_learns_on_the_same_market(tmp_path: Path) -> None:
    """The script that is run there, with Stable-Baselines3 alone: two looks of half a second."""
    pytest.importorskip("stable_baselines3")
    stand_in = tmp_path / "sb3_contrib.py"
    stand_in.write_text("TQC = None\n")
    script = ROOT / "scripts" / "peers" / "sb3_market.py"
    text = script.read_text().replace("LOOKS = 20", "LOOKS = 2")
    for name, content in (("sb3_market.py", text), ("answering.py", script.with_name("answering.py").read_text())):
        (tmp_path / name).write_text(content)
    config = small().config(0, tmp_path)
    found = peers_of(config, tmp_path)
    assert [score is not None and score <= 1.0 for _, score in found["curve"]] == [True, True]
    assert found["steps"] > 0
    assert found["largest_weight"] <= 1.0


def peers_of(config: Config, folder: Path) -> dict[str, Any]:
    settings = folder / "settings.yaml"
    settings.write_text(dump_config(config))
    return ask_peer((sys.executable, folder / "sb3_market.py", settings, "sac", "softmax", "2"))
