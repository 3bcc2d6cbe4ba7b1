"""What must survive a stop: every state that training depends on is a field of one object, and is saved from there.

``capture`` walks the fields of a dataclass and of the objects in it. A field of a kind that it does not know is an
error, so that nothing can be forgotten by adding a field.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
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
        """The state."""
        ...

    def restore(self, tensors: Mapping[str, Tensor], state: Json) -> None:
        """Go on from it."""
        ...


def capture(owner: Any) -> tuple[dict[str, Tensor], dict[str, Json]]:
    """All fields of a dataclass as tensors and JSON, under ``field/...`` names.

    Parameters
    ----------
    owner : dataclass instance
        Its fields are None, JSON values, tensors, generators, networks, optimisers, ``Stateful`` objects, or plain
        objects whose attributes are such.

    Raises
    ------
    TypeError
        For a field of another kind.
    """
    tensors: dict[str, Tensor] = {}
    state: dict[str, Json] = {}
    for field in fields(owner):
        found, rest = _capture_value(getattr(owner, field.name), field.name)
        tensors.update({f"{field.name}{SEPARATOR}{name}" if name else field.name: t for name, t in found.items()})
        state[field.name] = rest
    return tensors, state


def restore(owner: Any, tensors: Mapping[str, Tensor], state: Mapping[str, Json]) -> None:
    """Put what ``capture`` returned back into a dataclass whose fields have the same kinds and shapes.

    Raises
    ------
    CheckpointError
        If something is missing or has another shape.
    """
    for field in fields(owner):
        prefix = field.name + SEPARATOR
        own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        if field.name in tensors:
            own[""] = tensors[field.name]
        try:
            value = _restore_value(getattr(owner, field.name), own, state[field.name])
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:160]
            raise CheckpointError(f"the checkpoint does not fit at {field.name} ({reason})") from error
        setattr(owner, field.name, value)


def _capture_value(value: Any, name: str) -> tuple[dict[str, Tensor], Json]:
    """One value as tensors and JSON."""
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
    tensors: dict[str, Tensor] = {}
    state: dict[str, Json] = {}
    for key, part in parts.items():
        found, rest = _capture_value(part, f"{name}.{key}")
        tensors.update({f"{key}{SEPARATOR}{inner}" if inner else key: t for inner, t in found.items()})
        state[key] = rest
    return tensors, state


def _restore_value(value: Any, tensors: Mapping[str, Tensor], state: Json) -> Any:
    """Put one value's state back; returns what the field now holds."""
    if isinstance(value, Tensor):
        if tensors[""].shape != value.shape:
            raise ValueError(f"its shape is {tuple(tensors[''].shape)}, not {tuple(value.shape)}")
        with torch.no_grad():
            value.copy_(tensors[""])
    elif isinstance(value, Generator):
        value.set_state(tensors[""].cpu())
    elif isinstance(value, nn.Module):
        value.load_state_dict(dict(tensors))
    elif isinstance(value, torch.optim.Optimizer):
        _load_optimiser(value, tensors, state)
    elif isinstance(value, Stateful):
        value.restore(tensors, state)
    elif value is None or isinstance(value, bool | int | float | str | dict | list):
        if tensors:
            raise ValueError("it holds tensors, which have no place here")
        return copy.deepcopy(state)
    else:
        for key, part in _learned_parts(value):
            prefix = key + SEPARATOR
            own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
            if key in tensors:
                own[""] = tensors[key]
            restored = _restore_value(part, own, state[key])
            if restored is not part:
                setattr(value, key, restored)
    return value


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
    """Put an optimiser's moments and learning rates back."""
    whole = optimiser.state_dict()
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, key = name.split(".", 1)
        moments.setdefault(int(number), {})[key] = tensor.clone()  # the optimiser goes on to write in it
    whole["state"] = moments
    optimiser.load_state_dict(whole)
    for group, learning_rate in zip(optimiser.param_groups, state, strict=True):
        group["lr"] = learning_rate
