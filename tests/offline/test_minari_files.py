"""A dataset comes back from Minari bit for bit, other tools can read what lies there, and nothing else is believed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest

from finflow.env.vector_env import PortfolioVectorEnv
from finflow.errors import FinflowError, OutputError
from finflow.offline.dataset import OfflineDataset
from finflow.offline.minari_files import export_minari, import_minari, minari_folder

NAME = "finflow/behaviour-v0"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return minari_folder(NAME)


def assert_same_bits(left: OfflineDataset, right: OfflineDataset) -> None:
    assert left.arrays().keys() == right.arrays().keys()
    for name, column in left.arrays().items():
        other = getattr(right, name)
        assert (other.dtype, other.shape) == (column.dtype, column.shape), name
        assert other.tobytes() == column.tobytes(), name
    assert left.meta == right.meta


def test_ruined_and_users_episodes_come_back_bit_for_bit(folder: Path, ruined: OfflineDataset) -> None:
    export_minari(ruined, folder, NAME)
    assert_same_bits(import_minari(folder), ruined)


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_other_tools_see_what_the_environment_shows(folder: Path, small_of: Any, lag: int) -> None:
    """Minari's own reader, against observations of the environment played again with the stored actions."""
    world = small_of(env__execution_lag=lag)
    data = world.collect()
    export_minari(data, folder, NAME, world.process)
    assert_same_bits(import_minari(folder), data)
    stored = minari.load_dataset(NAME)
    assert (stored.total_episodes, stored.total_steps) == (40, len(data))
    env = PortfolioVectorEnv(world.process, world.window, 1, 25)
    assert stored.action_space == env.single_action_space
    assert set(stored.observation_space.spaces) == set(env.single_observation_space.spaces)
    for episode in (stored[3], stored[39]):
        held = episode.observations["portfolio"][:1, : world.process.n_weights].astype(np.float64)
        bar = episode.infos["bar"][:1].astype(np.int64)
        if lag == 0:
            held /= world.process.growth[bar]
        observation, _ = env.reset(options={"bars": bar, "weights": held / held.sum()})
        for step, action in enumerate(episode.actions):
            for name, value in observation.items():
                np.testing.assert_allclose(episode.observations[name][step], value[0], rtol=0, atol=1e-5)
            observation, reward, *_, info = env.step(action[None])
            assert episode.rewards[step] == pytest.approx(reward[0], abs=1e-6)
        last = info["final_obs"][0]
        for name, value in last.items():
            np.testing.assert_allclose(episode.observations[name][-1], value, rtol=0, atol=1e-5)
            assert episode.observations[name].shape == (26, *value.shape)
        assert episode.truncations.tolist() == [False] * 24 + [True]


def test_a_failed_export_leaves_nothing(
    folder: Path, dataset: OfflineDataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(h5py.Group, "create_dataset", full)
    with pytest.raises(OutputError, match="No space left"):
        export_minari(dataset, folder, NAME)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["behaviour", "../up-v0", "/root-v0", ""])
def test_a_name_that_minari_would_not_take_is_refused(name: str) -> None:
    with pytest.raises(FinflowError, match="not the name of a Minari dataset"):
        minari_folder(name)


def test_what_was_changed_or_cut_since_is_refused_and_not_written_over(folder: Path, dataset: OfflineDataset) -> None:
    export_minari(dataset, folder, NAME)
    with pytest.raises(FinflowError, match="already; use another name"):
        export_minari(dataset, folder, NAME)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        file["episode_7/rewards"][3] += 1e-3
    with pytest.raises(FinflowError, match="was changed since"):
        import_minari(folder)
    path = folder / "data" / "main_data.hdf5"
    content = path.read_bytes()
    for share in (0.0, 0.5, 0.99):
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(FinflowError, match="not a complete Minari dataset"):
            import_minari(folder)


def test_datasets_of_others_are_refused_before_anything_of_theirs_is_made(
    folder: Path, dataset: OfflineDataset, tmp_path: Path
) -> None:
    """Without spaces in its metadata Minari would import and make the environment that a file names."""
    export_minari(dataset, folder, NAME)
    path = folder / "data" / "metadata.json"
    whole = json.loads(path.read_text())
    trap = tmp_path / "trap.py"
    trap.write_text("raise SystemExit('imported')", encoding="utf-8")
    spec = json.dumps({"id": "Trap-v0", "entry_point": "trap:Trap"})
    for missing in ("observation_space", "finflow_meta", "finflow_sha256"):
        changed = {key: value for key, value in whole.items() if key != missing}
        path.write_text(json.dumps({**changed, "env_spec": spec}))
        with pytest.raises(FinflowError, match="was not exported by finflow"):
            import_minari(folder)
    assert "trap" not in sys.modules
    path.write_text("{")
    with pytest.raises(FinflowError, match="not a complete Minari dataset"):
        import_minari(folder)
    with pytest.raises(FinflowError, match="there is no Minari dataset"):
        import_minari(minari_folder("none-v0"))


def test_without_the_package_one_line_says_what_to_install(
    folder: Path, dataset: OfflineDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "minari.dataset.minari_storage", None)
    for attempt in (lambda: export_minari(dataset, folder, NAME), lambda: import_minari(folder)):
        with pytest.raises(FinflowError, match=r"pip install 'finflow\[minari\]'"):
            attempt()
