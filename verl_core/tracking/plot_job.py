"""What `rlx runs plot` becomes: `python -m verl_core.tracking.plot_job RUN_DIR ... [--out FILE] [--no-terminal]`.

Needs the extra `plot` alone: neither this nor what it imports knows torch.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from verl_core.config.process import run_job
from verl_core.tracking.curves import load_run


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="rlx runs plot", description="Draw the curves of runs.")
    parser.add_argument("run_dirs", nargs="+", type=Path, metavar="RUN_DIR", help="run directories, drawn together")
    parser.add_argument(
        "--out", type=Path, help="picture file, e.g. curves.svg (default: plot.png in the first RUN_DIR)"
    )
    parser.add_argument("--no-terminal", action="store_true", help="write the picture only")
    args = parser.parse_args(argv)
    runs = [load_run(run_dir) for run_dir in args.run_dirs]
    out = args.out or args.run_dirs[0] / "plot.png"

    from verl_core.tracking.plot import draw

    draw(runs, out)
    if not args.no_terminal:
        from verl_core.tracking.plot_terminal import terminal_text

        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print(terminal_text(runs, shutil.get_terminal_size((100, 24)).columns, colour))
    print(f"wrote {out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(run_job(main))
