"""Capture and restore the state of an object as named tensors and JSON.

Every state that a training depends on is a field of one dataclass. ``capture`` walks its fields and the objects in
them. A field of an unknown kind is an error, so that no new field can be left out of a save.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn

from finflow.errors import CheckpointError
from finflow.tensor_file import without_prefix

SEPARATOR = "/"
Json = Any
PLAIN = (bool, int, float, str, dict, list)
LEARNED = (nn.Module, torch.optim.Optimizer, Tensor, Generator, bool, int, float)
"""Kinds of attributes that change as an object learns."""


@runtime_checkable
class Stateful(Protocol):
    """An object that can put its own state into tensors and JSON."""

    def capture(self) -> tuple[dict[str, Tensor], Json]:
        """Return the state."""
        ...

    def restore(self, tensors: Mapping[str, Tensor], state: Json) -> None:
        """Restore the state."""
        ...


def capture(owner: Any) -> tuple[dict[str, Tensor], dict[str, Json]]:
    """All parts of an object as tensors and JSON, under ``part/...`` names.

    The parts are the fields of a dataclass, the attributes that a class names in ``SAVED``, or else the attributes that
    change as an object learns. They are None, JSON values, tensors, generators, networks, optimisers, ``Stateful``
    objects, or have parts themselves; a TypeError for others.
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
    return {name: part for name, part in attributes if isinstance(part, (*LEARNED, Stateful)) or hasattr(part, "SAVED")}


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
    if isinstance(value, Stateful):
        return value.capture()
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
    elif isinstance(value, Stateful):
        value.restore(tensors, state)
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


def _optimiser_state(optimiser: torch.optim.Optimizer) -> tuple[dict[str, Tensor], Json]:
    """An optimiser's moments by parameter number, and its learning rates."""
    tensors = {}
    for number, moments in optimiser.state_dict()["state"].items():
        for key, tensor in moments.items():
            tensors[f"{number}.{key}"] = tensor.detach().clone()
    return tensors, [group["lr"] for group in optimiser.param_groups]


def _load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor], state: Json) -> None:
    whole = optimiser.state_dict()
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, key = name.split(".", 1)
        if key != "step":
            check_like(tensor, parameters[int(number)])
        moments.setdefault(int(number), {})[key] = tensor.clone()  # the optimiser goes on to write in it
    whole["state"] = moments
    optimiser.load_state_dict(whole)
    for group, rate in zip(optimiser.param_groups, state, strict=True):
        group["lr"] = rate
