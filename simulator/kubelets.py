"""What the kubelets of simulated machines do with pods that arrive: the engine's prediction taken as what happens.

`docs/numa.md` says how exact that is. The world is kept apart from the scheduler's state on purpose: a policy that
counts amounts alone sends pods blindly, and finds out here.
"""

from collections.abc import Iterable

import msgspec

from engine.numa.charge import charge
from engine.numa.machine import Machine, NumaPlacement, PodShape, State
from engine.numa.rebuild import asked, granted, inner


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
            self._holds[machine.node] = dict(machine.holds or {})

    def __contains__(self, node: object) -> bool:
        return node in self._machines

    def admit(self, node: str, pod: str, shape: PodShape | None) -> str:
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

    def held(self, node: str, pod: str) -> NumaPlacement | None:
        """What a pod holds; None where it holds nothing inside a machine."""
        return self._holds.get(node, {}).get(pod)

    def report(self, node: str) -> Machine | None:
        """What an agent would publish now, where it can publish all; None where it cannot."""
        machine = self._machines.get(node)
        if machine is None or not machine.layout.exact:
            return None
        return msgspec.structs.replace(machine, state=self._states[node], holds=dict(self._holds[node]))
