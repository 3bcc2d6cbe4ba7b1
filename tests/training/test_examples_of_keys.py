"""Commands of the README and the quickstart that set a key or name a preset: each part of them changes the agent."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from safetensors.numpy import load_file

from finflow.config import flatten
from tests.short_trainings import SHORT, SHORT_MARKET, config_in
from tests.training.whole_trainings import train_through

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/guide/quickstart.md")
PRESETS = ("configs/volatile.yaml", "configs/calm.yaml")
TRAINED: dict[str, dict[str, bytes]] = {}


def examples() -> list[tuple[str, Mapping[str, object]]]:
    """Each preset and ``--set`` of a key of the agent in the commands, and what its command has before it."""
    found: list[tuple[str, Mapping[str, object]]] = []
    for page in PAGES:
        for line in re.findall(r"python main\.py --mode train[^`#\n]*", (ROOT / page).read_text("utf-8")):
            words, before = shlex.split(line), dict[str, object]()
            for option, value in itertools.pairwise(words):
                acts = (option == "--config" and value in PRESETS) or (option == "--set" and value.startswith("bcell."))
                if acts:
                    found.append((value, dict(before)))
                    before |= keys_of(value)
    return found


def keys_of(part: str) -> dict[str, object]:
    """Keys of a preset, or of ``key=value``."""
    if part in PRESETS:
        return flatten(yaml.safe_load((ROOT / part).read_text("utf-8")))
    key, _, value = part.partition("=")
    return {key: yaml.safe_load(value)}


def test_the_pages_have_such_examples() -> None:
    parts = [part for part, _ in examples()]
    assert "configs/volatile.yaml" in parts
    assert "bcell.cql_alpha=10" in parts


@pytest.mark.parametrize(("part", "before"), [*examples(), *((preset, {}) for preset in PRESETS)])
def test_an_example_changes_the_checkpoint(
    part: str, before: Mapping[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """All weights of the policy and of the critics differ from those of a training without it."""
    folder = tmp_path_factory.getbasetemp()
    changed, plain = trained(folder, {**before, **keys_of(part)}), trained(folder, before)
    learned = [
        name for name in plain if name.startswith(("bcell/policy/", "bcell/critic/")) and name.endswith("weight")
    ]
    assert len(learned) > 20
    assert [name for name in learned if changed[name] == plain[name]] == []


def trained(folder: Path, keys: Mapping[str, object]) -> dict[str, bytes]:
    """Tensors of the checkpoint of a training of a second or two; the same training happens once."""
    name = repr(sorted(keys.items()))
    if name not in TRAINED:
        trainer = train_through(config_in(folder, {**SHORT, **SHORT_MARKET, **keys}))
        tensors = load_file(trainer.run_folder / "models" / "checkpoint_latest.safetensors")
        TRAINED[name] = {name: tensor.tobytes() for name, tensor in tensors.items()}
    return TRAINED[name]
