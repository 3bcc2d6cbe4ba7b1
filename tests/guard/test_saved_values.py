"""A user's own dictionary comes back as it was, from a file that is no pickle."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from finflow import load_checkpoint, save_checkpoint
from finflow.errors import CheckpointError
from finflow.tensor_file import write_tensors


def test_networks_optimisers_and_numbers_come_back(tmp_path: Path) -> None:
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(network.parameters(), betas=(0.8, 0.9))
    network(torch.ones(3)).sum().backward()
    optimizer.step()
    plain = {"step": 3, "best": -math.inf, "names": ["a", None], "pair": (1, 2.5), 7: True}
    given = {"model": network.state_dict(), "optimizer": optimizer.state_dict(), **plain}
    with pytest.warns(UserWarning, match=r"mine\.pt would be a pickle: .*mine\.safetensors is written"):
        path = save_checkpoint(given, tmp_path / "mine.pt")
    found = load_checkpoint(path)
    assert {name: found[name] for name in plain} == plain
    network.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    assert torch.equal(found["optimizer"]["state"][0]["exp_avg"], given["optimizer"]["state"][0]["exp_avg"])
    assert [path.name for path in tmp_path.iterdir()] == ["mine.safetensors"]


def test_a_name_with_a_dot_stays_whole(tmp_path: Path) -> None:
    for name in ("model_0.95", "model_0.97"):
        save_checkpoint({"reward": np.mean([1.0, 2.0]), "name": name}, tmp_path / name)
    assert load_checkpoint(tmp_path / "model_0.95") == {"reward": 1.5, "name": "model_0.95"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model_0.95.safetensors", "model_0.97.safetensors"]


def test_what_cannot_be_saved_or_is_another_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    with pytest.raises(CheckpointError, match="loop/net is of the type Linear, which cannot be saved"):
        save_checkpoint({"loop": {"net": torch.nn.Linear(1, 1)}}, path)
    assert not path.exists()
    write_tensors(path, {}, {"step": 3})
    with pytest.raises(CheckpointError, match="holds no dictionary of save_checkpoint"):
        load_checkpoint(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="mine"):
        load_checkpoint(path)
