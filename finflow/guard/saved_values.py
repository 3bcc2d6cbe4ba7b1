"""A user's own dictionary as one verified file: tensors as safetensors, all else as JSON inside; nothing is pickled."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from finflow.errors import CheckpointError
from finflow.guard.checkpoint_folder import SUFFIX
from finflow.tensor_file import read_tensors, write_tensors

PICKLES = (".pt", ".pth", ".pkl", ".ckpt", ".bin")
TENSOR, PAIRS, TUPLE, NUMBER = "$tensor", "$pairs", "$tuple", "$number"  # keys of what JSON itself does not know


def save_checkpoint(state: Mapping[str, Any], path: str | Path) -> Path:
    """Write a dictionary such as ``{"model": network.state_dict(), "step": 3}``, atomically; returns the file.

    Values are tensors, numbers, text, None, and lists, tuples and mappings of them. The file ends in ``.safetensors``:
    of ``x.pt`` it is ``x.safetensors``, and a warning says so. Raises CheckpointError for a value of another kind.
    """
    file = _file_of(path)
    if Path(path).suffix in PICKLES:
        warnings.warn(f"{path} would be a pickle: {file} is written", stacklevel=2)
    tensors: dict[str, Tensor] = {}
    content = _encode(dict(state), "", tensors)
    write_tensors(file, tensors, {"values": content})
    return file


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a dictionary of `save_checkpoint`; a CheckpointError if it is missing, damaged, or something else."""
    tensors, content = read_tensors(_file_of(path))
    try:
        return dict(_decode(content["values"], tensors))
    except (LookupError, TypeError, ValueError):
        raise CheckpointError(f"{path} holds no dictionary of save_checkpoint") from None


def _file_of(path: str | Path) -> Path:
    given = Path(path)
    bare = given.with_suffix("") if given.suffix in PICKLES else given
    return bare if bare.suffix == SUFFIX else bare.with_name(bare.name + SUFFIX)


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        number = str(len(tensors))
        tensors[number] = value.detach().cpu().clone().contiguous()
        return {TENSOR: number}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping) and all(isinstance(key, str | int) for key in value):
        return {PAIRS: [[key, _encode(inner, f"{name}/{key}", tensors)] for key, inner in value.items()]}
    if isinstance(value, list | tuple):
        parts = [_encode(inner, f"{name}/{place}", tensors) for place, inner in enumerate(value)]
        return parts if isinstance(value, list) else {TUPLE: parts}
    if isinstance(value, float) and not math.isfinite(value):
        return {NUMBER: str(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    kind = type(value).__name__
    raise CheckpointError(f"{name[1:]} is of the type {kind}, which cannot be saved; give tensors, numbers or text")


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(inner, tensors) for inner in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind in (TENSOR, NUMBER):
        return tensors[inner] if kind == TENSOR else float(inner)
    parts = [_decode(one, tensors) for one in inner]
    return tuple(parts) if kind == TUPLE else {key: part for key, part in parts}
