"""Devices that a node gives away in two ways at once. Pure: what is known of a cluster in, findings out."""

from collections.abc import Iterator

from cli.cluster.claimed_devices import one_of
from cli.doctor.findings import Finding, warning
from cli.topology.survey import with_verb
from engine.cluster.state import ClusterState


def given_twice(state: ClusterState) -> Iterator[Finding]:
    """Nodes with an extended resource of a device plugin, and with devices of the DeviceClass that stands for it.

    kube-scheduler (1.37) takes the resource from the plugin wherever a node's allocatable has some, and devices for
    claims from the slices; nobody compares the two.
    """
    ledger = state.cluster.devices
    for name, found in sorted(ledger.facts().classes.items()):
        resource = found.extended_resource
        plugged = [node.name for node in state.nodes.values() if resource and node.allocatable.get(resource, 0) > 0]
        ask = one_of(name)
        if both := [node for node in plugged if ledger.has_devices(node, ask)]:
            text = (
                f"{with_verb(sorted(both), 'has', 'have')} {resource} of a device plugin, and devices of DeviceClass "
                f"{name}, which stands for it, in ResourceSlices: one device may be given to two pods"
            )
            mend = (
                "let one of the two give the devices of a node: keep the pods of the device plugin off it, or those "
                f"of the DRA driver (kubectl get resourceslices --field-selector spec.nodeName={min(both)})"
            )
            yield warning("devices", text, mend)
