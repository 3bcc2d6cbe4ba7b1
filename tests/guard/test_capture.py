"""Nothing that a training depends on can be forgotten in a save, and what is restored is restored exactly."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from finflow.errors import CheckpointError
from finflow.guard.checkpoint_folder import capture, restore
from finflow.tensor_file import read_tensors, write_tensors


class Counter:
    """Puts its own state into tensors and JSON."""

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.past = torch.full((2,), float(count))

    def capture(self) -> tuple[dict[str, Tensor], Any]:
        return {"past": self.past.clone()}, {"count": self.count}

    def restore(self, tensors: Mapping[str, Tensor], state: Any) -> None:
        self.past = tensors["past"].clone()
        self.count = state["count"]


class Learner:
    """A plain object with everything a learner has."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.name = "not saved: it is no state"
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.temperature = torch.randn((), generator=generator).requires_grad_()
        self.optimiser = torch.optim.Adam(self.net.parameters(), lr=0.01, fused=True)
        self.slow = torch.optim.SGD([self.temperature], lr=0.1, momentum=0.9)
        self.noise = torch.Generator().manual_seed(seed)
        self.counter = Counter(seed)
        self.updates = 0

    def update(self) -> Tensor:
        """One step of learning."""
        batch = torch.randn(8, 3, generator=self.noise)
        loss = (self.net(batch) * self.temperature).square().mean()
        for optimiser in (self.optimiser, self.slow):
            optimiser.zero_grad()
        loss.backward()
        for optimiser in (self.optimiser, self.slow):
            optimiser.step()
        self.optimiser.param_groups[0]["lr"] *= 0.9
        self.updates += 1
        self.counter.count += 1
        self.counter.past += loss.detach()
        return loss.detach()


@dataclass
class State:
    """Every kind of field."""

    learner: Learner
    noise: Generator
    window: Tensor
    counter: Counter
    phase: str = "offline"
    update: int = 0
    best: float | None = None
    done: bool = False
    scores: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=lambda: {"random": {}})
    later: Counter | None = None


def make(seed: int) -> State:
    return State(Learner(seed), torch.Generator().manual_seed(seed), torch.full((3,), float(seed)), Counter(seed))


def advanced(state: State, updates: int = 3) -> State:
    for _ in range(updates):
        state.window = state.window + state.learner.update()
        state.update += 1
        state.best = float(state.window[0])
        state.scores.append(state.best)
        state.facts["random"]["last"] = float(torch.rand((), generator=state.noise))
    state.phase = "online"
    state.done = True
    return state


def everything(state: Any) -> tuple[dict[str, list[int]], Any]:
    """The state down to its bits."""
    tensors, rest = capture(state)
    return {name: t.reshape(-1).view(torch.uint8).tolist() for name, t in tensors.items()}, copy.deepcopy(rest)


def test_a_training_goes_on_exactly_where_it_stopped(tmp_path: Path) -> None:
    """Through a file, into a state that began elsewhere: 3 updates, save, load, 3 updates are 6 updates."""
    stopped, other = advanced(make(0)), make(1)
    write_tensors(tmp_path / "f", *capture(stopped))
    restore(other, *read_tensors(tmp_path / "f"))
    assert everything(other) == everything(stopped)
    advanced(stopped)
    advanced(other)
    assert everything(other) == everything(stopped)
    assert other.learner.updates == 6


def test_what_is_restored_is_not_bound_to_what_it_was_restored_from() -> None:
    """A rollback restores the same snapshot twice: learning in between must not write in it."""
    state = advanced(make(0))
    tensors, rest = capture(state)
    bits = {name: tensor.reshape(-1).view(torch.uint8).clone() for name, tensor in tensors.items()}
    facts = copy.deepcopy(rest)
    expected = everything(state)
    for _ in range(2):
        advanced(state)
        restore(state, tensors, rest)
        advanced(state)
        assert all(torch.equal(bits[name], tensor.reshape(-1).view(torch.uint8)) for name, tensor in tensors.items())
        assert rest == facts
        restore(state, tensors, rest)
        assert everything(state) == expected


@pytest.mark.parametrize("value", [np.zeros(3), (1, 2), Path("x"), lambda: None], ids=lambda one: type(one).__name__)
def test_a_field_of_an_unknown_kind_is_an_error_that_names_it(value: Any) -> None:
    owner = make_dataclass("Unknown", [("update", int), ("strange", Any)])(0, value)
    with pytest.raises(TypeError, match="strange is of the type"):
        capture(owner)


def test_fields_do_not_run_into_each_other() -> None:
    owner = make_dataclass("Alike", [("net", Any), ("net2", Any), ("ne", Any)])
    one = owner(nn.Linear(2, 2), torch.ones(2), Counter(3))
    other = owner(nn.Linear(2, 2), torch.zeros(2), Counter(4))
    restore(other, *capture(one))
    assert everything(one) == everything(other)


def test_optimisers_that_have_not_stepped_are_restored_too() -> None:
    state = advanced(make(0))
    restore(state, *capture(make(0)))
    assert everything(state) == everything(make(0))


Change = Callable[[dict[str, Any], dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors, _: tensors.pop("window"), "window"),
        (lambda tensors, _: tensors.pop("noise"), "noise"),
        (lambda tensors, _: tensors.pop("counter/past"), "counter"),
        (lambda tensors, _: tensors.pop("learner/net/0.weight"), "learner"),
        (lambda tensors, _: tensors.pop("learner/temperature"), "learner"),
        (lambda tensors, _: tensors.update({"window": torch.ones(1)}), r"window \(its shape is \(1,\), not"),
        (lambda tensors, _: tensors.update({"learner/net/0.weight": torch.ones(1)}), r"its shape is \(1,\), not"),
        (lambda tensors, _: tensors.update({"learner/temperature": torch.ones(1)}), r"its shape is \(1,\), not"),
        (lambda _, rest: rest.pop("best"), "best"),
        (lambda _, rest: rest["learner"].update(optimiser=[0.1, 0.1]), "learner"),
        (lambda tensors, _: tensors.update({"later/past": torch.ones(2)}), "later"),
    ],
)
def test_what_is_missing_or_of_another_shape_or_kind_is_named(change: Change, said: str) -> None:
    tensors, rest = capture(advanced(make(0)))
    change(tensors, rest)
    with pytest.raises(CheckpointError, match=said) as raised:
        restore(make(1), tensors, rest)
    assert "\n" not in str(raised.value)


def test_a_field_that_begins_afresh_is_left_as_it_is() -> None:
    owner = make_dataclass("Counted", [("update", int), ("best", float)])
    one, other = owner(3, 0.5), owner(7, 0.1)
    restore(other, *capture(one), begin_afresh=["best"])
    assert (other.update, other.best) == (3, 0.1)
