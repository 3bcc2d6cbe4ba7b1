"""Keys of the online learner: former ones are answered with their place, and what cannot go together is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from finflow.config import Config, load_config
from finflow.config.loading import MOVED
from finflow.config.schema import KEYS
from finflow.errors import ConfigError


def complaint(overrides: dict[str, object], environ: dict[str, str] | None = None, path: Path | None = None) -> str:
    """The one line that a mistake is answered with."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides, environ or {})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def nested(key: str, value: object) -> str:
    """A file of one key in its sections."""
    lines = [f"{'  ' * depth}{name}:" for depth, name in enumerate(key.split("."))]
    return "\n".join(lines) + f" {value}\n"


def test_soft_actor_critic_is_the_one_learner_off_policy() -> None:
    assert Config().online.algorithm == "sac"
    assert load_config(None, {"online.algorithm": "sac"}, {}) == Config()
    assert not Config().online.on_policy


@pytest.mark.parametrize("place", ["file", "environment", "command line"])
def test_rollouts_are_answered_with_the_learner_that_they_are_part_of(place: str, tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text("online: {algorithm: rollouts}\n", "utf-8")
    given: dict[str, tuple[dict[str, object], dict[str, str], Path | None]] = {
        "file": ({}, {}, path),
        "environment": ({}, {"FINFLOW_ONLINE__ALGORITHM": "rollouts"}, None),
        "command line": ({"online.algorithm": "rollouts"}, {}, None),
    }
    said = complaint(*given[place])
    for word in ("online.algorithm = rollouts", "online.algorithm = sac", "bcell.expansion"):
        assert word in said


@pytest.mark.parametrize("key", MOVED)
def test_a_key_that_moved_is_answered_with_its_place(key: str, tmp_path: Path) -> None:
    """From the command line, from the environment and, section by section, from a file."""
    assert MOVED[key] in KEYS
    assert key not in KEYS
    path = tmp_path / "old.yaml"
    path.write_text(nested(key, 4), "utf-8")
    variable = "FINFLOW_" + key.upper().replace(".", "__")
    for said in (complaint({key: 4}), complaint({}, {variable: "4"}), complaint({}, path=path)):
        assert key in said or variable in said
        assert MOVED[key] in said or MOVED[key].upper().replace(".", "__") in said, said


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("bcell.expansion", -1, "bcell.expansion = -1"),
        ("bcell.expansion", 2.5, "a whole number"),
        ("bcell.counterfactual", "eight", "true or false"),
        ("bcell.mirrored.weight", 0.6, "at most 0.5"),
        ("out_of_fold.blocks", 0, "at least 1"),
        ("out_of_fold.looks", 0, "at least 1"),
        ("out_of_fold.pretraining_epochs", -1, "at least 0"),
        ("train.updates_per_vector_step", 0, "at least 1"),
        ("bcell.anchor.updates", 0, "at least 1"),
    ],
)
def test_an_impossible_value_is_named(key: str, value: object, words: str) -> None:
    said = complaint({key: value})
    assert key in said
    assert words in said


def test_risk_measures_and_references_are_for_the_learner_that_has_them() -> None:
    assert load_config(None, {"bcell.risk_measure": "cvar"}, {}).bcell.risk_measure == "cvar"
    assert "bcell.risk_measure = cvar" in complaint({"bcell.risk_measure": "cvar", "online.algorithm": "ppo"})
    found = load_config(None, {"online.reference": "pretrained", "online.algorithm": "ppo"}, {})
    assert found.online.reference == "pretrained"
    said = complaint({"online.reference": "pretrained"})
    assert "online.reference = pretrained needs an on-policy online.algorithm" in said


def test_evidence_out_of_fold_can_be_searched_as_the_learner_can() -> None:
    space = {
        "tune.space": {"out_of_fold.looks": {"low": 1, "high": 6}, "bcell.expansion": {"choices": [0, 16]}},
    }
    found = load_config(None, space, {}).tune.space  # type: ignore[arg-type]
    assert found is not None
    assert sorted(found) == ["bcell.expansion", "out_of_fold.looks"]
