"""Show a saved offline dataset, export it to Minari, or import it from there.

Examples:
  python scripts/dataset.py show data/offline/dataset.npz
  python scripts/dataset.py export data/offline/dataset.npz --minari finflow/behaviour-v0
  python scripts/dataset.py import data/offline/dataset.npz --minari finflow/behaviour-v0
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from finflow.cli.exit_status import run_safely
from finflow.cli.option_table import CONFIGURATION, add_options
from finflow.cli.options import Parser, one_of, resolve
from finflow.config import Config
from finflow.errors import FinflowError

SHOWN_BY = ("version", "prices", "training window", "features", "costs and execution")
"""Entries of ``made_by`` that decide the observations of a dataset."""


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
    add_options(parser, CONFIGURATION)
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
    if given.task == "show":
        lines = describe_dataset(given.file)
    elif given.task == "export":
        lines = export_dataset(config, given.file, given.minari, given.folder, given.observations != "portfolio")
    else:
        lines = import_dataset(given.file, given.minari, given.folder)
    print("\n".join(lines))


def describe_dataset(path: Path) -> list[str]:
    """The table of a saved dataset's card, whatever made it."""
    from finflow.offline.dataset import card_lines, load_dataset

    card = load_dataset(path).meta["card"]
    size = f"{card['transitions']:,} decisions in {card['episodes']:,} episodes"
    made = f"filled {card['first_fill']} to {card['last_fill']}"
    return [f"{path}: {size}, {made}", *card_lines(card), f"full data card: {path.with_suffix('.json')}"]


def export_dataset(config: Config, path: Path, name: str, root: Path | None, full: bool) -> list[str]:
    """Write a saved dataset as a Minari dataset; ``full`` observations need the market that it was made from."""
    from finflow.offline.collection import made_by
    from finflow.offline.dataset import load_dataset
    from finflow.offline.minari_files import export_minari, minari_folder
    from finflow.training.data.training_data import prepare

    folder = minari_folder(name, root)
    process, expected = None, None
    if full:
        training_data = prepare(config)
        process = training_data.learning
        made = made_by(config, process, training_data.train)
        expected = {entry: made[entry] for entry in SHOWN_BY}
    dataset = load_dataset(path, expected)
    size = export_minari(dataset, folder, name, process)
    return [f"exported {len(dataset):,} decisions to {folder} ({size:,.0f} MB)"]


def import_dataset(path: Path, name: str, root: Path | None) -> list[str]:
    """Save a Minari dataset of ours as npz, with its data card; a file that is there is not written over."""
    from finflow.offline.dataset import save_dataset
    from finflow.offline.minari_files import import_minari, minari_folder

    if path.exists():
        raise FinflowError(f"{path} is there already; use another name, or delete it")
    folder = minari_folder(name, root)
    dataset = import_minari(folder)
    save_dataset(path, dataset)
    return [f"imported {len(dataset):,} decisions from {folder}", *describe_dataset(path)]


if __name__ == "__main__":
    sys.exit(run_safely(main))
