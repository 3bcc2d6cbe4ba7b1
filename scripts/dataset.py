"""Show a saved offline dataset, export it to Minari, or import it from there.

Examples:
  python scripts/dataset.py show data/offline/dataset.npz
  python scripts/dataset.py export data/offline/dataset.npz --minari finflow/behaviour-v0
  python scripts/dataset.py import data/offline/dataset.npz --minari finflow/behaviour-v0
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from finflow.cli.configuration import resolve
from finflow.cli.exit_status import run_safely
from finflow.cli.options import Parser, add_configuration_options, one_of


def main(arguments: Sequence[str]) -> None:
    """Read the options, and do what is asked."""
    parser = Parser(__doc__ or "", usage="%(prog)s show|export|import FILE [options]")
    parser.add_argument(
        "task", nargs="?", type=one_of("show", "export", "import"), metavar="TASK", help="show, export or import"
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the dataset, as npz")
    parser.add_argument("--minari", metavar="NAME", help="name of the Minari dataset, such as finflow/behaviour-v0")
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="where Minari's datasets lie; its own place when left out (MINARI_DATASETS_PATH, ~/.minari/datasets)",
    )
    parser.add_argument(
        "--observations",
        type=one_of("full", "portfolio"),
        metavar="KIND",
        help="export: full (default) has all that the environment shows, so that any tool can learn from it; portfolio "
        "is a fraction of the size",
    )
    add_configuration_options(parser)
    given = parser.parse(arguments)
    if given.task is None or given.file is None:
        parser.error("say what to do, show, export or import, and name the FILE of the dataset")
    if (given.minari is None) != (given.task == "show"):
        parser.error("export and import need --minari NAME" if given.task != "show" else "show takes no --minari")
    if given.observations and given.task != "export":
        parser.error("--observations belongs to export")
    if given.file.suffix != ".npz":
        parser.error(f"{given.file} must end in .npz")
    config = resolve(given)
    from finflow.training.data import offline_data as datasets

    if given.task == "show":
        lines = datasets.describe_dataset(given.file)
    elif given.task == "export":
        lines = datasets.export_dataset(
            config, given.file, given.minari, given.folder, given.observations != "portfolio"
        )
    else:
        lines = datasets.import_dataset(given.file, given.minari, given.folder)
    print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(run_safely(main))
