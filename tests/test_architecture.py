"""The order of the rooms, circles of imports, and what no file may do: unpickle, or touch global random state.

The checks read source text, so that each is also shown to catch a planted violation.
"""

from __future__ import annotations

import ast
import functools
import io
import itertools
import re
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from finflow.errors import command

PACKAGE = Path(__file__).parents[1] / "finflow"
SOURCES = sorted(PACKAGE.rglob("*.py"))

#: Top first; a room imports only rooms below it.
ROOMS = (
    *("cli", "experiments", "trading", "training", "preferences", "guard", "agent", "offline", "evaluation", "env"),
    *("strategies", "market", "ledger", "config", "files", "errors"),
)
#: Modules at the top of the package that belong to a room of another name.
ROOM_OF = {
    "__main__": "cli",
    "arrays": "files",
    "tensor_file": "files",
    "imports": "files",
    "json_text": "files",
    "line_file": "files",
    "compiled_function": "files",
    "cores": "files",
    "provenance": "files",
    "worker_pool": "files",
}
#: Below in the order, but not known to these rooms: tensors and states reach them as arguments.
UNKNOWN_TO = {"agent": {"guard", "market"}, "guard": {"agent", "market"}}

UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "jsonpickle"}
UNPICKLING = {
    *("torch.load", "torch.jit.load", "torch.package.PackageImporter", "joblib.load", "pandas.read_pickle"),
    *("yaml.unsafe_load", "yaml.full_load", "yaml.UnsafeLoader", "yaml.FullLoader", "yaml.Loader"),
}
NUMPY_GENERATORS = {
    *("Generator", "default_rng", "SeedSequence", "BitGenerator", "PCG64", "PCG64DXSM", "Philox", "SFC64", "MT19937")
}
TORCH_SEEDING = {
    *("torch.manual_seed", "torch.seed", "torch.set_rng_state", "torch.random", "torch.default_generator"),
    *("torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "torch.mps.manual_seed"),
}
TORCH_DRAWS = {
    *("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson"),
    *("rand_like", "randn_like", "randint_like"),
}
TENSOR_DRAWS = {
    *("normal_", "uniform_", "exponential_", "random_", "bernoulli_", "cauchy_", "geometric_", "log_normal_"),
    *("xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "orthogonal_", "trunc_normal_"),
}
#: What few files need: imported inside functions, so that every process of finflow starts soon.
SLOW_TO_LOAD = {
    *("arch", "captum", "matplotlib", "quantstats", "skfolio", "sklearn", "statsmodels"),
    *("scipy.optimize", "scipy.signal", "scipy.stats"),  # ``import scipy`` alone loads each at its first use
}
DROPOUTS = {"torch.nn.Dropout", "torch.nn.functional.dropout", "torch.dropout"}


@functools.cache
def parsed(source: str) -> ast.Module:
    """The syntax tree of a file, which every check reads and none changes."""
    return ast.parse(source)


def module_of(path: Path) -> str:
    """The dotted name of a file of the package."""
    parts = list(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str | None:
    """The room of a dotted name below finflow; None for the package itself and for other packages."""
    package, _, rest = module.partition(".")
    name = rest.partition(".")[0]
    return ROOM_OF.get(name, name) if package == "finflow" and name else None


def imported(tree: ast.AST, module: str = "", is_package: bool = False) -> Iterator[str]:
    """Every dotted name that a module imports, inside functions and by name at run time too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".") if is_package else module.split(".")[:-1]
                kept = parents[: len(parents) - node.level + 1]
                base = ".".join([*kept, base] if base else kept)
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.args[0].value


def order_violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """Imports of rooms that the module's room may not know."""
    room = room_of(module)
    if room is None:  # finflow/__init__.py: the front door names what users import
        return []
    if room not in ROOMS:
        return [f"{module} belongs to no room: add {room} to the order in {Path(__file__).name}"]
    found = []
    for name in imported(parsed(source), module, is_package):
        other = room_of(name)
        if name.partition(".")[0] in ("scripts", "tests"):
            found.append(f"{module} imports {name}: the package stands alone")
        if name.partition(".")[0] != "finflow" or other == room:
            continue
        if other not in ROOMS:
            found.append(f"{module} imports {name}, which is the front door or no room")
        elif ROOMS.index(other) < ROOMS.index(room):
            found.append(f"{module} imports {name}: {other} lies above {room}")
        elif other in UNKNOWN_TO.get(room, ()):
            found.append(f"{module} imports {name}: {room} does not know {other}")
    return found


def import_graph(sources: Mapping[str, str], packages: frozenset[str] = frozenset()) -> dict[str, set[str]]:
    """By module, the modules of the package that it imports, inside functions and for types alone too.

    A package that Python runs on the way to a module below it does not count as imported by that alone.
    """
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        found = set()
        for name in imported(parsed(source), module, module in packages):
            while name and name not in sources:
                name = name.rpartition(".")[0]
            found.add(name)
        graph[module] = found - {"", module}
    return graph


def circle(graph: Mapping[str, set[str]]) -> set[str]:
    """Modules that import one another in a circle; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return set(error.args[1])
    return set()


def _aliases(tree: ast.AST) -> dict[str, str]:
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    """The full name behind an expression such as np.random.seed, or an empty string."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, "")
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, aliases)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _references(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, full name) of whatever is imported or used from other packages."""
    aliases = _aliases(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((node.lineno, name) for name in imported(node))
        elif isinstance(node, ast.Attribute | ast.Name) and (name := _dotted(node, aliases)):
            yield node.lineno, name


def unpickling(source: str) -> list[str]:
    """Places where stored bytes could run code."""
    tree = parsed(source)
    found = [
        f"line {line}: {name}"
        for line, name in _references(tree)
        if name.partition(".")[0] in UNPICKLERS or name in UNPICKLING
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            allowed = not (isinstance(node.value, ast.Constant) and node.value.value is False)
            found += [f"line {node.value.lineno}: allow_pickle"] if allowed else []
    return found


def global_randomness(source: str) -> list[str]:
    """Places where random state is shared by the whole process: seeding it, or drawing from it."""
    tree = parsed(source)
    aliases = _aliases(tree)
    found = []
    for line, name in _references(tree):
        first, _, last = name.rpartition(".")
        seeds = any(name == banned or name.startswith(banned + ".") for banned in TORCH_SEEDING)
        legacy = first == "numpy.random" and last not in NUMPY_GENERATORS
        if name.partition(".")[0] == "random" or legacy or seeds or name in DROPOUTS:
            found.append(f"line {line}: {name}")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        given = {keyword.arg for keyword in node.keywords}
        name = _dotted(node.func, aliases)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else name.rpartition(".")[2]
        draws = (name.startswith("torch.") and method in TORCH_DRAWS) or method in TENSOR_DRAWS
        if draws and "generator" not in given:
            found.append(f"line {node.lineno}: {name or method} without generator=")
        if method == "rvs" and "random_state" not in given:
            found.append(f"line {node.lineno}: rvs without random_state=")
    return found


def broken(check: Callable[..., list[str]], *given: Callable[[Path], object]) -> dict[str, list[str]]:
    """What a check finds in files of the package, by file; ``given`` make its other arguments."""
    found = {module_of(path): check(path.read_text("utf-8"), *(one(path) for one in given)) for path in SOURCES}
    return {module: lines for module, lines in found.items() if lines}


def test_rooms_import_only_rooms_below_them() -> None:
    assert {room_of(module_of(path)) for path in SOURCES} >= {"training", "market", "errors"}  # they were read
    assert broken(order_violations, module_of, lambda path: path.name == "__init__.py") == {}


def test_nothing_is_ever_unpickled() -> None:
    assert broken(unpickling) == {}


def test_no_random_state_is_global() -> None:
    assert broken(global_randomness) == {}


def interrogative_docstrings(source: str) -> list[str]:
    """First lines of docstrings that ask, as "What ...", where a noun phrase or an imperative is wanted."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = (ast.get_docstring(node) or "" for node in ast.walk(parsed(source)) if isinstance(node, kinds))
    return [text.splitlines()[0] for text in docstrings if text.startswith(("What ", "How ", "Whether ", "Where"))]


def test_docstrings_begin_with_a_noun_phrase_or_an_imperative() -> None:
    scripts = (PACKAGE.parent / "scripts").rglob("*.py")
    found = {str(path): interrogative_docstrings(path.read_text("utf-8")) for path in [*SOURCES, *scripts]}
    assert {path: lines for path, lines in found.items() if lines} == {}
    assert interrogative_docstrings('def f():\n    """What it is."""') == ["What it is."]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("finflow.market.panel", "import finflow.env"),
        ("finflow.market.panel", "from ..env import decision"),
        ("finflow.market.panel", "from .. import env"),
        ("finflow.market.panel", "def f():\n    from finflow.training import trainer"),
        ("finflow.market.panel", "import importlib\nimportlib.import_module('finflow.agent.networks.policy')"),
        ("finflow.market.panel", "from finflow import FinFlowTrainer"),
        ("finflow.agent.networks.policy", "from finflow.market.panel import MarketPanel"),
        ("finflow.guard.rollback", "from finflow.agent import policy"),
        ("finflow.evaluation.report.report", "from finflow.agent.networks.policy import Policy"),
        ("finflow.agent.batch", "from tests.agent.box_task import BoxPolicy"),
        ("finflow.attic.box", ""),
    ],
)
def test_a_planted_import_is_caught(module: str, source: str) -> None:
    assert order_violations(source, module)


