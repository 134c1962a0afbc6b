"""``topogate local nodes --real-kubelets N``: nodes with real kubelets, run by the cluster's supervisor."""

import re
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from cli.output import Failure
from clock import Clock
from localcluster import health, supervisor
from localcluster.nodes import HOSTNAME_LABEL, Fleet
from localcluster.options import REAL_KINDS, real_name
from localcluster.programs.binaries import Binaries
from localcluster.programs.build import KUBELET
from localcluster.real import service
from localcluster.real.layout import RealNode

READY_SECONDS = 150.0
POLL_SECONDS = 0.3
PREFIX = "real-"  # beside simulated nodes of the same block, rack and host
_OF_KUBERNETES = ("kubernetes.io/", "beta.kubernetes.io/")

Say = Callable[[str], None]


def members(fleet: Fleet, count: int) -> list[RealNode]:
    """The first ``count`` nodes of a fleet with machines, each with a real kubelet. Failure where it has fewer."""
    if count > len(fleet):
        raise Failure(f"--real-kubelets {count}: {len(fleet)} nodes have a place in these blocks, racks and hosts")
    return [
        RealNode(
            name=node["metadata"]["name"],
            machine=fleet.machine,
            kubelet=fleet.kubelet,
            pods=fleet.pods,
            labels={
                key: value
                for key, value in node["metadata"]["labels"].items()
                if key != HOSTNAME_LABEL and not key.startswith(_OF_KUBERNETES)
            },
            taints=tuple(fleet.taints),
        )
        for node in islice(fleet.objects(), count)
    ]


def run(folder: Path, prefix: str, nodes: Sequence[RealNode], *, say: Say, clock: Clock) -> None:
    """Have these be the nodes with real kubelets whose names begin with ``prefix``; wait until they are ready.

    Raises LocalClusterError, and Failure, after which those are wanted again that were before; what was described
    otherwise meanwhile has been made anew.
    """
    state = supervisor.running(folder)
    if state is not None and state.root not in {"", str(folder)}:
        raise Failure("this cluster belongs to `topogate demo`, which runs no real kubelets; use topogate local up")
    # Before the program is fetched or built: what is refused anyway need not wait for that.
    service.check(health.api(supervisor.layout(folder)), nodes)
    if nodes:
        Binaries.find([KUBELET], progress=say)
    # The whole name, as a prefix "real-" also begins the names of a fleet "real-a-".
    group = re.compile(re.escape(prefix) + r"b\d+-r\d+-h\d+").fullmatch
    before = service.wanted(folder)
    after = [*(node for node in before if not group(node.name)), *nodes]
    say(f"starting {len(nodes)} kubelets" if nodes else "stopping kubelets")
    # The supervisor watches this file; this process starts no kubelet itself.
    service.remember(folder, after)
    try:
        _wait(folder, after, clock)
    except BaseException:
        service.remember(folder, before)
        raise


def _wait(folder: Path, nodes: Sequence[RealNode], clock: Clock) -> None:
    deadline = clock.monotonic() + READY_SECONDS
    names = {real_name(kind, node.name) for node in nodes for kind in REAL_KINDS}
    while True:
        state = supervisor.running(folder)
        if state is None or state.message:
            raise Failure(state.message if state else "the cluster has ended")
        ready = {each.name for each in supervisor.statuses(folder) if each.state == "Ready"}
        # Both: kubelets that are not wanted any more have to be gone too.
        if names <= ready and {node.name for node in service.existing(folder)} == {node.name for node in nodes}:
            return
        if clock.monotonic() > deadline:
            raise Failure(f"not ready in time: {', '.join(sorted(names - ready))}; see the logs in {folder / 'logs'}")
        time.sleep(POLL_SECONDS)
