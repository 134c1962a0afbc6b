"""``python -m benchmarks [NAME ...] [OPTION ...]``: all benchmarks, or those that are named.

Options go to the one benchmark that is named: ``python -m benchmarks whole-path --jobs 100``; ``NAME --help`` lists
them. Each benchmark is a module of this package with ``main(arguments: Sequence[str] | None) -> None``. A
run ends with a table of all goals of what was measured: met or missed.
"""

import importlib
import sys
from collections.abc import Sequence

from benchmarks.harness import report

BENCHMARKS = {
    "placement": "placement of 16 to 4,096 pods on 640 to 100,000 nodes, state update included",
    "placement-numa": "the same where the inside of nodes counts, beside the same by amounts alone",
    "numa": "which of 5,000 nodes' kubelets admit a pod, and how many, a node",
    "devices": "one choice of GPUs or XPUs on a machine, beside a plain search over all sets",
    "claims": "how many pods with resource claims fit each of 5,000 nodes, beside plain amounts",
    "queueing": "a decision cycle with 10,000 waiting workloads, and freeing a rack by preemption",
    "preempt": "victims for one pod on 100 full servers, and freeing a rack on up to 5,000 nodes",
    "webhook": "AdmissionReviews a second a core over TLS, beside a handler that only parses and answers",
    "ungating": "pods ungated a second, beside a bare PATCH loop against the same API server",
    "ungating-large": "the same with 10,000 pods of one Job",
    "startup": "from the controller's start until it leads, with 5,000 nodes and 20,000 pods, and its memory",
    "scale": "the controller with 10,000 to 100,000 nodes and two pods each, on a feed in memory",
    "stream": "pods that the kubelets of simulated machines refuse of a mixed stream, beside plain kube-scheduler",
    "whole-path": "from the creation of Jobs until every pod runs, beside plain kube-scheduler",
    "whole-path-queues": "the same through one queue, ten, and one of a real Kueue, beside plain kube-scheduler",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmarks named by the leading arguments; the rest are options of the one that is named."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    names: list[str] = []
    while words and words[0] in BENCHMARKS:
        names.append(words.pop(0))
    if words and len(names) != 1:
        lines = "\n".join(f"  {name:<18}{text}" for name, text in BENCHMARKS.items())
        sys.exit(f"usage: python -m benchmarks [NAME ...]\n       python -m benchmarks NAME [OPTION ...]\n\n{lines}")
    try:
        for name in names or BENCHMARKS:
            print(f"\n== {name}: {BENCHMARKS[name]}", flush=True)
            importlib.import_module(f"benchmarks.{name.replace('-', '_')}").main(words)
    finally:  # of what was measured, where one of them failed
        report.goals()


if __name__ == "__main__":
    main()
