"""Small runs whose results are kept, to show that a rewriting of finflow changes no bit of them.

``python tests/golden/runs.py --write [PART ...]`` makes the kept results anew, all of them or some parts; ``--confirm``
notes that the present code gives all of them to the bit, so that pages of evidence can tell it from other code.

The runs go through what stays in place while modules move: the command line, ``finflow.FinFlowTrainer``, keys of the
configuration, and the files of a run folder. No module below ``finflow`` is imported, but for the hash of the code.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import html
import io
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pandas as pd
import torch
import yaml
from numpy.typing import NDArray
from safetensors import safe_open

ROOT = Path(__file__).parents[2]
EXPECTED = Path(__file__).with_name("expected")
CODES = Path(__file__).with_name("codes.txt")  # digest of what is kept, then hashes of code that gave it to the bit

#: Keys whose values depend on the code's hash, versions, the machine, the time, or paths, wherever they are met.
#: ``log`` is how long the files of a run are, in bytes; ``judged`` a hash of a checkpoint file with such values in it.
EXCLUDED_KEYS = frozenset(
    {
        *("code", "made_by", "runtime", "versions", "python", "machine", "started", "judged", "sha256", "log"),
        *("config", "config_hash", "configuration", "configuration_sha256", "date", "path", "run"),
    }
)

#: How far floats may lie apart on another processor or with other versions of the libraries. Between AVX-512 and AVX2
#: what is learned differed by 1e-4 of a value after 60 updates, sums by 5e-4 of the norm where a bias has no gradient
#: but rounding, and files that compare with portfolios of iterative solvers by 3e-4; every decision, draw and count was
#: the same.
RELATIVE = 1e-3
ABSOLUTE = 1e-6

#: Files with rows for holdings of the size of rounding, which come and go with the processor: compared only bit by bit.
WITH_DUST = frozenset({"holdings.parquet"})

DIGITS = 32  # of a SHA-256 that are kept

Artefacts = dict[str, Any]
"""By file: a summary of its arrays by name, or the content of a JSON."""

BARS = 700
CPU_FACTS = ("model name", "cpu family", "model")

BASE: dict[str, Any] = {
    "market.source": "csv",
    "market.train_end": "2011-06-30",
    "market.validation_end": "2011-10-31",
    "env.episode_length": 20,
    "train.threads": 1,
    "train.device": "cpu",
    "train.n_envs": 4,
    "train.updates_per_vector_step": 4,
    "train.offline_episodes": 6,
    "features.filters": "none",
    "features.regimes": False,
    "train.offline_training_epochs": 1,
    "train.offline_batch_size": 16,
    "train.online_episodes": 8,
    "train.online_batch_size": 8,
    "train.warmup_episodes": 4,
    "train.critic_only_updates": 4,
    "train.validation_updates": 9,
    "out_of_fold.blocks": 1,
    "bcell.expansion": 4,
    "bcell.hidden_dim": 8,
    "bcell.n_quantiles": 4,
    "bcell.cql_samples": 1,
    "bcell.memory_capacity": 150,
    "offline.evaluation_updates": 20,
    "evaluation.bootstrap_samples": 100,
    "evaluation.lookback": 60,
    "evaluation.sweeps": False,
}

GUARDED: dict[str, Any] = {
    "train.offline_episodes": 12,
    "train.offline_training_epochs": 2,
    "train.offline_batch_size": 32,
    "train.online_episodes": 12,
    "train.online_batch_size": 16,
    "train.checkpoint_interval": 3,
    "train.checkpoint_updates": 7,
    "train.validation_updates": 11,
    "bcell.hidden_dim": 16,
    "bcell.n_quantiles": 8,
    "bcell.cql_samples": 2,
    "guard.rollback.save_interval": 10,
    "guard.rollback.probation": 10,
    "guard.rollback.recovery": 30,
    "guard.rollback.max_retries": 8,
    "guard.stability.check_interval": 5,
    "guard.stability.quiet": 5,
    "guard.stability.warmup": 10,
    "guard.stability.critic_loss_limit": 0.45,  # so low that there are alarms, and rollbacks
    "guard.stability.deviations": 0.2,
    "guard.stability.hits": 2,
    "guard.stability.reward_outlier": 3.0,
}

REGULARISED: dict[str, Any] = {
    "train.offline_episodes": 24,
    "train.online_episodes": 12,
    "out_of_fold.blocks": 2,
    "out_of_fold.looks": 2,
    "train.observation_noise": 0.05,
    "bcell.dropout": 0.1,
    "bcell.anchor.weight": 0.5,
    "bcell.anchor.final": 0.1,
    "bcell.anchor.updates": 30,
    "bcell.averaging.kind": "ema",
    "bcell.averaging.start": 0.3,
    "bcell.averaging.decay": 0.9,
    "offline.group_size": 1,
    "bcell.risk_measure": "cvar",
    "bcell.cql_mode": "lagrange",
    "bcell.calibration": "returns",
    "bcell.entropy_backup": "relative",
    "bcell.dropped_quantiles": 1,
    "bcell.gradient_checkpointing": True,
}

OFFLINE_METHOD: dict[str, Any] = {
    "train.online_episodes": 6,
    "train.target_entropy_schedule.enabled": True,
    "train.target_entropy_schedule.steps": 10,
    "train.reward_normalization.enabled": True,
    "train.reward_normalization.warmup": 20,
}

SEARCHED: dict[str, Any] = {
    "train.online_episodes": 4,
    "train.critic_only_updates": 2,
    "train.validation_updates": 4,
    "evaluation.protocol.purge": 5,
    "tune.n_trials": 3,
    "tune.startup_trials": 1,
    "tune.folds": 1,
    "tune.seeds": 1,
    "tune.pruner": "none",
    "tune.space": {
        "bcell.actor_lr": {"low": 1e-4, "high": 1e-2, "log": True},
        "bcell.gamma": {"low": 0.9, "high": 0.99},
        "bcell.iql_extraction": {"choices": ["awr", "gradient"]},
    },
}

TRADED: dict[str, Any] = {
    "env.fill": "open",
    "env.max_weight": 0.6,
    "env.no_trade_band": 0.001,
    "env.costs.minimum": 1.0,
    "env.costs.slippage_sqrt_bps": 10.0,
    "env.costs.impact": 0.5,
    "evaluation.tax.enabled": True,
}


class Setting(NamedTuple):
    """What the bits of a result depend on beside the code."""

    capability: str
    processor: str
    versions: dict[str, str]


def setting() -> Setting:
    """That of this process."""
    versions = {"python": platform.python_version()}
    versions |= {module.__name__: module.__version__ for module in (torch, np, pd)}
    return Setting(torch.backends.cpu.get_cpu_capability(), _processor(), versions)


def _processor() -> str:
    """The processor's model; its name alone does not tell generations apart where a virtual machine hides them."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return ", ".join(f"{name} {facts[name]}" for name in CPU_FACTS if name in facts)


