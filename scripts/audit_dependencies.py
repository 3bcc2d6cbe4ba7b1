"""Look for known vulnerabilities of the versions in constraints.txt, with pip-audit: ``make audit``.

Exit status 0: every package was looked up, and none has a vulnerability that is not in `IGNORED`; 1: some have; 2: the
service of advisories did not tell of all packages, which is said in one line. ``--where-reachable`` makes of the last
a remark with status 0.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"
PATIENCE = 300.0  # seconds
IGNORED: Mapping[str, str] = {}
"""Advisory -> why it does not concern finflow, or what is waited for."""


def main(arguments: Sequence[str]) -> int:
    """Ask pip-audit, by the path that is given first, and judge its answer."""
    command = [arguments[0], "-r", str(CONSTRAINTS), "--no-deps", "--disable-pip", "-f", "json", "--timeout", "15"]
    try:
        ended = subprocess.run(
            [*command, "--progress-spinner", "off"], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        lines, status = judged(json.loads(ended.stdout)["dependencies"])
    except OSError:
        lines, status = ["not audited: pip-audit is not installed, because no package index was reached"], 2
    except subprocess.TimeoutExpired:
        lines, status = [f"not audited: the service of advisories gave no answer within {PATIENCE:.0f} s"], 2
    except (ValueError, LookupError, TypeError):
        said = (ended.stderr.strip().splitlines() or ["no answer"])[-1][:150]
        lines, status = [f"not audited: pip-audit could not ask the service of advisories ({said})"], 2
    print("\n".join(lines))
    return 0 if status == 2 and "--where-reachable" in arguments else status


def judged(dependencies: Sequence[Mapping[str, Any]]) -> tuple[list[str], int]:
    """Lines to print, and the exit status, of pip-audit's list of dependencies."""
    skipped = [one["name"] for one in dependencies if "skip_reason" in one]
    found = [
        (one["name"], one["version"], advisory["id"], ", ".join(advisory["fix_versions"]) or "no version yet")
        for one in dependencies
        for advisory in one.get("vulns", ())
        if advisory["id"] not in IGNORED and not IGNORED.keys() & set(advisory.get("aliases", ()))
    ]
    lines = [f"{name} {version}: {advisory}, fixed in {fixed}" for name, version, advisory, fixed in found]
    audited = len(dependencies) - len(skipped)
    if skipped or not dependencies:
        few = ", ".join(skipped[:3]) + (" and others" if len(skipped) > 3 else "")
        lines.append(
            f"not audited: the service of advisories told nothing of {len(skipped)} of {len(dependencies)} packages "
            f"({few}); run make audit where it is reachable"
        )
    else:
        lines.append(f"{audited} packages audited, {len(found)} known vulnerabilities")
    return lines, 1 if found else 2 if skipped or not dependencies else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
