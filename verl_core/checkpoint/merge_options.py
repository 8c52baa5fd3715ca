"""What the jobs behind `rlx merge` are told in the same words."""

from argparse import ArgumentParser, Namespace

from verl_core.checkpoint.folders import folder_of
from verl_core.checkpoint.merge_push import BRANCH, PushTarget

ROLES = ["actor", "critic", "reward_model"]


def job_parser(prog: str, description: str, source: str) -> ArgumentParser:
    """A parser of SOURCE, of what `source` says, and of what every job takes."""
    parser = ArgumentParser(prog=prog, description=description)
    parser.add_argument("source", type=folder_of, help=source)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("-v", "--verbose", action="store_true", help="show tracebacks")
    parser.add_argument("--dry-run", action="store_true", help="check everything, write nothing")
    return parser


def add_push(parser: ArgumentParser, required: bool = False) -> None:
    """Adds where a folder is pushed to, see `push_target`."""
    parser.add_argument("--push", metavar="REPO", required=required, help="repository on the hub for the folder")
    parser.add_argument("--revision", default=BRANCH, help="branch of the repository")
    seen = parser.add_mutually_exclusive_group()
    seen.add_argument("--private", action="store_const", const=True, help="nobody else may see a new repository")
    seen.add_argument("--public", action="store_const", const=False, dest="private", help="everybody may see it")


def push_target(options: Namespace) -> PushTarget:
    """What `add_push` has read."""
    return PushTarget(options.push, options.revision, options.private)