# The market, and how a run is made in it.


def write_market(folder: Path, fields: bool = False, bars: int = BARS) -> Path:
    """Prices of four assets, rounded to be the same everywhere: a file, or a folder with opens, volumes and such."""
    rng = np.random.default_rng(3)
    dates = pd.bdate_range("2009-06-01", periods=BARS, name="Date")
    returns = rng.normal(0.0004, 0.01, (BARS, 4)) + rng.normal(0.0, 0.006, (BARS, 1))
    close = np.round(100.0 * np.exp(np.cumsum(returns, axis=0)), 4)
    tables = {"close": close}
    if fields:
        opened = np.round(close * (1.0 + rng.normal(0.0, 0.003, close.shape)), 4)
        spread = rng.uniform(0.0, 0.004, (2, *close.shape))
        tables["open"] = opened
        tables["high"] = np.round(np.maximum(close, opened) * (1.0 + spread[0]), 4)
        tables["low"] = np.round(np.minimum(close, opened) * (1.0 - spread[1]), 4)
        tables["volume"] = np.round(rng.uniform(2e4, 2e5, close.shape))
    place = folder / "prices" if fields else folder
    place.mkdir(exist_ok=True)
    for name, table in tables.items():
        path = place / f"{name if fields else 'prices'}.csv"
        pd.DataFrame(table, dates, list("ABCD"))[:bars].to_csv(path)
    return place if fields else folder / "prices.csv"


