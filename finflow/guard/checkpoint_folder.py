"""The checkpoints of one run, each one file, written whole; and the state of an object as named tensors and JSON.

Every state that a training depends on is a field of one dataclass. ``capture`` walks its fields and the objects in
them. A field of an unknown kind is an error, so that no new field can be left out of a save.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from finflow.errors import CheckpointError, OutputError
from finflow.tensor_file import without_prefix, write_tensors

BEST, LATEST, PRETRAINED = "checkpoint_best", "checkpoint_latest", "checkpoint_pretrained"
SUFFIX = ".safetensors"
MODELS = "models"


@dataclass(frozen=True)
class CheckpointFolder:
    """Writes and finds the checkpoints of a run, in its ``models`` folder.

    The newest ``max_checkpoints`` numbered ones stay.
    """

    folder: Path
    max_checkpoints: int = 5
    save_best: bool = True
    save_latest: bool = True

    def save(self, update: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Write a checkpoint as the latest and under its number, then drop the oldest numbered ones."""
        names = ([LATEST] if self.save_latest else []) + ([numbered(update)] if self.max_checkpoints else [])
        self._write(names, tensors, state)
        for path in self.numbered()[self.max_checkpoints :]:
            with suppress(OSError):  # an extra checkpoint does no harm
                path.unlink(missing_ok=True)

    def save_as(self, name: str, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Write a checkpoint under a name of its own; the best only where the run keeps one."""
        if name != BEST or self.save_best:
            self._write([name], tensors, state)

    def sweep(self) -> None:
        """Remove what a killed process left of a file that it was writing."""
        for path in self.folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)

    def numbered(self) -> list[Path]:
        """Numbered checkpoints, the newest first."""
        return sorted(self.folder.glob(f"checkpoint_[0-9]*{SUFFIX}"), reverse=True)

    def path(self, name: str) -> Path:
        return self.folder / f"{name}{SUFFIX}"

    def _write(self, names: list[str], tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Write one file under several names: the others are hard links to it, or copies where there are none."""
        if not names:
            return
        first = self.path(names[0])
        write_tensors(first, tensors, state)
        for name in names[1:]:
            temporary = self.folder / f".{name}.{os.getpid()}.tmp"
            try:
                temporary.unlink(missing_ok=True)
                os.link(first, temporary)
                os.replace(temporary, self.path(name))
            except OSError:  # a file system without hard links
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
                write_tensors(self.path(name), tensors, state)


Snapshot = tuple[Mapping[str, Tensor], Mapping[str, Any]]


class CheckpointWriter:
    """Writes the checkpoints of a run that goes on learning where one of them cannot be written.

    A failure is announced, and what was to be written under a name of its own is kept for the next attempt. The latest
    is not written before that: so it never speaks of a best checkpoint that is not on the disk.

    ``say``: takes each announcement, one line. ``make_durable``: has on the disk what checkpoints refer to; called
    before each of them is written.
    """

    def __init__(self, folder: CheckpointFolder, say: Callable[[str], None], make_durable: Callable[[], None]) -> None:
        self.folder = folder
        self._make_durable = make_durable
        self.failure: str | None = None  # why the newest checkpoint is not on the disk
        self._say = say
        self._waiting: dict[str, Snapshot] = {}
        self._written: int | None = None

    def save(self, update: int, snapshot: Callable[[], Snapshot]) -> None:
        """Write what waits, then the latest and a numbered checkpoint."""
        try:
            self._make_durable()
            for name in list(self._waiting):
                self.folder.save_as(name, *self._waiting[name])
                del self._waiting[name]
            self.folder.save(update, *snapshot())
        except OutputError as error:
            self._announce(str(error))
            return
        if self.failure is not None:
            self._say(f"checkpoints can be written again: that of update {update} is on the disk")
        self.failure, self._written = None, update

    def save_as(self, name: str, snapshot: Snapshot) -> None:
        """Write a checkpoint under a name of its own, or keep it for the next attempt."""
        self._waiting.pop(name, None)
        try:
            self._make_durable()
            self.folder.save_as(name, *snapshot)
        except OutputError as error:
            self._waiting[name] = snapshot
            self._announce(str(error))

    def require_written(self) -> None:
        """Raise an OutputError where the last attempt to write failed."""
        if self.failure is not None:
            raise OutputError(f"the end of this run could not be written: {self.failure}{self._held()}")

    def _announce(self, problem: str) -> None:
        self.failure = problem
        self._say(f"{problem}{self._held()}; training goes on, and the next checkpoint tries again")

    def _held(self) -> str:
        return "" if self._written is None else f" (the newest on the disk is that of update {self._written})"


def numbered(update: int) -> str:
    """Name of the checkpoint of an update; names sort as numbers do."""
    return f"checkpoint_{update:09d}"


SEPARATOR = "/"
Json = Any
PLAIN = (bool, int, float, str, dict, list)
LEARNED = (nn.Module, torch.optim.Optimizer, Tensor, Generator, bool, int, float)
"""Kinds of attributes that change as an object learns."""


def capture(owner: Any) -> tuple[dict[str, Tensor], dict[str, Json]]:
    """All parts of an object as tensors and JSON, under ``part/...`` names.

    The parts are the fields of a dataclass, the attributes that a class names in ``SAVED``, or else the attributes that
    change as an object learns. They are None, JSON values, tensors, generators, networks, optimisers, objects with
    ``capture`` and ``restore`` of their own, schedules of learning rates with a ``state_dict``, or have parts
    themselves; a TypeError for others.
    """
    return _capture_parts(_parts(owner))


def restore(
    owner: Any, tensors: Mapping[str, Tensor], state: Mapping[str, Json], begin_afresh: Collection[str] = ()
) -> None:
    """Restore what ``capture`` returned in an object whose parts have the same kinds and shapes.

    Parts in ``begin_afresh`` are left as they are: the capture is older than they are. A CheckpointError if something
    is missing, is of another kind or shape, or has no place here.
    """
    parts = _parts(owner)
    for name in sorted({*state, *(name.partition(SEPARATOR)[0] for name in tensors)} - parts.keys()):
        raise CheckpointError(f"the checkpoint does not fit: {name[:60]!r} has no place here")
    for name, part in parts.items():
        if name in begin_afresh:
            continue
        try:
            setattr(owner, name, _restore_part(name, part, tensors, state))
        except (LookupError, TypeError, RuntimeError, ValueError, AttributeError, OverflowError) as error:
            reason = " ".join(str(error).split())[:160]
            raise CheckpointError(f"the checkpoint does not fit at {name} ({reason})") from error


def _parts(owner: Any) -> dict[str, Any]:
    """The parts of an object that are saved, by name; none for a value that is a part itself."""
    if hasattr(owner, "SAVED"):
        return {name: getattr(owner, name) for name in owner.SAVED}
    if is_dataclass(owner):
        return {field.name: getattr(owner, field.name) for field in fields(owner)}
    if isinstance(owner, dict):
        return owner if any(hasattr(part, "SAVED") for part in owner.values()) else {}
    attributes = sorted(getattr(owner, "__dict__", {}).items())
    return {
        name: part
        for name, part in attributes
        if isinstance(part, LEARNED) or hasattr(part, "capture") or hasattr(part, "SAVED")
    }


def _capture_parts(parts: Mapping[str, Any], owner: str = "") -> tuple[dict[str, Tensor], dict[str, Json]]:
    tensors: dict[str, Tensor] = {}
    state: dict[str, Json] = {}
    for key, part in parts.items():
        own, state[key] = _capture_value(part, owner + key)
        tensors.update({f"{key}{SEPARATOR}{inner}" if inner else key: t for inner, t in own.items()})
    return tensors, state


def _capture_value(value: Any, name: str) -> tuple[dict[str, Tensor], Json]:
    if isinstance(value, Tensor):
        return {"": value.detach().clone()}, None
    if isinstance(value, Generator):
        return {"": value.get_state()}, None
    if isinstance(value, nn.Module):
        return {key: tensor.detach().clone() for key, tensor in value.state_dict().items()}, None
    if isinstance(value, torch.optim.Optimizer):
        return _optimiser_state(value)
    if hasattr(value, "capture"):
        own: tuple[dict[str, Tensor], Json] = value.capture()
        return own
    if _is_schedule(value):  # its functions, a LambdaLR's, are left out
        return {}, {key: part for key, part in value.state_dict().items() if _is_plain(part)}
    if parts := _parts(value):
        return _capture_parts(parts, f"{name}.")
    if value is None or isinstance(value, PLAIN):
        return {}, copy.deepcopy(value)
    raise TypeError(f"{name} is of the type {type(value).__name__}, which cannot be saved")


def _restore_part(name: str, part: Any, tensors: Mapping[str, Tensor], state: Json) -> Any:
    """Restore one part; returns its new value."""
    own = without_prefix(tensors, name + SEPARATOR)
    if name in tensors:
        own[""] = tensors[name]
    return _restore_value(part, own, state[name])


def _restore_value(value: Any, tensors: Mapping[str, Tensor], state: Json) -> Any:
    if isinstance(value, Tensor):
        check_like(tensors[""], value)
        with torch.no_grad():
            value.copy_(tensors[""])
    elif isinstance(value, Generator):
        value.set_state(tensors[""].cpu())
    elif isinstance(value, nn.Module):
        for name, tensor in value.state_dict().items():
            check_like(tensors[name], tensor)
        value.load_state_dict(dict(tensors))
    elif isinstance(value, torch.optim.Optimizer):
        _load_optimiser(value, tensors, state)
    elif hasattr(value, "capture"):
        value.restore(tensors, state)
    elif _is_schedule(value):
        value.load_state_dict({**value.state_dict(), **state})
    elif parts := _parts(value):
        for name, part in parts.items():
            restored = _restore_part(name, part, tensors, state)
            if restored is not part:
                setattr(value, name, restored)
    else:
        if tensors:
            raise ValueError("it holds tensors, which have no place here")
        if value is not None and state is not None and not _alike(value, state):
            raise TypeError(f"it is of the type {type(state).__name__}, not {type(value).__name__}")
        return copy.deepcopy(state)
    return value


def _is_schedule(value: Any) -> bool:
    """Return True for a schedule of learning rates, as torch has them."""
    return hasattr(value, "state_dict") and hasattr(value, "step")


def check_like(given: Tensor, expected: Tensor) -> None:
    """Raise a ValueError where a tensor has another shape or type than the one it replaces."""
    if given.shape != expected.shape:
        raise ValueError(f"its shape is {tuple(given.shape)}, not {tuple(expected.shape)}")
    if given.dtype != expected.dtype:
        raise ValueError(f"it is of the type {given.dtype}, not {expected.dtype}")


def _alike(value: Json, state: Json) -> bool:
    """Return True for JSON values of one kind; a whole number may stand for a float."""
    if isinstance(value, float):
        return isinstance(state, int | float) and not isinstance(state, bool)
    return type(value) is type(state)


def _is_plain(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError):
        return False


MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg")  # in the shape of a parameter


def _optimiser_state(optimiser: torch.optim.Optimizer) -> tuple[dict[str, Tensor], Json]:
    """An optimiser's moments by parameter number, and its learning rates."""
    tensors = {}
    for number, moments in optimiser.state_dict()["state"].items():
        for key, tensor in moments.items():
            if not isinstance(tensor, Tensor):
                raise CheckpointError(f"{type(optimiser).__name__} keeps {key} of the type {type(tensor).__name__}")
            tensors[f"{number}.{key}"] = tensor.detach().clone()
    return tensors, [group["lr"] for group in optimiser.param_groups]


def _load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor], state: Json) -> None:
    whole = optimiser.state_dict()
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, key = name.split(".", 1)
        if key in MOMENTS:
            check_like(tensor, parameters[int(number)])
        moments.setdefault(int(number), {})[key] = tensor.clone()  # the optimiser goes on to write in it
    whole["state"] = moments
    optimiser.load_state_dict(whole)
    for group, rate in zip(optimiser.param_groups, state, strict=True):
        group["lr"] = rate
