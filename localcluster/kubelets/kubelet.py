"""One simulated kubelet: admits, pins or refuses pods as the kubelet's container manager does.

Written after kubelet v1.36.3, apart from `engine`, whose predictions it serves to test: it imports nothing of it.
Order of the managers, as in the kubelet: devices, CPUs, memory. What a refused pod had got already is taken back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from localcluster.kubelets.cpus import CpuManager
from localcluster.kubelets.devices import DeviceManager
from localcluster.kubelets.hardware import NONE, PlayedHardware, PlayedSettings
from localcluster.kubelets.masks import Hint, Merger
from localcluster.kubelets.memory import MemoryManager, PlayedBlock
from localcluster.kubelets.pods import PlayedPod
from localcluster.kubelets.refusals import AdmissionRefusal, NotAdmitted

POD = "*"  # the step of a pod scope


@dataclass(frozen=True)
class MergeStep:
    """One merge: of a container, or of the whole pod (``POD``)."""

    container: str
    merged: int | None
    preferred: bool
    admit: bool


@dataclass(frozen=True)
class AdmissionVerdict:
    """What became of a pod; ``refusal`` None: it was admitted."""

    refusal: AdmissionRefusal | None
    steps: tuple[MergeStep, ...]


@dataclass(frozen=True)
class ContainerHolding:
    """What one container holds."""

    cpus: int = 0
    devices: Mapping[str, frozenset[str]] | None = None
    memory: Sequence[PlayedBlock] = ()


class PlayedKubelet:
    """The managers of one machine."""

    def __init__(self, hardware: PlayedHardware, settings: PlayedSettings) -> None:
        """Nothing is given out yet."""
        self.hardware, self.settings = hardware, settings
        self.devices = DeviceManager(hardware)
        self.cpus = CpuManager(hardware, settings)
        self.memory = MemoryManager(hardware, settings)
        self._managers = (self.devices, self.cpus, self.memory)
        # Without distances all other zones are equally far, so that the option changes nothing.
        count = len(hardware.zones)
        distances = [
            zone.distances or tuple(10 if other == own else 20 for other in range(count))
            for own, zone in enumerate(hardware.zones)
        ]
        closest = "prefer-closest-numa-nodes" in settings.topology_options
        self._merger = Merger(distances, settings.policy, prefer_closest=closest)

    def admit_pod(self, pod: PlayedPod) -> AdmissionVerdict:
        """Admit the pod and give it what it asks for, or refuse it and leave everything as it was."""
        steps: list[MergeStep] = []
        try:
            self._admit(pod, steps)
        except NotAdmitted as refused:
            self.remove(pod.uid)
            return AdmissionVerdict(refused.refusal, tuple(steps))
        return AdmissionVerdict(None, tuple(steps))

    def _admit(self, pod: PlayedPod, steps: list[MergeStep]) -> None:
        shared = self.settings.scope == "pod"
        affinity = Hint(None, preferred=False)
        for position, container in enumerate(pod.containers):
            # In pod scope once, before the first container takes anything; the hint then holds for all.
            if self.settings.policy != NONE and (position == 0 or not shared):
                asking = None if shared else container
                affinity, admit = self._merger.merge([each.topology_hints(pod, asking) for each in self._managers])
                steps.append(MergeStep(POD if shared else container.name, affinity.mask, affinity.preferred, admit))
                if not admit:
                    raise NotAdmitted(AdmissionRefusal.unaligned())
            for manager in self._managers:
                manager.allocate(pod, container, affinity)

    def started(self, pod: PlayedPod) -> None:
        """Its ordinary init containers are through, and the others run: CPUs and devices stay held, memory does not."""
        self.memory.started(pod)

    def remove(self, uid: str) -> None:
        """The pod has ended: take back all that it holds. Nothing happens where it holds nothing."""
        for manager in self._managers:
            manager.release_pod(uid)

    def held_by_container(self, uid: str) -> dict[str, ContainerHolding]:
        """What the pod's containers hold, by name."""
        cpus, devices, memory = self.cpus.held, self.devices.held, self.memory.held
        # A container may hold something of one manager only.
        names = {*cpus.get(uid, {}), *devices.get(uid, {}), *memory.get(uid, {})}
        return {
            name: ContainerHolding(
                cpus.get(uid, {}).get(name, 0), devices.get(uid, {}).get(name, {}), memory.get(uid, {}).get(name, [])
            )
            for name in sorted(names)
        }

    def restore_held(self, uid: str, held: Mapping[str, ContainerHolding]) -> None:
        """Take over what a pod held before a restart, in the order in which pods were admitted."""
        self.cpus.restore_pod(uid, {name: container.cpus for name, container in held.items() if container.cpus})
        self.devices.restore_pod(uid, {name: container.devices or {} for name, container in held.items()})
        self.memory.restore_pod(uid, {name: list(c.memory) for name, c in held.items() if c.memory})