def configured(folder: Path, changes: Mapping[str, Any], fields: bool = False) -> dict[str, Any]:
    """Keys of a run whose files all lie in a folder."""
    places = {"market.path": str(write_market(folder, fields)), "market.cache_dir": str(folder / "market")}
    places |= {"output.logs_dir": str(folder / "logs"), "output.offline_dir": str(folder / "offline")}
    return {**BASE, **changes, **places}


def write_configuration(path: Path, keys: Mapping[str, Any]) -> Path:
    """Write dotted keys as the nested YAML that the command line reads."""
    nested: dict[str, Any] = {}
    for key, value in keys.items():
        *sections, name = key.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    path.write_text(yaml.safe_dump(nested), "utf-8")
    return path


def command(folder: Path, keys: Mapping[str, Any], *arguments: str) -> str:
    """Run the command line in this process, and return what it prints."""
    from finflow.cli import main

    path = write_configuration(folder / "run.yaml", keys)
    said, own = io.StringIO(), mock.patch.dict(os.environ, _environment(), clear=True)
    with own, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(["--mode", *arguments, "--config", str(path)])
    if status:
        raise RuntimeError(f"finflow ended with {status}: {said.getvalue()[-3000:]}")
    return said.getvalue()


def _environment() -> dict[str, str]:
    """Environment of a run: no settings from outside, one thread, and room for tables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FINFLOW_")}
    return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def command_alone(folder: Path, keys: Mapping[str, Any], *arguments: str) -> None:
    """Run ``python main.py --mode ...`` in a process of its own, as a user would."""
    path = write_configuration(folder / "run.yaml", keys)
    words = [sys.executable, "main.py", "--mode", *arguments, "--config", str(path)]
    done = subprocess.run(words, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"finflow ended with {done.returncode}: {done.stdout[-1000:]}{done.stderr[-3000:]}")


def only(folder: Path, pattern: str) -> Path:
    """The one file or folder that a pattern names."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise FileNotFoundError(f"{len(found)} of {pattern} in {folder}")
    return found[0]


# Summaries of files.


def plain(content: Any) -> Any:
    """A JSON without what depends on the code's hash, versions, the machine, the time or paths."""
    if isinstance(content, dict):
        return {key: plain(value) for key, value in content.items() if key not in EXCLUDED_KEYS}
    return [plain(value) for value in content] if isinstance(content, list) else content


def summary(values: NDArray[Any]) -> dict[str, Any]:
    """What stands for an array: type, shape, hash, and of numbers their sum and Euclidean norm."""
    values = np.ascontiguousarray(values)
    if values.dtype.kind in "OUST":
        text = [str(value) for value in values.ravel()]
        digest = hashlib.sha256(json.dumps(text).encode()).hexdigest()[:DIGITS]
        return {"dtype": "text", "shape": list(values.shape), "sha256": digest}
    if values.dtype.kind in "mM":
        values = values.astype("datetime64[s]").astype(np.int64)
    head = f"{values.dtype.str} {values.shape} ".encode()
    wide = values.astype(np.float64 if values.dtype.kind == "f" else np.int64).ravel()
    total, norm = wide.sum().item(), float(np.sqrt(np.square(wide.astype(np.float64)).sum()))
    found = {"dtype": values.dtype.name, "shape": list(values.shape)}
    return {**found, "sha256": hashlib.sha256(head + values.tobytes()).hexdigest()[:DIGITS], "sum": total, "norm": norm}


def read_checkpoint(path: Path) -> Artefacts:
    """Tensors and facts of a checkpoint."""
    with safe_open(path, "np") as file:
        tensors = {name: summary(file.get_tensor(name)) for name in sorted(file.keys())}
        state = json.loads(json.loads(file.metadata()["finflow"])["state"])
    return {path.name: tensors, f"{path.name}, facts": plain(state)}


def read_arrays(path: Path, name: str) -> Artefacts:
    """Arrays of an npz file; a ``meta`` array holds a JSON as bytes."""
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file.items())
    meta = arrays.pop("meta", None)
    found: Artefacts = {name: {key: summary(values) for key, values in sorted(arrays.items())}}
    return found if meta is None else {**found, f"{name}, meta": plain(json.loads(bytes(meta)))}


def read_table(path: Path) -> Artefacts:
    """Columns of a CSV or Parquet file."""
    table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    return {path.name: {str(name): summary(table[name].to_numpy()) for name in table}}