def folder_of(module: str, packages: frozenset[str]) -> str:
    """The folder that a module lies in; a file at the top of the package stands for itself."""
    folder = module if module in packages else module.rpartition(".")[0]
    return module if folder == "finflow" else folder


def test_neither_modules_nor_folders_import_one_another() -> None:
    packages = frozenset(module_of(path) for path in SOURCES if path.name == "__init__.py")
    graph = import_graph({module_of(path): path.read_text("utf-8") for path in SOURCES}, packages)
    assert sum(len(names) for names in graph.values()) > 500  # imports were found at all
    assert circle(graph) == set()
    folders: dict[str, set[str]] = {}
    for module in graph.keys() - {"finflow"}:
        own = folder_of(module, packages)
        folders.setdefault(own, set()).update({folder_of(name, packages) for name in graph[module]} - {own})
    assert circle(folders) == set()
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == {"a", "b", "c"}


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.load('x')",
        "import torch as t\nload = t.load",
        "from torch import load",
        "def f():\n    from pickle import loads",
        "import numpy as np\nnp.load('x', allow_pickle=flag)",
    ],
)
def test_planted_unpickling_is_caught(source: str) -> None:
    assert unpickling(source)


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\nnp.random.seed(0)",
        "from numpy.random import randn",
        "import random",
        "import torch\ntorch.manual_seed(0)",
        "import torch\ntorch.randn(3)",
        "import torch\nx = torch.empty(3).normal_()",
        "from torch import nn\nnn.init.xavier_uniform_(w)",
        "from torch import nn\nnn.Dropout(0.1)",
        "import torch.nn.functional as F\nF.dropout(x)",
        "from scipy.stats import norm\nnorm.rvs(3)",
    ],
)
def test_planted_global_randomness_is_caught(source: str) -> None:
    assert global_randomness(source)


