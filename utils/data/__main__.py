"""Prepare datasets from a shell: python -m utils.data digits [digits-rgb | fashion-mnist | cifar10 | folder:PATH]."""

import argparse

from utils.data import DATASETS, SPLITS, load, prepare
from utils.errors import UserError, one_line_errors


def main():
    """Prepare the datasets named on the command line and say what is there."""
    parser = argparse.ArgumentParser(prog="python -m utils.data", description=main.__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"{', '.join(DATASETS)} or folder:PATH")
    parser.add_argument("--data-dir", default="data", help="where the prepared file goes (default: %(default)s)")
    args = parser.parse_args()
    if not args.data_dir.strip():  # as an unset shell variable gives
        raise UserError("--data-dir is empty: name a folder")
    for name in args.names:
        path = prepare(name, args.data_dir)
        counts = ", ".join(f"{len(load(name, args.data_dir, split)):,} {split} images" for split in SPLITS)
        print(f"{name}: {counts} in {path}")


if __name__ == "__main__":
    with one_line_errors():
        main()