def read_json(path: Path) -> Artefacts:
    """Content of a JSON, or of the rows of a JSON Lines file."""
    text = path.read_text("utf-8")
    if path.suffix != ".jsonl":
        return {path.name: plain(json.loads(text))}
    rows = [json.loads(line) for line in text.splitlines()]
    return {path.name: plain([row for row in rows if "return" not in row])}  # rows of episodes came later


THIN = "\N{NARROW NO-BREAK SPACE}"
SET_ANEW = ("overfitting/pbo",)  # numbers that stand before a thin space since they were kept

#: Of a number on a page: where ``metrics.json`` has it, its value in full, and how it reads.
NUMBER = re.compile(r'data-path="([^"]*)" data-value="([^"]*)"[^>]*>([^<]*)')


def read_page(path: Path) -> Artefacts:
    """Numbers of a page: how many, and a hash of all; one by one they are held to ``metrics.json`` by other tests."""
    found = [map(html.unescape, number) for number in NUMBER.findall(path.read_text("utf-8"))]
    numbers = [[key, value, text.replace(THIN, "") if key in SET_ANEW else text] for key, value, text in found]
    return {path.name: {"count": len(numbers), "numbers": summary(np.array(numbers, dtype=np.str_))}}


def read_figures(folder: Path) -> Artefacts:
    """Figures by their bytes."""
    return {
        "figures": {
            path.name: {"dtype": "image", "shape": [], "sha256": hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS]}
            for path in sorted(folder.glob("*.png"))
        }
    }


READERS = {".json": read_json, ".jsonl": read_json, ".html": read_page, ".csv": read_table, ".parquet": read_table}
COMPARED = (
    *("manifest.json", "job.json", "training.json", "dataset.json", "metrics.jsonl", "events.jsonl"),
    *("reports/*.json", "reports/report.html", "reports/*.csv", "reports/*.parquet"),
)


def read_run(run: Path, *checkpoints: str) -> Artefacts:
    """Everything that is compared of a run folder, with the checkpoints named."""
    found: Artefacts = {}
    for path in (path for pattern in COMPARED for path in sorted(run.glob(pattern))):
        found |= READERS[path.suffix](path)
    for name in checkpoints:
        found |= read_checkpoint(run / "models" / f"checkpoint_{name}.safetensors")
    return found | (read_figures(run / "reports") if (run / "reports").is_dir() else {})


def below(folder: str, artefacts: Artefacts) -> Artefacts:
    """The same files under a folder's name."""
    return {f"{folder}/{name}": content for name, content in artefacts.items()}


# The parts.


def guarded(folder: Path) -> Artefacts:
    """One training with the guard, which rolls back, and its held-out evaluation."""
    command_alone(folder, configured(folder, GUARDED), "train")
    found = read_run(only(folder / "logs", "2*"), "pretrained", "best", "latest")
    found |= read_arrays(only(folder / "offline", "dataset-*.npz"), "dataset.npz")
    return found | read_json(folder / "logs" / "readings.jsonl")


def regularised(folder: Path) -> Artefacts:
    """A training with every regulariser on; no report."""
    return train_alone(folder, REGULARISED, "pretrained", "best", "latest")


def offline_methods(folder: Path) -> Artefacts:
    """TD3+BC and behaviour cloning, with a short online phase after each; no reports."""
    found: Artefacts = {}
    for method in ("td3bc", "bc"):
        place = folder / method
        place.mkdir()
        found |= below(method, train_alone(place, {**OFFLINE_METHOD, "offline.method": method}, "pretrained", "latest"))
    return found


def train_alone(folder: Path, changes: Mapping[str, Any], *checkpoints: str) -> Artefacts:
    """Both phases of a training in this process, without a report; what is compared of it."""
    from finflow import FinFlowTrainer, load_config

    trainer = FinFlowTrainer(load_config(None, configured(folder, changes), environ={}))
    found: Artefacts = {"returned": {"offline": trainer.train_iql(), "online": trainer.finetune()}}
    found |= read_run(trainer.run_folder, *checkpoints)
    return found | read_arrays(only(folder / "offline", "dataset-*.npz"), "dataset.npz")


