"""Evidence about files made to mislead: checkpoints changed at random, in bytes, in headers and under a right hash.

Each is opened as a resume opens it. What may come of it is one CheckpointError, or, where the hash is right and what
was changed decides nothing, a training that can go on. An audit hook of the interpreter watches that nothing is
executed, imported, started, connected to, or opened but the file itself.
"""

from __future__ import annotations

import copy
import json
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator

from finflow.config import Config
from finflow.errors import CheckpointError
from finflow.guard.checkpoint_folder import LATEST, MODELS, PRETRAINED, CheckpointFolder
from finflow.guard.state_capture import restore
from finflow.tensor_file import KEY, file_content, read_tensors
from finflow.training.checkpoints.checkpoint_reader import policy_of, read_checkpoint, stored_config
from finflow.training.data.training_data import TrainingData
from finflow.training.phases.training_state import start_offline, start_online
from scripts.evidence.durability import small_config
from scripts.evidence.fuzz_mutations import JUNK, NAMES, Mutation, flipped, overwritten, truncated
from scripts.evidence.results import train_both

DTYPES = ("F64", "I8", "BF16", "F8_E4M3", "F8_E8M0", "F4", "C64", "U64", "BOOL", "X", "", "OBJECT")
WATCHED: tuple[str, ...] = (
    *("exec", "compile", "import", "code.__new__", "pickle.", "marshal.", "ctypes.", "socket.connect", "subprocess."),
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.remove", "os.rename", "os.mkdir", "shutil."),
)


def header_size(rng: Generator, content: bytes) -> bytes:
    """Another size of the header: huge, or near to the true one."""
    true = int.from_bytes(content[:8], "little")
    near = true + int(rng.integers(-64, 64))
    size = (near, int(2 ** rng.uniform(0, 63)), 2**64 - 1)[int(rng.integers(3))]
    return max(size, 0).to_bytes(8, "little") + content[8:]


