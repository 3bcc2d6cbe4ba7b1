"""Shared by the benchmarks: clocks, and peers as processes."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from finflow.cores import available_cores, share_cores
from finflow.errors import ConfigError

SECONDS = 1.0  # of each contender in each round, of processor time
WARM_UP = 10
Rate = Callable[[], float]
"""Measures updates a second, now."""
PEERS = Path(__file__).parent / "peers"


class Peer:
    """A process that measures somebody else's learner when asked, and waits meanwhile."""

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
        self.version, self.operations = str(first["version"]), float(first["operations"])

    def close(self) -> None:
        """End the process."""
        _open(self.process.stdin).close()
        self.process.wait()

    def rate(self) -> float:
        """Updates a second, now."""
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


def use_one_thread() -> None:
    """Compute on one thread, without the second core that finflow's learners use where one is free."""
    torch.set_num_threads(1)
    share_cores()


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Median of some rounds, and the least and largest of them."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def contender(step: Callable[[int], object]) -> Rate:
    """Rate of one of our own, warmed up."""
    for number in range(WARM_UP):
        step(number)
    return lambda: rate_of(step)


def rate_of(step: Callable[[int], object]) -> float:
    """Steps a second of processor time."""
    steps, began = 0, time.process_time()
    while time.process_time() - began < SECONDS:
        step(steps)
        steps += 1
    return steps / (time.process_time() - began)


def operations_of(step: Callable[[], object]) -> float:
    """Floating-point operations of a step's products of matrices, forward and backward."""
    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops())


def product_rate() -> float:
    """Floating-point operations a second of products of matrices, (512, 512) in float32."""
    matrix = torch.randn(512, 512)
    return 2.0 * 512**3 * rate_of(lambda _: matrix @ matrix)


def processor_name() -> str:
    """Name of the processor, as the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        if names:
            return names[0]
    return platform.processor() or platform.machine()


def machine() -> str:
    """Processor, cores and version of torch that figures are of."""
    return f"{processor_name()}, {available_cores()} cores; torch {torch.__version__}"


def measure(contenders: Mapping[str, Rate], rounds: int) -> dict[str, list[float]]:
    """Updates a second of each in each round."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, rate in contenders.items():
            rates[name].append(rate())
    return rates


def print_rates(rates: Mapping[str, Sequence[float]], unit: str) -> None:
    """Print the median, the least and the largest rate of each."""
    print(f"{'':34}{unit:>14}{'least':>14}{'most':>14}")
    for name, found in rates.items():
        print(f"{name:34}{statistics.median(found):14,.1f}{min(found):14,.1f}{max(found):14,.1f}")


def print_ratio(rates: dict[str, list[float]], ours: str, peer: str, goal: float) -> None:
    """Print the ratio of our updates to the peer's, round by round."""
    ratios = [mine / other for mine, other in zip(rates[ours], rates[peer], strict=True)]
    print(f"{ours} / {peer}: {spread(ratios)}, wanted at least {goal:g}")
