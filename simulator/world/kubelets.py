"""What the kubelets of simulated machines do with pods that arrive: the engine's prediction taken as what happens.

`docs/numa.md` says how exact that is. The world is kept apart from the scheduler's state on purpose: a policy that
counts amounts alone sends pods blindly, and finds out here.
"""

from collections.abc import Iterable, Iterator

import msgspec

from engine.kubelet.admit import empty
from engine.kubelet.charge import charge
from engine.kubelet.machine import Layout, Machine, NumaPlacement, PodShape, State
from engine.kubelet.rebuild import asked, granted, inner


class Kubelets:
    """The insides of all machines as they really are."""

    def __init__(self, machines: Iterable[tuple[Machine, State]]) -> None:
        """Machines, each with what is left of it now."""
        self._machines: dict[str, Machine] = {}
        self._states: dict[str, State] = {}
        self._holds: dict[str, dict[str, NumaPlacement]] = {}
        for machine, state in machines:
            self._machines[machine.node] = machine
            self._states[machine.node] = state
            # A copy: what the scheduler was told must not change with the world.
            self._holds[machine.node] = dict(machine.holds or {})

    def __contains__(self, node: object) -> bool:
        return node in self._machines

    def admit_arrival(self, node: str, pod: str, shape: PodShape | None) -> str:
        """A pod arrives: "" where its kubelet takes it, else the kubelet's reason."""
        machine = self._machines.get(node)
        if machine is None or shape is None or inner(shape) is None:
            return ""
        found = granted(machine, self._states[node], shape)
        if found is None:
            return asked(machine.layout, self._states[node], shape).reason
        self._holds[node][pod], self._states[node] = found
        return ""

    def remove(self, node: str, pod: str) -> None:
        """A pod ends: what it held is free again."""
        held = self._holds.get(node, {}).pop(pod, None)
        if held is not None:
            machine = self._machines[node]
            self._states[node] = charge(machine.layout, self._states[node], held, -1, machine.device_ids)

    def placement_of_pod(self, node: str, pod: str) -> NumaPlacement | None:
        """What a pod holds; None where it holds nothing inside a machine."""
        return self._holds.get(node, {}).get(pod)

    def splits(self, node: str, pod: str, shape: PodShape | None) -> bool:
        """Whether a pod holds something of more NUMA zones than it would if nothing else ran there."""
        held = self.placement_of_pod(node, pod)
        if held is None or shape is None:
            return False
        layout = self._machines[node].layout
        return len(held.zones) > asked(layout, empty(layout), shape).zones.bit_count()

    def crosses(self, node: str, pod: str, resource: str) -> bool:
        """Whether a pod's devices come from several sockets though one has as many."""
        held = self.placement_of_pod(node, pod)
        return held is not None and _crosses(self._machines[node].layout, held, resource)

    def would_cross(self, node: str, shape: PodShape, resource: str) -> bool:
        """Whether a pod's devices would come from several sockets, or it be refused, if it arrived now."""
        machine = self._machines[node]
        found = granted(machine, self._states[node], shape)
        return found is None or _crosses(machine.layout, found[0], resource)

    def instances(self, resource: str) -> Iterator[tuple[str, tuple[int, ...], bool]]:
        """(node, its devices by index, whether they cross sockets) of every pod that holds some, by node and pod."""
        for node, pods in sorted(self._holds.items()):
            index = {name: at for at, name in enumerate(self._machines[node].device_ids.get(resource, ()))}
            for pod, held in sorted(pods.items()):
                names = [name for use in held.zones for name in use.devices.get(resource, ())]
                if names:
                    devices = tuple(sorted({index[name] for name in names if name in index}))
                    yield node, devices, self.crosses(node, pod, resource)

    def report(self, node: str) -> Machine | None:
        """What an agent would publish now, where it can publish all; None where it cannot."""
        machine = self._machines.get(node)
        if machine is None or not machine.layout.exact:
            return None
        # A copy for the same reason as in the constructor: the world goes on, and the report stays as it was.
        return msgspec.structs.replace(machine, state=self._states[node], holds=dict(self._holds[node]))


def _crosses(layout: Layout, held: NumaPlacement, resource: str) -> bool:
    """Whether devices come from several sockets though one has as many."""
    socket_of = {zone.id: zone.socket for zone in layout.zones}
    taken = {use.zone: use.amounts.get(resource, 0) for use in held.zones}
    sockets = {socket_of.get(zone, 0) for zone, amount in taken.items() if amount}
    if len(sockets) < 2 or resource not in layout.resources:
        return False
    row, has = layout.resources.index(resource), dict.fromkeys(socket_of.values(), 0)
    for zone, amounts in zip(layout.zones, layout.allocatable, strict=True):
        has[zone.socket] += max(amounts[row], 0)
    return sum(taken.values()) <= max(has.values())
