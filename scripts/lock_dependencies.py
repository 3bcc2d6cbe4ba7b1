"""Write requirements.lock: every package of constraints.txt that the tests need, with the hashes of all its files.

    make lock

torch is left out, and with it the CUDA libraries that it brings on Linux: its builds for processors come from another
index than the one of everything else, under the same version, with files and hashes of their own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK, CONSTRAINTS = ROOT / "requirements.lock", ROOT / "constraints.txt"
LEFT_OUT = "torch"
OLDEST = "3.11"  # Python
HEAD = """\
# Hashes of all files of the packages that the tests need, for every system and Python from 3.11 on: by `make lock`.
# pip install --require-hashes --no-deps -r requirements.lock; torch alone comes after it, by constraints.txt.
"""


def plain_name(name: str) -> str:
    """Name of a package as indices compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(text: str) -> dict[str, str]:
    """Package -> version of the lines ``name==version`` of a text, whatever follows them."""
    found = re.findall(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", text, re.MULTILINE)
    return {plain_name(name): version for name, version in found}


def kept(compiled: str, constraints: str) -> str:
    """Entries of a compiled list that the constraints pin, but for torch."""
    known = pinned(constraints)
    entries = re.split(r"^(?=[A-Za-z0-9])", compiled, flags=re.MULTILINE)
    names = [plain_name(entry.partition("==")[0]) for entry in entries]
    return "".join(
        entry for name, entry in zip(names, entries, strict=True) if name in known and name != plain_name(LEFT_OUT)
    )


def main(arguments: Sequence[str]) -> None:
    """Compile the list with the uv that is named, and write the lock."""
    (uv,) = arguments
    command = [uv, "pip", "compile", "pyproject.toml", "--extra", "dev", "-c", CONSTRAINTS.name, "--universal"]
    options = ["--generate-hashes", "--no-header", "--no-annotate", "--python-version", OLDEST, "--quiet"]
    made = subprocess.run([*command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    LOCK.write_text(HEAD + kept(made.stdout, CONSTRAINTS.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