def seeds(folder: Path) -> Artefacts:
    """Two seeds, and their ensemble's report; prices with volumes, filled at the open."""
    keys = configured(folder, {"env.fill": "open", "evaluation.lookback": 120}, fields=True)
    command(folder, keys, "train", "--seeds", "2")
    job = only(folder / "logs", "2*")
    found = read_run(job)
    for seed in ("seed-0", "seed-1"):
        found |= below(seed, read_json(job / seed / "training.json"))
        found |= below(seed, read_run(only(job / seed, "2*"), "best"))
    return found


def search(folder: Path) -> Artefacts:
    """A search of three trials, by one worker."""
    command(folder, configured(folder, SEARCHED), "tune")
    study = only(folder / "logs" / "studies", "2*")
    return {**read_run(study), **read_arrays(study / "reports" / "returns.npz", "returns.npz")}


def walk_forward(folder: Path) -> Artefacts:
    """A walk-forward of two folds."""
    changes = {"evaluation.protocol.folds": 2, "evaluation.protocol.first_share": 0.75, "evaluation.protocol.purge": 5}
    keys = configured(folder, {**changes, "train.online_episodes": 4})
    command(folder, keys, "evaluate", "--protocol", "walk-forward")
    return read_run(only(folder / "logs" / "protocols", "*"))


def backtest(folder: Path) -> Artefacts:
    """A backtest of a named strategy, with sweeps, trades, taxes and capacity."""
    keys = configured(folder, TRADED, fields=True)
    command(folder, keys, "backtest", "--strategy", "risk-parity")
    found = read_run(only(folder / "logs", "backtest_*"))
    return found | read_json(folder / "logs" / "readings.jsonl")


def audit(folder: Path) -> Artefacts:
    """An audit; it writes no file, so its table is compared as printed."""
    ends = {"market.train_end": "2011-03-31", "market.validation_end": "2011-04-29", "env.episode_length": 5}
    keys = configured(folder, {**ends, "market.tickers": ["A", "B"], "evaluation.rebalance_every": 150})
    write_market(folder, bars=520)  # as few as the features leave room for
    lines = command(folder, keys, "audit", "--strategy", "equal-weight").splitlines()
    return {"printed": [[_number(word) for word in line.split()] for line in lines if line]}


def _number(word: str) -> int | str:
    digits = word.replace(",", "")
    return int(digits) if digits.isascii() and digits.isdigit() else word


PARTS: dict[str, Callable[[Path], Artefacts]] = {
    part.__name__: part
    for part in (guarded, regularised, offline_methods, seeds, search, walk_forward, backtest, audit)
}


def make(part: str) -> Artefacts:
    """Run a part in a folder of its own, which is removed."""
    with tempfile.TemporaryDirectory(prefix="finflow-golden-") as folder:
        return PARTS[part](Path(folder))


# Kept results, and how they are compared.


class Kept(NamedTuple):
    """Results of a part, and where they were made."""

    made_on: Setting
    artefacts: Artefacts


def write(part: str, artefacts: Artefacts) -> Path:
    """Keep the results of a part; a line for each file."""
    EXPECTED.mkdir(exist_ok=True)
    head = json.dumps(setting()._asdict(), sort_keys=True)
    lines = [
        f"{json.dumps(name)}: {json.dumps(content, sort_keys=True, separators=(',', ':'))}"
        for name, content in sorted(artefacts.items())
    ]
    path = EXPECTED / f"{part}.json"
    path.write_text(f'{{"made_on": {head},\n"artefacts": {{\n' + ",\n".join(lines) + "\n}}\n", "utf-8")
    return path


def kept(part: str) -> Kept:
    """The kept results of a part."""
    content = json.loads((EXPECTED / f"{part}.json").read_text("utf-8"))
    return Kept(Setting(**content["made_on"]), content["artefacts"])


def is_summary(content: Any) -> bool:
    """Whether a value stands for an array."""
    return isinstance(content, dict) and content.keys() >= {"dtype", "shape", "sha256"}


