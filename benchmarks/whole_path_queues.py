"""The whole path through queues: queued Jobs that require a rack, beside the same Jobs on plain kube-scheduler."""

from collections.abc import Sequence

from benchmarks import whole_path

NAME = "whole-path-queues"
GOAL_CPU_MS = 3.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write ``benchmarks/results/whole-path-queues.json``."""
    parser = whole_path.parser(NAME)
    parser.set_defaults(jobs=1000, pods=5, large=0, variants="plain,queues")
    whole_path.show(parser.parse_args(arguments), NAME, GOAL_CPU_MS)
