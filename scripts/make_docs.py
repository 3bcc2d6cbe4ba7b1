"""Write docs/reference/configuration.md from the schema, which alone says what a key is.

Example: python scripts/make_docs.py
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from finflow.cli.exit_status import run_safely
from finflow.cli.options import Parser, as_yaml
from finflow.config import Config, describe_schema
from finflow.files import write_atomically

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "configuration.md"

#: The page that each section is about, where its keys are explained at length.
PAGES = {
    **dict.fromkeys(("market", "features"), "market.md"),
    **{"env": "environment.md", "objectives": "reward.md", "train": "learner.md", "offline": "offline.md"},
    **{"online": "on-policy-markets.md", "out_of_fold": "learner.md", "bcell": "learner.md", "acting": "agent.md"},
    **{"guard": "guard.md", "evaluation": "report.md", "tune": "../guide/tuning.md", "preferences": "preferences.md"},
    **{"trading": "../guide/decide.md", "output": "../guide/running.md"},
}

HEAD = """\
# Configuration

<!-- Made by scripts/make_docs.py from the sections in finflow/config: change it there. -->

Every key of finflow. A value is taken from the first of these that names the key:

1. the command line, `--set bcell.cql_alpha=10` or a short option such as `--seed 1`; what is given last counts;
2. an environment variable, `FINFLOW_BCELL__CQL_ALPHA=10` (two underscores between section and key);
3. the file named by `--config`, which needs only the keys that differ; of several files the last one that has the key;
4. the defaults below, which are also those of `configs/default.yaml`.

A run that is resumed, and an agent that is evaluated, have the configuration in their checkpoint in place of the
defaults. A resumed run refuses a change to any key that decides results; an evaluation takes changes to `market`,
`env`, `acting`, `evaluation`, `trading`, `output`, `train.device` and `train.threads`.

An unknown key, a wrong type or an impossible value is answered with one line on the error stream, which names the key,
the value, where it was given and what is allowed, and with exit status 2. YAML is read as version 1.2 has it: `1e-4` is
a number, and `ON` and `NO` are words.

`configs/` holds the defaults (`default.yaml`), the reduction that `--mode demo` uses (`demo.yaml`), and presets for a
volatile and a calm market (`volatile.yaml`, `calm.yaml`), for weekly and monthly bars
(`weekly.yaml`, `monthly.yaml`), and for learning from a reward model (`preference.yaml`).
"""


def configuration_page() -> str:
    """The page as Markdown."""
    lines, section = [HEAD.rstrip()], ""
    for key, allowed, default, description in describe_schema():
        head, _, name = key.partition(".")
        if head != section:
            section = head
            about = Config.model_fields[head].description
            lines += ["", f"## {head}: {about}", "", f"More in [{PAGES[head].rpartition('/')[2]}]({PAGES[head]}).", ""]
            lines += ["| key | default | what it does | allowed |", "|---|---|---|---|"]
        cells = (f"`{head}.{name}`", f"`{as_yaml(default)}`", description, allowed)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> None:
    """Write the page."""
    Parser(__doc__ or "").parse(arguments)
    write_atomically(PAGE, configuration_page())
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    sys.exit(run_safely(main))
