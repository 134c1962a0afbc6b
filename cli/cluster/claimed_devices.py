"""Devices of claims by their names: those that pods have, and those that kube-scheduler would give to pods next.

A device is told as ``driver/device`` where its pool is called like the node, as drivers of one node do it, else as
``driver/pool/device``.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import msgspec

from engine.claims.asks import DeviceAsk
from engine.claims.in_use import Use
from engine.claims.read.asks import read_ask, text_of
from engine.cluster.assignment import Assignment
from engine.cluster.state import ClusterState
from kube import objects
from ungater.cache.claims.known_claims import claims_named

MOST_PREDICTED: Final = 256  # pods of one answer

Names = tuple[str, ...]


def name_devices(node: str, uses: tuple[Use, ...]) -> Names:
    """The devices in words."""
    return tuple(
        ["/".join([use.device[0], *([] if use.device[1] == node else use.device[1:2]), use.device[2]]) for use in uses]
    )


class HeldDevices:
    """What pods have by their claims, from one reading of the cluster."""

    def __init__(self, state: ClusterState) -> None:
        self._uses = state.cluster.devices.holders.all()[0]

    def devices_of_pod(self, pod: objects.Pod) -> Names:
        """The devices of a pod that is on a node."""
        namespace, status = pod.metadata.namespace, pod.status
        # Claims that were made from a template have generated names, which stand in the pod's status alone.
        made = [one.resource_claim_name for one in status.resource_claim_statuses or ()]
        if (extended := status.extended_resource_claim_status) is not None:
            made.append(extended.resource_claim_name)
        claims = [*claims_named(pod), *(f"{namespace}/{name}" for name in made if name)]
        node = pod.spec.node_name
        # A pod without a node has no devices yet, whatever its claims say.
        return (
            tuple([one for key in dict.fromkeys(claims) for one in name_devices(node, self._uses.get(key, ()))])
            if node
            else ()
        )


class Predictor(msgspec.Struct):
    """Which devices pods would be given, one after another, if those that were asked about before are there by then."""

    state: ClusterState
    _given: dict[str, tuple[Use, ...]] = msgspec.field(default_factory=dict)

    def predict_devices(self, key: str, part: Assignment) -> Mapping[str, tuple[Names, ...]]:
        """By node, the devices of each pod there, as far as they are known: of `MOST_PREDICTED` pods at most.

        What is kept for others who were admitted does not count, as kube-scheduler knows nothing of it.
        """
        ask = part.devices
        if ask is None or part.count > MOST_PREDICTED:
            return {}
        with self._thought():
            return {
                name: self._predict_on_node(f"{key}/{part.pod_set}", name, count, ask)
                for one in part.slices
                for name, count in one.nodes
            }

    def _predict_on_node(self, key: str, node: str, count: int, ask: DeviceAsk) -> tuple[Names, ...]:
        ledger, found = self.state.cluster.devices, []
        # A claim that all pods share is allocated once, for the first of them.
        for number in range(1 if ask.shared else count):
            claim = key if ask.shared else f"{key}/{node}/{number}"
            # Asked twice about the same pods, the same devices are reported.
            uses = self._given.get(claim) or ledger.first_fit(node, ask)
            if uses is None:
                break
            self._given[claim] = uses
            ledger.set_uses(claim, uses)
            found.append(name_devices(node, uses))
        return tuple(found * count if ask.shared else found)

    @contextmanager
    def _thought(self) -> Iterator[None]:
        ledger = self.state.cluster.devices
        for claim, uses in self._given.items():
            ledger.set_uses(claim, uses)
        try:
            yield
        finally:
            for claim in self._given:
                # Whatever was tried must be gone: the ledger is the mirror that later questions are asked of.
                ledger.set_uses(claim, ())


def class_asks(state: ClusterState) -> dict[str, DeviceAsk]:
    """For each DeviceClass what a pod asks for that wants one device of it; of classes that select alike the first.

    Those that stand for an extended resource come last.
    """
    found: dict[tuple[str | None, ...], str] = {}
    classes = state.cluster.devices.facts().classes
    for name in sorted(classes, key=lambda name: (bool(classes[name].extended_resource), name)):
        # Sorted so that the plain class wins over one that stands for an extended resource.
        found.setdefault(classes[name].selectors, name)
    return {name: one_of(name) for name in sorted(found.values())}


def one_of(name: str) -> DeviceAsk:
    """What a pod asks for that wants one device of a DeviceClass."""
    # In the form of resource.k8s.io/v1, so that the one reader of claims reads it.
    request = {"name": "one", "exactly": {"deviceClassName": name}}
    return read_ask([("one", "", text_of({"devices": {"requests": [request]}}))])
