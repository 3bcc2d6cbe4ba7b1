"""Capture and restore the state of an object as named tensors and JSON.

Every state that a training depends on is a field of one dataclass. ``capture`` walks its fields and the objects in
them. A field of an unknown kind is an error, so that no new field can be left out of a save.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn

from finflow.errors import CheckpointError

SEPARATOR = "/"
Json = Any


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
    """All fields of a dataclass as tensors and JSON, under ``field/...`` names.

    Fields are None, JSON values, tensors, generators, networks, optimisers, ``Stateful`` objects, or plain objects
    whose attributes are such; a TypeError for others.
    """
    return _capture_parts({field.name: getattr(owner, field.name) for field in fields(owner)})


def restore(
    owner: Any, tensors: Mapping[str, Tensor], state: Mapping[str, Json], begin_afresh: Collection[str] = ()
) -> None:
    """Restore what ``capture`` returned in a dataclass whose fields have the same kinds and shapes.

    Fields in ``begin_afresh`` are left as they are: the capture is older than they are. A CheckpointError if something
    is missing, is of another kind or shape, or has no place here.
    """
    names = {field.name for field in fields(owner)}
    for name in sorted({*state, *(name.partition(SEPARATOR)[0] for name in tensors)} - names):
        raise CheckpointError(f"the checkpoint does not fit: {name[:60]!r} has no place here")
    for field in fields(owner):
        if field.name in begin_afresh:
            continue
        own = without_prefix(tensors, field.name + SEPARATOR)
        if field.name in tensors:
            own[""] = tensors[field.name]
        try:
            value = _restore_value(getattr(owner, field.name), own, state[field.name])
        except (LookupError, TypeError, RuntimeError, ValueError, AttributeError, OverflowError) as error:
            reason = " ".join(str(error).split())[:160]
            raise CheckpointError(f"the checkpoint does not fit at {field.name} ({reason})") from error
        setattr(owner, field.name, value)


def _capture_parts(parts: Mapping[str, Any], owner: str = "") -> tuple[dict[str, Tensor], dict[str, Json]]:
    tensors: dict[str, Tensor] = {}
    state: dict[str, Json] = {}
    for key, part in parts.items():
        own, rest = _capture_value(part, owner + key)
        tensors.update({f"{key}{SEPARATOR}{inner}" if inner else key: t for inner, t in own.items()})
        state[key] = rest
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
    if value is None or isinstance(value, bool | int | float | str | dict | list):
        return {}, copy.deepcopy(value)
    parts = dict(_learned_parts(value)) if hasattr(value, "__dict__") else {}
    if not parts:
        raise TypeError(f"{name} is of the type {type(value).__name__}, which cannot be saved")
    return _capture_parts(parts, f"{name}.")


def _restore_value(value: Any, tensors: Mapping[str, Tensor], state: Json) -> Any:
    """Restore one value; returns the new value of the field."""
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
    elif value is None or isinstance(value, bool | int | float | str | dict | list):
        if tensors:
            raise ValueError("it holds tensors, which have no place here")
        if value is not None and state is not None and not _alike(value, state):
            raise TypeError(f"it is of the type {type(state).__name__}, not {type(value).__name__}")
        return copy.deepcopy(state)
    else:
        for key, part in _learned_parts(value):
            own = without_prefix(tensors, key + SEPARATOR)
            if key in tensors:
                own[""] = tensors[key]
            restored = _restore_value(part, own, state[key])
            if restored is not part:
                setattr(value, key, restored)
    return value


def without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Select the tensors whose names begin with a prefix, under their names without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


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


def _learned_parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of a learner that change as it learns: networks, optimisers, tensors, generators, numbers."""
    kinds = (nn.Module, torch.optim.Optimizer, Tensor, Generator, bool, int, float)
    for name, part in sorted(vars(value).items()):
        if isinstance(part, (*kinds, Stateful)):
            yield name, part


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