def header_entries(rng: Generator, content: bytes) -> bytes:
    """Huge shapes, offsets that overlap, run backwards or beyond the end, other types, names that are paths."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    names = [name for name in header if name != "__metadata__"]
    name = names[int(rng.integers(len(names)))]
    entry, kind = header[name], int(rng.integers(6))
    huge = int(2 ** rng.uniform(8, 70))
    if kind == 0:
        entry["shape"] = [[huge], [huge, huge], [0, huge], [-1], [huge] * 40][int(rng.integers(5))]
    elif kind == 1:
        entry["data_offsets"] = [[0, huge], [huge, huge], [huge, 0], [-8, 8]][int(rng.integers(4))]
    elif kind == 2:
        entry["dtype"] = DTYPES[int(rng.integers(len(DTYPES)))]
    elif kind == 3:
        header[NAMES[int(rng.integers(len(NAMES)))]] = header.pop(name)
    elif kind == 4:
        field = ("shape", "data_offsets", "dtype")[int(rng.integers(3))]
        entry[field] = copy.deepcopy(JUNK[int(rng.integers(len(JUNK)))])
    else:
        header["__metadata__"] = [None, {}, {KEY: "{}"}, {KEY: "[" * 50_000}, {"other": "1"}][int(rng.integers(5))]
    text = json.dumps(header).encode()
    if rng.random() < 0.05:
        text = b'{"a":' + b"[" * 100_000
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def facts_replaced(rng: Generator, content: bytes, path: Path) -> bytes:
    """A fact, or a whole branch of them, replaced by something else or taken away, under a hash that is right."""
    tensors, state = _opened(path, content)
    for _ in range(int(rng.integers(1, 4))):
        place: Any = state
        while isinstance(place, dict | list) and len(place):
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = keys[int(rng.integers(len(keys)))]
            if not isinstance(place[key], dict | list) or not len(place[key]) or rng.random() < 0.15:
                if rng.random() < 0.2:
                    del place[key]
                else:
                    place[key] = copy.deepcopy(JUNK[int(rng.integers(len(JUNK)))])
                break
            place = place[key]
    if rng.random() < 0.1:
        state["config"] = str(state.get("config")).replace("\n", ("\n- ", "\n  x: ", ": ")[int(rng.integers(3))], 5)
    return file_content(tensors, state)


def tensors_replaced(rng: Generator, content: bytes, path: Path) -> bytes:
    """Tensors renamed, of other shapes, types or numbers, taken away or added, under a hash that is right."""
    tensors, state = _opened(path, content)
    names = sorted(tensors)
    for _ in range(int(rng.integers(1, 4))):
        name = names[int(rng.integers(len(names)))]
        tensor = tensors.get(name)
        if tensor is None:
            continue
        kind = int(rng.integers(6))
        if kind == 0:
            tensors[NAMES[int(rng.integers(len(NAMES)))].replace("\0", "_")] = tensors.pop(name)
        elif kind == 1:
            tensors[name] = torch.zeros([int(size) for size in rng.integers(0, 5, int(rng.integers(0, 5)))])
        elif kind == 2:
            tensors[name] = tensor.to((torch.float64, torch.int8, torch.bool, torch.bfloat16)[int(rng.integers(4))])
        elif kind == 3:
            absurd = (float("nan"), float("inf"), -1e30, -1.0, 255.0)[int(rng.integers(5))]
            tensors[name] = torch.full_like(tensor.double(), absurd).to(tensor.dtype)
        elif kind == 4:
            del tensors[name]
        else:
            tensors[f"{name}/more"] = tensor.clone()
    return file_content(tensors, state)


KINDS: tuple[str, ...] = (
    *("bits flipped", "truncated", "overwritten", "header size", "header entries"),
    *("facts, hash right", "tensors, hash right"),
)


def _opened(path: Path, content: bytes) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    path.write_bytes(content)
    return read_tensors(path)


def fuzz(folder: Path, cases: int) -> dict[str, Any]:
    """Train a little, and open so many changed copies of checkpoints of both phases."""
    return Fuzzer.trained(folder).run(cases)


class Fuzzer:
    """Opens changed checkpoints as a resume does.

    Parameters
    ----------
    folder : Path
        Of the files that are made.
    originals : sequence of bytes
        Whole checkpoints of one configuration.
    config : Config
    training_data : TrainingData
        Of that configuration.
    transitions : int
        Of its behaviour data.
    """

    def __init__(
        self, folder: Path, originals: list[bytes], config: Config, training_data: TrainingData, transitions: int
    ) -> None:
        self.path = folder / "checkpoint.safetensors"
        self.base = folder / "original.safetensors"
        self.originals = originals
        device = torch.device("cpu")
        self.states = {"offline": start_offline(config, training_data, device, transitions)}
        self.states["online"] = start_offline(config, training_data, device, transitions)
        start_online(self.states["online"], config, training_data, device)
        self.events: list[str] = []
        self.watching = False
        sys.addaudithook(self._heard)

    @classmethod
    def trained(cls, folder: Path) -> Fuzzer:
        """Train a little, for checkpoints of both phases."""
        config = small_config(folder)
        trainer = train_both(config)
        models = CheckpointFolder(trainer.run_folder / MODELS)
        originals = [models.path(name).read_bytes() for name in (PRETRAINED, LATEST)]
        return cls(folder, originals, config, trainer.training_data, len(trainer.collect_offline_data()))

    def mutated(self, rng: Generator, kind: str) -> bytes:
        """A changed file."""
        content = self.originals[int(rng.integers(len(self.originals)))]
        plain: dict[str, Mutation] = dict(
            zip(KINDS, (flipped, truncated, overwritten, header_size, header_entries), strict=False)
        )
        if kind in plain:
            return plain[kind](rng, content)
        change = facts_replaced if kind == KINDS[5] else tensors_replaced
        return change(rng, content, self.base)

    def opened(self, content: bytes) -> str:
        """Outcome of opening a file: ``refused``, ``taken``, or the error."""
        self.path.write_bytes(content)
        self.events.clear()
        self.watching = True
        try:
            checkpoint = read_checkpoint(self.path)
            stored_config(checkpoint)
            policy_of(checkpoint, torch.device("cpu"))
            restore(self.states[checkpoint.counters["phase"]], checkpoint.tensors, checkpoint.facts["training"])
            said = "taken"
        except CheckpointError as error:
            said = "refused" if "\n" not in str(error) and len(str(error)) < 1000 else "refused in many words"
        except Exception as error:
            said = f"{type(error).__name__}: {error}"[:200]
        finally:
            self.watching = False
        return f"executed: {self.events[0]}" if self.events else said

    def run(self, cases: int, seed: int = 0) -> dict[str, Any]:
        """Open so many changed files of every kind in turn.

        Returns
        -------
        dict
            ``kinds``, the outcomes of each; ``wrong``, those that are neither ``refused`` nor ``taken``, with their
            number; ``memory``, MB that the process grew by at most; ``seconds``.
        """
        for content in self.originals:  # and what is imported when it is first needed
            if (said := self.opened(content)) != "taken" and not said.startswith("executed: import"):
                raise RuntimeError(f"an unchanged checkpoint is not taken: {said}")
            self.opened(content[:-1])
        kinds: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
        wrong: list[str] = []
        began, before = time.monotonic(), _peak(afresh=True)
        for number in range(cases):
            rng = np.random.default_rng([seed, number])
            kind = KINDS[number % len(KINDS)]
            content = self.mutated(rng, kind)
            said = self.opened(content)
            if said == "taken" and number % len(KINDS) < 5:
                said = "harmless" if _equal(self.path, self.originals, self.base) else "altered, yet taken"
            kinds[kind][said if said in ("refused", "taken", "harmless") else "wrong"] += 1
            if said not in ("refused", "taken", "harmless"):
                wrong.append(f"case {number}, {kind}: {said}")
        return {
            "cases": cases,
            "kinds": {kind: dict(counts) for kind, counts in kinds.items()},
            "wrong": wrong,
            "memory": round((_peak() - before) / 1024),
            "seconds": round(time.monotonic() - began, 1),
        }

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        if event == "open":
            path, mode = str(arguments[0]), str(arguments[1])
            if path != str(self.path) and "finflow" not in path and not path.endswith((".py", ".pyc")):
                self.events.append(f"open {path} {mode}"[:200])
        elif event.startswith(WATCHED):
            self.events.append(f"{event} {arguments[:1]!r}"[:200])


def _peak(afresh: bool = False) -> int:
    """Most memory that this process had, in kB; where the system lets it, from now on."""
    try:
        if afresh:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _equal(path: Path, originals: list[bytes], base: Path) -> bool:
    """True where an accepted file holds what one of the originals does: spaces that pad a header may change."""
    tensors, state = read_tensors(path)
    for content in originals:
        others, facts = _opened(base, content)
        if facts == state and tensors.keys() == others.keys():
            return all(
                torch.equal(tensor.reshape(-1).view(torch.uint8), others[name].reshape(-1).view(torch.uint8))
                for name, tensor in tensors.items()
            )
    return False
