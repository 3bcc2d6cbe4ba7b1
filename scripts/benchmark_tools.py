"""Shared by the benchmarks: clocks, the machine's bounds, counts of operations, and peers as processes."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from finflow.cores import share_cores
from finflow.errors import ConfigError

SECONDS = 1.0  # of each contender in each round, of processor time
WARM_UP = 10
GEMM_SIZE = 1024
CACHED = 2**20  # bytes that a copy in the caches moves
PEERS = Path(__file__).parent / "peers"


class Contender(NamedTuple):
    """Something whose updates are timed.

    Attributes
    ----------
    rate : callable
        Updates a second, now.
    flops : float
        Floating-point operations in the matrix products of one update.
    """

    rate: Callable[[], float]
    flops: float


class Peer:
    """A process that measures somebody else's learner when asked, and waits meanwhile.

    Parameters
    ----------
    python : str
        An interpreter that has what the script imports.
    option : str
        The option that named it.
    script : str
        In ``peers``.
    arguments : sequence
    """

    def __init__(self, python: str, option: str, script: str, arguments: Sequence[object]) -> None:
        self.option, self.script = option, script
        command = [python, str(PEERS / script), *[str(argument) for argument in arguments]]
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise ConfigError(f"{option} {python} cannot be run: {error.strerror}") from None
        first = self._answer()
        self.version = str(first["version"])
        self.contender = Contender(self._rate, float(first["flops"]))

    def close(self) -> None:
        """End the process."""
        _open(self.process.stdin).close()
        self.process.wait()

    def _rate(self) -> float:
        pipe = _open(self.process.stdin)
        pipe.write(f"{SECONDS}\n")
        pipe.flush()
        return float(self._answer()["rate"])

    def _answer(self) -> dict[str, Any]:
        for line in _open(self.process.stdout):
            if line.startswith("{"):  # gym prints a farewell of its own
                answer: dict[str, Any] = json.loads(line)
                return answer
        reason = _open(self.process.stderr).read().strip().splitlines()
        raise ConfigError(f"{self.option}: {self.script} ended: {reason[-1] if reason else 'no reason given'}")


def _open(pipe: IO[str] | None) -> IO[str]:
    """A pipe that was asked for."""
    if pipe is None:
        raise TypeError("the process has no such pipe")
    return pipe


class OperationCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts calls, floating-point operations and bytes of torch's operations.

    Torch's own counter follows modules as well, by hooks that `torch.autograd.grad` does not bear.

    Attributes
    ----------
    calls, operations, moved : dict
        Operation -> its number; of matrix products alone; bytes of its arguments and results.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[str, int] = defaultdict(int)
        self.operations: dict[str, float] = defaultdict(float)
        self.moved: dict[str, float] = defaultdict(float)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one operation, and do it."""
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        self.calls[name] += 1
        if not func.is_view:
            self.moved[name] += sum(_bytes(one) for one in (*args, result))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.operations[name] += count(*args, **(kwargs or {}), out_val=result)
        return result


def _bytes(value: Any) -> float:
    """Bytes of a tensor, or of those in a list."""
    if isinstance(value, torch.Tensor):
        return float(value.numel() * value.element_size())
    return sum(_bytes(one) for one in value) if isinstance(value, list | tuple) else 0.0


def use_one_thread() -> None:
    """Compute on one thread, without the second core that finflow's learners use where one is free."""
    torch.set_num_threads(1)
    share_cores()


class Seconds(NamedTuple):
    """Duration by the clock, and of this process's time."""

    clock: float
    processor: float


def seconds_of(work: Callable[[], object]) -> Seconds:
    """Duration of a piece of work."""
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return Seconds(time.perf_counter() - clock, time.process_time() - processor)


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Median of some rounds, and the least and largest of them."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def random_walks(rng: np.random.Generator, bars: int, assets: int) -> NDArray[np.float64]:
    """Closes of geometric random walks, (bars, assets)."""
    return 50.0 * np.exp(np.cumsum(rng.normal(2e-4, 0.015, size=(bars, assets)), axis=0))


def contender(step: Callable[[int], object]) -> Contender:
    """One of our own, warmed up."""
    with OperationCount() as count:
        step(0)
    for number in range(WARM_UP):
        step(number)
    return Contender(lambda: rate_of(step), sum(count.operations.values()))


def rate_of(step: Callable[[int], object]) -> float:
    """Steps a second of processor time."""
    steps, began = 0, time.process_time()
    while time.process_time() - began < SECONDS:
        step(steps)
        steps += 1
    return steps / (time.process_time() - began)


def gemm_rate() -> float:
    """Floating-point operations a second of a large float32 matrix product."""
    first, second = torch.randn(2, GEMM_SIZE, GEMM_SIZE)
    result = torch.empty(GEMM_SIZE, GEMM_SIZE)
    torch.mm(first, second, out=result)
    began, count = time.process_time(), 0
    while time.process_time() - began < SECONDS / 4:
        torch.mm(first, second, out=result)
        count += 1
    return 2.0 * GEMM_SIZE**3 * count / (time.process_time() - began)


def cached_copy_rate() -> float:
    """Bytes read and written a second by a copy in the caches."""
    source = torch.ones(CACHED // 4)
    target = torch.empty_like(source)
    rates = []
    for _ in range(50):
        began = time.perf_counter()
        target.copy_(source)
        rates.append(2.0 * CACHED / (time.perf_counter() - began))
    return sorted(rates)[len(rates) // 2]


def processor_name() -> str:
    """Name of the processor, as the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        if names:
            return names[0]
    return platform.processor() or platform.machine()


def measure(contenders: Mapping[str, Contender], rounds: int) -> tuple[dict[str, list[float]], list[float]]:
    """Updates a second of each in each round, and the machine's bound in it."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    gemm = []
    for _ in range(rounds):
        gemm.append(gemm_rate())
        for name, one in contenders.items():
            rates[name].append(one.rate())
    return rates, gemm


def print_rates(contenders: Mapping[str, Contender], rates: dict[str, list[float]], gemm: list[float]) -> None:
    """One line for each, with the bound of its arithmetic and the share of it reached."""
    machine = statistics.median(gemm)
    print(f"matrix products of {GEMM_SIZE}: {spread([rate / 1e9 for rate in gemm], '.0f')} GFLOP/s")
    print(f"{'':26}{'updates/s':>10}{'least':>8}{'most':>8}{'GFLOP':>8}{'bound/s':>9}{'share':>7}")
    for name, one in contenders.items():
        found = rates[name]
        # each round against the bound of the same round: the machine's speed drifts
        share = statistics.median(rate * one.flops / speed for rate, speed in zip(found, gemm, strict=True))
        line = f"{name:26}{statistics.median(found):10.1f}{min(found):8.1f}{max(found):8.1f}{one.flops / 1e9:8.2f}"
        print(line + f"{machine / one.flops:9.1f}{share:7.0%}")


def print_ratio(rates: dict[str, list[float]], ours: str, peer: str, goal: float) -> None:
    """Print the ratio of our updates to the peer's, round by round."""
    ratios = [mine / other for mine, other in zip(rates[ours], rates[peer], strict=True)]
    print(f"{ours} / {peer}: {spread(ratios)}, wanted at least {goal:g}")