LONGEST_FILE, LARGEST_CLASS, LARGEST_FOLDER = 350, 200, 15


def test_files_classes_and_folders_stay_small() -> None:
    """A file is one idea, and a folder shows its parts at a glance."""
    for path in SOURCES:
        source = path.read_text("utf-8")
        assert len(source.splitlines()) <= LONGEST_FILE, path
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.ClassDef):
                assert (node.end_lineno or 0) - node.lineno < LARGEST_CLASS, f"{path}: {node.name}"
    for folder in {path.parent for path in SOURCES}:
        assert len(list(folder.glob("*.py"))) <= LARGEST_FOLDER, folder
    names = [path.name for path in SOURCES if path.name != "__init__.py"]
    assert sorted(names) == sorted(set(names))


def loaded_at_start(source: str) -> list[str]:
    """Imports, outside functions, of packages that are slow to load."""
    statements = [node for node in parsed(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [name for node in statements for name in imported(node)]
    return [name for name in names if any(f"{name}.".startswith(f"{slow}.") for slow in SLOW_TO_LOAD)]


def test_no_file_loads_at_its_import_what_only_a_function_of_it_needs() -> None:
    planted = "import scipy\nfrom scipy import stats\ndef f():\n    import arch"
    assert loaded_at_start(planted) == ["scipy.stats"]
    assert broken(loaded_at_start) == {}


_JOINING = "is|are|has|was|were|and|or|of|in|to|not|from|with|for|at|by|as|than"


def missing_blanks(source: str) -> list[str]:
    """Places where two pieces of a text run together: implicitly joined literals, and values beside a joining word."""
    lines, found = source.splitlines(), []
    skipped = (tokenize.NL, tokenize.COMMENT)
    tokens = [one for one in tokenize.generate_tokens(io.StringIO(source).readline) if one.type not in skipped]
    begins, ends = ({tokenize.STRING, getattr(tokenize, name, -1)} for name in ("FSTRING_START", "FSTRING_END"))
    for one, other in itertools.pairwise(tokens):
        if one.type in ends and other.type in begins:
            before = lines[one.end[0] - 1][: one.end[1]].rstrip("\"'")
            after = re.sub(r"^[A-Za-z]*[\"']+", "", lines[other.start[0] - 1][other.start[1] :])
            if re.search(r"(?<!\\)[\w})\]`,;:.%]$", before) and re.match(r"[A-Za-z{(]", after):
                found.append(f"line {other.start[0]}: {before[-20:]}|{after[:20]}")
    for node in ast.walk(parsed(source)):
        for one, other in itertools.pairwise(node.values) if isinstance(node, ast.JoinedStr) else ():
            text = other if isinstance(one, ast.FormattedValue) else one
            word = rf"({_JOINING})\b" if text is other else rf"\b({_JOINING})$"
            if isinstance(text, ast.Constant) and (re.match if text is other else re.search)(word, str(text.value)):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_no_message_lacks_a_blank_between_its_pieces() -> None:
    joined = ("('it is' 'no price')", "(f'of {a}'\n 'is no price')", "('no price;'\n f'{a}')")
    for planted in ("f'{date}is not a date'", "f'it is one of{names}'", *joined):
        assert missing_blanks(planted), planted
    assert broken(missing_blanks) == {}


def test_a_message_names_the_command_as_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    for called, name in (
        ("/bin/finflow", "finflow"),
        ("main.py", "python main.py"),
        ("scripts/tune.py", "python main.py"),
    ):
        monkeypatch.setattr(sys, "argv", [called])
        assert command("tune", "--resume", Path("a b")) == f"{name} --mode tune --resume 'a b'"
    texts = (node for path in SOURCES for node in ast.walk(parsed(path.read_text("utf-8"))))
    named = [text for one in texts if isinstance(one, ast.Constant) and "python main.py --" in (text := str(one.value))]
    assert [text for text in named if not text.startswith("`python main.py --mode ...`:")] == []