def leaves(content: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a JSON with its name: keys and places joined by ``/``; an array's summary is one value."""
    inside = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else None
    if not content or inside is None or is_summary(content):
        yield name, content
        return
    for key, value in inside:
        yield from leaves(value, f"{name}/{key}" if name else str(key))


def differences(expected: Artefacts, found: Artefacts, exact: bool) -> list[str]:
    """Lines that name each value that differs, with both values; files first, then names in order."""
    lines = [f"{name}: the file is missing" for name in sorted(expected.keys() - found.keys())]
    lines += [f"{name}: a file that was not there before" for name in sorted(found.keys() - expected.keys())]
    for file in sorted(expected.keys() & found.keys()):
        if not exact and Path(file).name in WITH_DUST:
            continue
        before, now = (dict(leaves(artefacts[file])) for artefacts in (expected, found))
        for name in sorted(before.keys() | now.keys()):
            if name not in now:
                lines.append(f"{file}: {name} is missing; it was {before[name]!r}")
            elif name not in before:
                lines.append(f"{file}: {name} was not there before; it is {now[name]!r}")
            elif not same(before[name], now[name], exact):
                lines.append(f"{file}: {name} was {before[name]!r}, is {now[name]!r}")
    return lines


def same(before: Any, now: Any, exact: bool, relative: float = RELATIVE) -> bool:
    """Whether two values are the same, bit for bit or but for rounding."""
    if isinstance(before, str) and isinstance(now, str) and " " in before and " " in now:
        return True  # sentences may be worded anew; numbers, names and keys may not
    if exact or type(before) is not type(now):
        return json.dumps(before, sort_keys=True) == json.dumps(now, sort_keys=True)
    if is_summary(before) and is_summary(now):
        return _same_array(before, now, relative)
    if isinstance(before, float):
        return _near(before, now, relative * max(abs(before), abs(now)) + ABSOLUTE)
    if isinstance(before, str):
        return _without_numbers(before) == _without_numbers(now)
    return bool(before == now)


def _same_array(before: Mapping[str, Any], now: Mapping[str, Any], relative: float) -> bool:
    """Type and shape, and of floats norm and sum; the sum's error is that of the norm times the root of the size."""
    if (before["dtype"], before["shape"]) != (now["dtype"], now["shape"]):
        return False
    if before["dtype"] in ("text", "image"):  # numbers as printed, and pixels
        return True
    if not before["dtype"].startswith("float"):
        return bool(before["sha256"] == now["sha256"])
    root = float(np.sqrt(np.prod(before["shape"], dtype=np.float64)))
    allowed = relative * max(before["norm"], now["norm"]) + ABSOLUTE
    return _near(before["norm"], now["norm"], allowed) and _near(before["sum"], now["sum"], allowed * root)


def _near(before: float, now: float, allowed: float) -> bool:
    """Whether two numbers lie near each other; NaN is near NaN alone, an infinity near itself alone."""
    if not (np.isfinite(before) and np.isfinite(now)):
        return repr(before) == repr(now)
    return abs(before - now) <= allowed


def _without_numbers(text: str) -> str:
    return re.sub(r"[-+−]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?", "#", text)


def main() -> None:
    """Make the kept results anew, or confirm them; ``pytest tests/golden`` says what differs from them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all when left out: {', '.join(PARTS)}")
    doing = parser.add_mutually_exclusive_group(required=True)
    doing.add_argument("--write", action="store_true", help="keep the results")
    doing.add_argument("--confirm", action="store_true", help="note that this code gives all of them, to the bit")
    given = parser.parse_args()
    if unknown := set(given.parts) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if given.confirm:
        confirm()
        return
    for part in given.parts or PARTS:
        print(f"wrote {write(part, make(part))}")
    CODES.write_text(f"{kept_digest()}\n", "ascii")


def kept_digest() -> str:
    """SHA-256 of the kept results."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(EXPECTED.glob("*.json")))).hexdigest()


def confirm() -> None:
    """Note the hash of the present code beside those that gave the kept results to the bit."""
    from finflow.provenance import code_hash

    for part in PARTS:
        expected = kept(part)
        if expected.made_on != setting():
            sys.exit(f"{part} was kept on {expected.made_on}: bits can be compared there alone")
        if lines := differences(expected.artefacts, make(part), exact=True):
            sys.exit("\n".join([f"{part}: {len(lines)} differences, the first of them:", *lines[:10]]))
    digest, *codes = CODES.read_text("ascii").split()
    known = codes if digest == kept_digest() else []
    CODES.write_text("\n".join([kept_digest(), *sorted({*known, code_hash()}), ""]), "ascii")
    print(f"noted {code_hash()} in {CODES}")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # finflow is that of this checkout, wherever this is called from
    main()
