"""Nodes with one host name label. Pure: nodes in, findings out."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from cli.doctor.findings import Finding, warning
from cli.topology.survey import Labelled, listed
from crds.constants import HOSTNAME_LABEL


def shared_host_names(nodes: Iterable[Labelled]) -> Iterator[Finding]:
    """A pod is sent to a host by its host name: where several nodes have one, only the node of that name takes pods.

    The remedy empties a node first: a kubelet that starts again fails pods whose node selector is not its node's label
    any more.
    """
    by_host: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        if host := node.labels.get(HOSTNAME_LABEL):
            by_host[host].append(node.name)
    for host, names in sorted(by_host.items()):
        if len(names) < 2:
            continue
        closed = sorted(name for name in names if name != host)
        whom = f"only {host} takes pods" if host in names else "none of them takes pods"
        whom = "neither takes pods" if len(closed) == len(names) == 2 else whom
        text = f"{listed(sorted(names))} have the same label {HOSTNAME_LABEL}={host}, so {whom}"
        # One node at a time: the remedy drains it, and the next look names the next one.
        other = closed[-1]
        mend = (
            f"kubectl drain --ignore-daemonsets {other} && kubectl label node --overwrite {other} "
            f"{HOSTNAME_LABEL}={other} && kubectl uncordon {other}"
        )
        yield warning("nodes", text, mend)
