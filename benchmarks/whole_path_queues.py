"""The whole path through one queue, ten, and one of Kueue, beside the same Jobs on plain kube-scheduler."""

from collections.abc import Sequence

from benchmarks import whole_path

NAME = "whole-path-queues"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write ``benchmarks/results/whole-path-queues.json``."""
    parser = whole_path.parser(NAME)
    parser.set_defaults(large=0, variants="plain,queue,queues,kueue")
    whole_path.show(parser.parse_args(arguments), NAME)
