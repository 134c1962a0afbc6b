"""Nodes with one host name label. Pure: nodes in, findings out."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from cli.doctor.findings import Finding, warning
from cli.topology.survey import Labelled, listed
from crds.constants import HOSTNAME_LABEL


def shared_host_names(nodes: Iterable[Labelled]) -> Iterator[Finding]:
    """A pod is sent to a host by its host name: where several nodes have one, it may come to any of them.

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
        text = f"{listed(sorted(names))} have the same label {HOSTNAME_LABEL}={host}, so neither takes pods"
        other = max(names)
        mend = (
            f"kubectl drain --ignore-daemonsets {other} && kubectl label node --overwrite {other} "
            f"{HOSTNAME_LABEL}={other} && kubectl uncordon {other}"
        )
        yield warning("nodes", text if len(names) == 2 else text.replace("neither takes", "none of them takes"), mend)
