"""Tensors and JSON in one verified file: safetensors, with the state and a SHA-256 inside. Nothing is unpickled.

A file is measured before it is read: its header must account for every byte of it, and it must fit into this machine's
memory, so that no size is allocated only because a header declares it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.numpy import save as save_arrays
from safetensors.torch import load, save
from torch import Tensor

from finflow.errors import CheckpointError, one_line
from finflow.files import fits_memory, write_atomically

VERSION = 3  # the first that is to be read by later ones
KEY = "finflow"  # the only metadata key: several would be written in an order that is not fixed
LARGEST_HEADER = 10_000_000  # bytes: a training's has some ten thousand
LARGEST_STATE = 4_000_000  # characters of JSON
_NAME = re.compile(r"[A-Za-z0-9_\-]+(\.[A-Za-z0-9_\-]+)*(/[A-Za-z0-9_\-]+(\.[A-Za-z0-9_\-]+)*)*")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write tensors and a JSON state as one file, atomically; equal contents give equal bytes.

    Raises OutputError if the file cannot be written; what was there before is still there.
    """
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(state, sort_keys=True, allow_nan=False)
    header = {"version": VERSION, "sha256": _digest(whole, text, VERSION), "state": text}
    entries = {KEY: json.dumps(header, sort_keys=True)}
    try:  # the same bytes in a quarter of the time, where there are many small tensors
        content = save_arrays({name: tensor.numpy() for name, tensor in whole.items()}, metadata=entries)
    except (TypeError, RuntimeError):  # NumPy has no bfloat16 or float8
        content = save(whole, metadata=entries)
    write_atomically(path, content)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read and verify a file written by ``write_tensors``.

    Raises CheckpointError if it is missing, truncated, altered, or of a version that this finflow does not read.
    """
    content, entries = _content(path)
    try:
        header = json.loads(entries["__metadata__"][KEY])
        version, text, digest = header["version"], header["state"], header["sha256"]
        if not (type(version) is int and isinstance(text, str) and isinstance(digest, str)):
            raise TypeError("its header is not one of finflow's")
    except (ValueError, KeyError, TypeError, RecursionError):
        _damaged(path, "it has no finflow header")
    if version != VERSION:
        advice = "a newer finflow" if version > VERSION else "the finflow that wrote it"
        raise CheckpointError(
            f"{path} has format version {version}, this finflow reads version {VERSION}; use {advice}"
        )
    try:
        tensors = dict(sorted(load(content).items()))  # the library gives them in another order each time
        altered = digest != _digest(tensors, text, version)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        _damaged(path, one_line(error, 80) if isinstance(error, SafetensorError) else "unknown tensors")
    if altered:
        raise CheckpointError(f"{path} is damaged: its SHA-256 does not match; use another checkpoint of the run")
    for name in tensors:
        if len(name) > 300 or not _NAME.fullmatch(name):
            _damaged(path, f"it names a tensor {name[:40]!r}")
    return tensors, _parsed(path, text)


def _content(path: Path) -> tuple[bytes, dict[str, Any]]:
    """The bytes of a file, and its header, which accounts for all of them."""
    try:
        with path.open("rb") as stream:
            whole = os.fstat(stream.fileno()).st_size
            first = stream.read(8)
            size = int.from_bytes(first, "little")
            if len(first) < 8 or size > min(whole - 8, LARGEST_HEADER):
                _damaged(path, "it is cut short, or its header is not one of safetensors")
            header = stream.read(size)
            entries, end = _entries(path, header)
            declared = 8 + size + end
            if declared != whole:
                _damaged(path, f"it has {whole:,} bytes where its header says {declared:,}")
            if not fits_memory(whole):
                raise CheckpointError(f"{path} has {whole:,} bytes, more than this machine can take into memory")
            return first + header + stream.read(), entries
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error


def _entries(path: Path, header: bytes) -> tuple[dict[str, Any], int]:
    """The header's entries, and the bytes that the tensors take by its own account."""
    try:
        entries = json.loads(header)
        ends = [entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"]
        if not all(type(end) is int and end >= 0 for end in ends):
            raise TypeError("offsets are whole numbers")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        _damaged(path, "its header is not one of safetensors")
    return entries, max(ends, default=0)


def _parsed(path: Path, text: str) -> dict[str, Any]:
    """The JSON state: an object, of numbers that are numbers."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is no number")

    try:
        if len(text) > LARGEST_STATE:
            raise ValueError(f"it has {len(text):,} characters")
        state = json.loads(text, parse_constant=refuse)
        if not isinstance(state, dict):
            raise TypeError("it is no object")
    except RecursionError:
        raise CheckpointError(f"{path} is no finflow checkpoint: its state is nested too deeply") from None
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is no finflow checkpoint: its state cannot be read ({error})") from None
    return state


def _damaged(path: Path, why: str) -> NoReturn:
    raise CheckpointError(
        f"{path} is damaged or not a finflow checkpoint ({why}); use another checkpoint of the run"
    ) from None


def _digest(tensors: Mapping[str, Tensor], text: str, version: int) -> str:
    """Hash of names, types, shapes and values of tensors, of the state and of the version."""
    digest = hashlib.sha256(text.encode())
    digest.update(f"version {version};".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()


def without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Select the tensors whose names begin with a prefix, under their names without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
