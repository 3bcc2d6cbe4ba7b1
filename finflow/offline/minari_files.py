"""Datasets to and from Minari, the format that other offline learners read (package ``minari``, HDF5).

One Minari episode is one of ours. ``observations`` are those of the environment, one more than there are steps;
``infos`` hold per step what Minari has no place for (bar, family, episode, the behaviour's next decision), and the
metadata our own meta with a hash of every column. So a dataset comes back bit for bit, or is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from finflow.env.decision_process import DecisionProcess
from finflow.env.vector_env import observation_space
from finflow.errors import FinflowError, OutputError, refuse
from finflow.files import reason
from finflow.offline.dataset import OfflineDataset

FORMAT, ALGORITHM, META, HASH = "hdf5", "finflow behaviour data", "finflow_meta", "finflow_sha256"
_NAME = re.compile(r"([-_\w]+/)*[-_\w]*\w-v\d+")
_INFOS = ("bar", "family", "episode", "next_action")


def minari_folder(name: str, root: Path | None = None) -> Path:
    """Folder in which Minari keeps a dataset: under ``root``, ``MINARI_DATASETS_PATH`` or ``~/.minari/datasets``.

    A FinflowError if the name is not one of Minari's, such as ``finflow/behaviour-v0``.
    """
    refuse(
        not _NAME.fullmatch(name),
        f"{name!r} is not the name of a Minari dataset; it ends in a version, as finflow/behaviour-v0 does",
    )
    given = os.environ.get("MINARI_DATASETS_PATH")
    return (root or (Path(given) if given else Path.home() / ".minari" / "datasets")) / name


def export_minari(dataset: OfflineDataset, folder: Path, name: str, process: DecisionProcess | None = None) -> float:
    """Write a dataset as a Minari dataset; returns the megabytes written.

    Raises FinflowError if the dataset is there already, or the package is missing.

    Parameters
    ----------
    folder : Path
        ``minari_folder(name)``; it appears when it is whole, and is never written over.
    process : DecisionProcess, optional
        The market that the data come from: observations then are the environment's own. Without it they have
        ``portfolio`` alone, a sixth of the size; the features have to be looked up by bar.
    """
    storage_type, buffer_type = _minari()
    refuse(folder.exists(), f"there is a Minari dataset {folder} already; use another name or version, or delete it")
    spaces = {} if process is None else dict(observation_space(process).spaces)
    spaces["portfolio"] = gym.spaces.Box(-np.inf, np.inf, dataset.portfolio.shape[1:], np.float32)
    staged = folder.with_name(f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        (staged / "data").mkdir(parents=True)
        storage = storage_type.new(
            staged / "data",
            observation_space=gym.spaces.Dict(spaces),
            action_space=gym.spaces.Box(0.0, 1.0, dataset.action.shape[1:], np.float32),
            data_format=FORMAT,
        )
        storage.update_metadata(
            {
                "dataset_id": name,
                "minari_version": import_module("minari").__version__,
                "algorithm_name": ALGORITHM,
                "description": "portfolios of simple rules, priced after costs; docs/reference/offline.md says how",
                META: json.dumps(dataset.meta),
                HASH: _hash(dataset),
            }
        )
        storage.update_episodes(_episodes(dataset, process, buffer_type))
        size = sum(path.stat().st_size for path in staged.rglob("*") if path.is_file()) / 1e6
        os.replace(staged, folder)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {reason(error)}") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return size


def import_minari(folder: Path) -> OfflineDataset:
    """Read a dataset that ``export_minari`` wrote; a FinflowError if it is missing, damaged, or was changed since."""
    storage_type, _ = _minari()
    data = folder / "data"
    refuse(not data.is_dir(), f"there is no Minari dataset {folder}")
    try:
        raw = json.loads((data / "metadata.json").read_text("utf-8"))
        # Without its spaces in the file, Minari would import and make whatever environment the file names.
        needed = {META, HASH, "observation_space", "action_space"}
        ours = isinstance(raw, dict) and needed <= raw.keys() and raw.get("data_format") == FORMAT
    except (OSError, ValueError) as error:
        raise FinflowError(f"{folder} is not a complete Minari dataset ({error})") from error
    refuse(not ours, f"{folder} was not exported by finflow: it does not say the bars and the market of its decisions")
    try:
        episodes = storage_type.read(data).get_episodes(range(int(raw["total_episodes"])))
        parts = [_columns(episode) for episode in episodes]
        columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        dataset = OfflineDataset(**columns, meta=json.loads(raw[META]))
        same = _hash(dataset) == raw[HASH]
    except Exception as error:  # damaged files make h5py and Minari fail in more ways than can be listed
        raise FinflowError(f"{folder} is not a complete Minari dataset ({error})") from error
    refuse(not same, f"{folder} was changed since finflow exported it, so its origin is unknown")
    return dataset


def _minari() -> tuple[Any, Any]:
    """Minari's storage and its buffer of an episode; the package is optional."""
    try:
        import_module("h5py")
        return (
            import_module("minari.dataset.minari_storage").MinariStorage,
            import_module("minari.data_collector.episode_buffer").EpisodeBuffer,
        )
    except ImportError as error:
        raise FinflowError(f"this needs the package minari: pip install 'finflow[minari]' ({error})") from error


def _episodes(dataset: OfflineDataset, process: DecisionProcess | None, buffer_type: Any) -> Iterator[Any]:
    """Buffers of Minari, made one at a time: with all features they are many times the dataset."""
    starts = np.flatnonzero(np.diff(dataset.episode, prepend=dataset.episode[0] - 1))
    for number, (first, stop) in enumerate(zip(starts, [*starts[1:], len(dataset)], strict=True)):
        part = slice(int(first), int(stop))
        seen = np.concatenate([dataset.portfolio[part], dataset.next_portfolio[stop - 1 : stop]])
        refuse(
            not np.array_equal(seen[1:], dataset.next_portfolio[part]),
            f"episode {dataset.episode[first]} does not go on where its last step ended",
        )
        observations = {"portfolio": seen}
        if process is not None:
            bars = np.append(dataset.bar[part], dataset.bar[stop - 1] + 1).astype(np.int64) - process.lag
            observations |= {"assets": process.asset_features[bars], "market": process.market_features[bars]}
        yield buffer_type(
            id=number,
            observations=observations,
            actions=dataset.action[part],
            rewards=dataset.reward[part],
            terminations=dataset.terminated[part],
            truncations=dataset.truncated[part],
            infos={name: getattr(dataset, name)[part] for name in _INFOS},
        )


def _columns(episode: dict[str, Any]) -> dict[str, NDArray[Any]]:
    portfolio = episode["observations"]["portfolio"]
    return {
        "portfolio": portfolio[:-1],
        "next_portfolio": portfolio[1:],
        "action": episode["actions"],
        "reward": episode["rewards"],
        "terminated": episode["terminations"],
        "truncated": episode["truncations"],
        **{name: episode["infos"][name] for name in _INFOS},
    }


def _hash(dataset: OfflineDataset) -> str:
    """Of every column, its type and its shape, and of the meta."""
    digest = hashlib.sha256(json.dumps(dataset.meta, sort_keys=True).encode())
    for name, column in sorted(dataset.arrays().items()):
        digest.update(f"{name} {column.dtype.str} {column.shape}".encode())
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()
