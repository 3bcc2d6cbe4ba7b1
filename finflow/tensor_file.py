"""Tensors and JSON in one verified file: safetensors, with the state and a SHA-256 inside. Nothing is unpickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from finflow.errors import CheckpointError
from finflow.files import write_atomically

VERSION = 1
KEY = "finflow"  # the only metadata key: several would be written in an order that is not fixed


def write_tensors(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write tensors and a JSON state as one file, atomically; equal contents give equal bytes.

    Parameters
    ----------
    path : Path
    tensors : mapping
    state : mapping
        JSON-able, without NaN.

    Raises
    ------
    OutputError
        If the file cannot be written; what was there before is still there.
    """
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(state, sort_keys=True, allow_nan=False)
    header = json.dumps({"version": VERSION, "sha256": _digest(whole, text), "state": text}, sort_keys=True)
    write_atomically(path, save(whole, metadata={KEY: header}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read and verify a file written by ``write_tensors``.

    Raises
    ------
    CheckpointError
        If it is missing, truncated, altered, or of another version.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    try:
        tensors = load(content)
        size = int.from_bytes(content[:8], "little")
        header = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][KEY])
        version, text, digest = header["version"], header["state"], header["sha256"]
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        why = str(error)[:80] if isinstance(error, SafetensorError) else "it has no finflow header"
        raise CheckpointError(
            f"{path} is damaged or not a finflow checkpoint ({why}); use another checkpoint of the run"
        ) from error
    if version != VERSION:
        raise CheckpointError(
            f"{path} has format version {version}, this finflow reads version {VERSION}; use the finflow that wrote it"
        )
    if digest != _digest(tensors, text):
        raise CheckpointError(f"{path} is damaged: its SHA-256 does not match; use another checkpoint of the run")
    return tensors, dict(json.loads(text))


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """Hash of names, types, shapes and values of tensors, and of the state."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()
