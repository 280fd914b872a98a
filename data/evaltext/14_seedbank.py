"""seedbank - keep track of the seeds in the cellar

The stock lives in a JSON file, written through a temporary file so that a full
disk never leaves half a cellar behind.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

KEEPS = {"parsnip": 1, "onion": 2, "carrot": 3, "bean": 4, "tomato": 6}  # years
THIS_YEAR = 2025


class StockError(Exception):
    pass


def load_stock(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except json.JSONDecodeError as exc:
        raise StockError(f"{path} is damaged") from exc


def save_stock(path, stock):
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".new")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(stock, out, indent=2, sort_keys=True)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def is_old(kind, harvested):
    return THIS_YEAR - harvested > KEEPS.get(kind, 3)


def cmd_add(args, stock):
    lots = stock.setdefault(args.kind, [])
    for lot in lots:
        if lot["harvested"] == args.harvested:
            lot["count"] += args.count
            break
    else:
        lots.append({"harvested": args.harvested, "count": args.count})
    return f"added {args.count} {args.kind} seeds of {args.harvested}"


def cmd_sow(args, stock):
    """Use the oldest seeds first."""
    lots = sorted(stock.get(args.kind, []), key=lambda lot: lot["harvested"])
    available = sum(lot["count"] for lot in lots)
    if available < args.count:
        raise StockError(f"only {available} {args.kind} seeds left")
    needed = args.count
    for lot in lots:
        taken = min(needed, lot["count"])
        lot["count"] -= taken
        needed -= taken
    stock[args.kind] = [lot for lot in lots if lot["count"]]
    return f"sow {args.count} {args.kind}, {available - args.count} remain"


def cmd_list(args, stock):
    lines = []
    for kind, lots in sorted(stock.items()):
        for lot in lots:
            mark = "!" if is_old(kind, lot["harvested"]) else " "
            if mark == "!" or not args.old:
                lines.append(f"{mark} {kind:<10}{lot['count']:>5}  {lot['harvested']}")
    return "\n".join(lines) or "nothing to show"


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def build_parser():
    parser = argparse.ArgumentParser(prog="seedbank", description="keep track of the seeds in the cellar")
    parser.add_argument("--file", type=Path, default=Path("seeds.json"), help="where the stock is kept")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    add = commands.add_parser("add", help="put seeds into a jar")
    add.add_argument("kind", type=str.lower)
    add.add_argument("count", type=positive)
    add.add_argument("--harvested", type=int, default=THIS_YEAR, metavar="YEAR")
    add.set_defaults(run=cmd_add)

    sow = commands.add_parser("sow", help="take seeds out, oldest first")
    sow.add_argument("kind", type=str.lower)
    sow.add_argument("count", type=positive)
    sow.set_defaults(run=cmd_sow)

    show = commands.add_parser("list", help="show every jar")
    show.add_argument("--old", action="store_true", help="only seeds past their best")
    show.set_defaults(run=cmd_list)
    return parser


def main(argv=None):
    args = build_parser().parse_args(argv)
    try:
        stock = load_stock(args.file)
        print(args.run(args, stock))
        save_stock(args.file, stock)
    except StockError as exc:
        print(f"seedbank: {exc}", file=sys.stderr)
        return 1
    return 0


def demo():
    with tempfile.TemporaryDirectory() as cellar:
        option = ["--file", os.path.join(cellar, "seeds.json")]
        script = ["add onion 30 --harvested 2021", "add Onion 20", "sow onion 35", "list", "sow leek 1"]
        return [main(option + line.split()) for line in script]


if __name__ == "__main__":
    sys.exit(main())
