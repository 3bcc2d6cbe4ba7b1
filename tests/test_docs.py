"""The documentation: every link and every name of a file or of a Python object that it gives must exist."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from finflow.config import load_config
from finflow.config.loading import values_by_key

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "examples" / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "data").glob("*.md")]
)
CODE = re.compile(r"^(`{3,}).*?^\1", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
TAG = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=\"([^\"]+)\"")
PATH = re.compile(r"(?<![\w/.{<])((?:finflow|scripts|tests|configs|docs)/[\w./-]*\.(?:py|md|yaml|json|svg|png))")
DOTTED = re.compile(r"(?<![\w./])(finflow(?:\.\w+)+)(?![\w/*]|\.\w)")
NOT_CODE = re.compile(r"\.(?:py|yaml|md|git)$")  # a file's name, not a Python object's


def broken_links(page: Path) -> Iterator[str]:
    """The links of a Markdown page whose file or heading does not exist, as they are written."""
    text = CODE.sub("", page.read_text("utf-8"))
    for target in [*LINK.findall(text), *TAG.findall(text)]:
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            yield target


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and Python-Markdown both make them, and those set by hand."""
    text = CODE.sub("", page.read_text("utf-8"))
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    bare = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    made = {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip()) for heading in bare}
    return made | set(re.findall(r'<a id="([\w-]+)"></a>', text))


def unknown_names(text: str) -> Iterator[str]:
    """The paths and dotted names of finflow in a text that name nothing."""
    for path in PATH.findall(text):
        if not (ROOT / path).exists():
            yield path
    for name in DOTTED.findall(text):
        if not NOT_CODE.search(name) and not _is_python(name):
            yield name


def unknown_files(text: str) -> Iterator[str]:
    """Python files in backticks, named whole or by the end of their path, that are nowhere in the project."""
    files = [
        path.as_posix()
        for folder in ("finflow", "scripts", "tests", "examples")
        for path in (ROOT / folder).rglob("*.py")
    ]
    for name in re.findall(r"`([\w/]+\.py)\b", text):
        if name not in {"main.py", "mine.py"} and not any(file.endswith("/" + name) for file in files):
            yield name


def _is_python(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_and_names_exist(page: Path) -> None:
    assert not list(broken_links(page))
    assert not list(unknown_names(page.read_text("utf-8")))
    assert not list(unknown_files(page.read_text("utf-8")))


def test_paths_of_pages_in_code_and_messages_exist() -> None:
    sources = [path for folder in ("finflow", "scripts", "configs") for path in (ROOT / folder).rglob("*.*")]
    named = {
        (path.name, page)
        for path in sources
        if path.suffix in {".py", ".yaml", ".j2"}
        for page in re.findall(r"docs/[\w/-]+\.(?:md|json)", path.read_text("utf-8"))
    }
    assert named
    assert not {(where, page) for where, page in named if not (ROOT / page).exists()}


def test_a_broken_link_and_a_wrong_name_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Some heading, with `code`\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#some-heading-with-code) [c](https://example.org) `finflow/errors.py` "
        "`finflow.load_config`\n\n```\n[d](missing.md)\n```\n"
    )
    assert not list(broken_links(page))
    assert not list(unknown_names(page.read_text()))
    page.write_text(
        '[a](missing.md) [b](other.md#another) ![c](missing.svg) <img src="missing.png">\n'
        "`finflow/no_such.py`, `finflow.market.no_such` and `finflow.load_no_config`\n"
    )
    assert list(broken_links(page)) == ["missing.md", "other.md#another", "missing.svg", "missing.png"]
    assert list(unknown_files("`errors.py`, `market/panel.py` and `no_such.py`")) == ["no_such.py"]
    assert list(unknown_names(page.read_text())) == [
        "finflow/no_such.py",
        "finflow.market.no_such",
        "finflow.load_no_config",
    ]


def unknown_definitions(text: str) -> Iterator[str]:
    """Names in the table rows of a page, a file in the second column and names in the third, that the file lacks."""
    for path, names in re.findall(r"^\| \d+ \| `(finflow/[\w/]+\.py)` \| ([^|]+) \|", text, re.MULTILINE):
        code = (ROOT / path).read_text("utf-8") if (ROOT / path).exists() else ""
        for name in re.findall(r"`(\w+)`", names):
            if not re.search(rf"^\s*(?:def|class) {name}\b", code, re.MULTILINE):
                yield f"{path}: {name}"


def test_the_walks_through_the_code_name_what_is_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert not list(unknown_definitions(text))
    row = "| 1 | `finflow/errors.py` | `FinflowError`, `NoSuchError` | happens |"
    assert list(unknown_definitions(row)) == ["finflow/errors.py: NoSuchError"]


def test_the_architecture_names_every_folder_of_the_package() -> None:
    rooms = re.findall(r"^\| `(\w+)` \| (.*?) \|", (ROOT / "docs" / "architecture.md").read_text("utf-8"), re.MULTILINE)
    written = {room for room, _ in rooms} | {
        f"{room}/{part}" for room, all_ in rooms for part in re.findall(r"`(\w+)`", all_)
    }
    package = ROOT / "finflow"
    there = {str(path.parent.relative_to(package)) for path in package.rglob("__init__.py")} - {"."}
    assert written == there
    drawing = (ROOT / "docs" / "architecture.svg").read_text("utf-8")
    drawn = set(re.findall(r'<text class="(?:name|small)"[^>]*>(\w+)</text>', drawing))
    assert {part for name in there for part in name.split("/")} <= drawn


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8")))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in PAGES if ROOT / "docs" in page.parents}


def test_every_page_is_in_the_index() -> None:
    docs = ROOT / "docs"
    listed = {name.partition("#")[0] for name in LINK.findall((docs / "index.md").read_text("utf-8"))}
    assert {str(page.relative_to(docs)) for page in PAGES if docs in page.parents} - {"index.md"} <= listed


@pytest.mark.parametrize("page", ["README.md", "docs/guide/quickstart.md"])
def test_every_key_that_a_first_page_sets_changes_the_default(page: str) -> None:
    default, text = values_by_key(load_config(None, {}, {})), (ROOT / page).read_text("utf-8")
    given = re.findall(r"--set \"?([\w.]+)=([^\s\"`]+)", text)
    assert given
    layers = {"market.source": "csv", "market.path": "other.csv"}  # a source without a path is refused
    assert not [
        key for key, value in given if values_by_key(load_config(None, {**layers, key: value}, {}))[key] == default[key]
    ]
