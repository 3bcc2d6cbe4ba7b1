"""Starting soon: what `import finflow`, help and a training load before they do anything."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from finflow.compiled_function import compiled_function

ROOT = Path(__file__).parents[1]


def processor_time_of(*arguments: str) -> float:
    """Seconds of processor time of a Python process from its start to its end; a busy machine is no fault."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


@pytest.fixture(scope="module")
def import_of_torch() -> float:
    """Processor time of `import torch`, with which starts are compared: about two seconds of a slow processor."""
    return processor_time_of("-c", "import torch")


@pytest.mark.parametrize("arguments", [("-c", "import finflow"), ("main.py", "--help")], ids=["import", "help"])
def test_starting_takes_a_small_part_of_importing_torch(arguments: tuple[str, ...], import_of_torch: float) -> None:
    """Within 0.7 s where `import torch` takes 2: a third; an eighth and less was measured."""
    assert processor_time_of(*arguments) < import_of_torch / 3.0


def test_a_training_loads_neither_compiler_nor_optimisers_nor_pictures_before_it_needs_them() -> None:
    """They take from 0.1 s to more than a second of every process that trains, of a pool's and a cluster's too."""
    script = (
        "import sys\n"
        "import torch\n"
        "from finflow import FinFlowTrainer\n"
        "from finflow.agent.gradient_steps import gradient_step, make_optimiser\n"
        "from finflow.agent.networks.layers import empty_linear\n"
        "from finflow.config import Config\n"
        "from finflow.training.data.training_data import prepare\n"
        "assert prepare(Config()).panel.n_assets == 20\n"
        "layer = empty_linear(2, 1)\n"
        "optimiser = make_optimiser(layer, 0.1)\n"
        "gradient_step(layer(torch.ones(2)).sum(), optimiser, 1.0)\n"
        "optimiser.load_state_dict(optimiser.state_dict())\n"
        "slow = {'torch._dynamo', 'sympy', 'skfolio', 'sklearn', 'cvxpy', 'matplotlib', 'arch', 'ray', 'optuna'}\n"
        "slow |= {'quantstats', 'scipy.stats', 'scipy.optimize', 'tensorboard'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


def test_code_that_cannot_be_kept_on_disk_is_compiled_all_the_same() -> None:
    """As where the package and the home folder may only be read; numba alone would refuse to import."""
    names: dict[str, Callable[[float], float]] = {}
    exec(compile("def twice(x): return 2.0 * x", "<a file that is not there>", "exec"), names)
    twice = compiled_function(error_model="numpy")(names["twice"])
    assert twice(3.0) == 6.0
    assert twice.signatures
