"""The CPU Manager's static policy: which CPUs a container gets for itself.

Written after the kubelet's own policy. A container of a Guaranteed pod that asks for whole CPUs gets them; those of an
init container stay with it and may be used again by later containers of its pod.
"""

from collections.abc import Mapping

from localcluster.kubelets.hardware import PlayedHardware, PlayedSettings, bits, mask_of
from localcluster.kubelets.masks import Hint, Hints, subsets, sums
from localcluster.kubelets.picking import CpuTopology, take_by_topology
from localcluster.kubelets.pods import INIT, PlayedContainer, PlayedPod
from localcluster.kubelets.refusals import AdmissionRefusal, NotAdmitted


class CpuManager:
    """The state of one kubelet's CPU manager."""

    def __init__(self, hardware: PlayedHardware, settings: PlayedSettings) -> None:
        """With the policy ``none`` it has no preference and gives out nothing."""
        self._hardware, self._options, self._static = hardware, settings.cpu_options, settings.static_cpu
        self.topology = CpuTopology(hardware)
        self.default = hardware.cpus  # what no container holds for itself, reserved ones included
        if "strict-cpu-reservation" in self._options:
            self.default &= ~hardware.reserved_cpus
        self.held: dict[str, dict[str, int]] = {}  # pod -> container -> CPUs
        self._reusable: tuple[str, int] = ("", 0)  # the pod that is being admitted, and what its init containers leave
        # Only zones with CPUs, as the kubelet makes its masks.
        self._zones = mask_of(position for position, cpus in enumerate(hardware.zone_cpus) if cpus)
        self._installed = sums([cpus.bit_count() for cpus in hardware.zone_cpus], self._zones)

    @property
    def free_cpus(self) -> int:
        """CPUs that can be given out."""
        return self.default & ~self._hardware.reserved_cpus

    def exclusive(self, pod: PlayedPod, container: PlayedContainer) -> int:
        """How many CPUs the container gets for itself."""
        amount = container.requests.get("cpu")
        return int(amount) if self._static and pod.pins and amount and amount.denominator == 1 else 0

    def topology_hints(self, pod: PlayedPod, container: PlayedContainer | None) -> Hints:
        """For one container, or for the pod (None)."""
        if container is not None:
            wanted = self.exclusive(pod, container)
        else:
            wanted = pod.peak({"cpu": self.exclusive(pod, c)} for c in pod.containers).get("cpu", 0)
        if not wanted:
            return {}
        reusable = self._left_by_init(pod)
        usable = self.free_cpus | reusable
        free = sums([(usable & cpus).bit_count() for cpus in self._hardware.zone_cpus], self._zones)
        # The kubelet wants every later hint to cover the zones of the CPUs that init containers leave.
        must = mask_of(position for position, cpus in enumerate(self._hardware.zone_cpus) if cpus & reusable)
        # By installed CPUs, reserved ones included: the width does not depend on what is free.
        enough = [mask.bit_count() for mask, installed in self._installed.items() if installed >= wanted]
        width = min(enough, default=self._zones.bit_count())
        masks = [mask for mask in subsets(self._zones) if free[mask] >= wanted and mask & must == must]
        return {"cpu": [Hint(mask, mask.bit_count() == width or self._fills_sockets(mask, width)) for mask in masks]}

    def _left_by_init(self, pod: PlayedPod) -> int:
        return self._reusable[1] if self._reusable[0] == pod.uid else 0

    def _fills_sockets(self, mask: int, width: int) -> bool:
        zones = self._hardware.zones
        a_socket = self._zones.bit_count() // self._hardware.sockets
        if "align-by-socket" not in self._options or not a_socket:
            return False
        return len({zones[position].socket for position in bits(mask)}) == -(-width // a_socket)

    def allocate(self, pod: PlayedPod, container: PlayedContainer, affinity: Hint) -> None:
        """Give the container its CPUs, from the zones of ``affinity`` where they have enough. Raises NotAdmitted."""
        wanted = self.exclusive(pod, container)
        if not wanted:
            return
        # Before any CPU is taken, and by what is free on the whole node.
        self._check_threads(wanted)
        reusable = self._left_by_init(pod)
        usable, taken = self.free_cpus | reusable, 0
        if affinity.mask is not None:
            aligned = usable & self._aligned(affinity.mask)
            taken = self._take_cpus(aligned, min(wanted, aligned.bit_count()))
        taken |= self._take_cpus(usable & ~taken, wanted - taken.bit_count())
        self.default &= ~taken
        self.held.setdefault(pod.uid, {})[container.name] = taken
        left = reusable | taken if container.kind == INIT else reusable & ~taken
        # One pod at a time: the next pod that is admitted starts without what this one leaves.
        self._reusable = (pod.uid, left)

    def _check_threads(self, wanted: int) -> None:
        if "full-pcpus-only" not in self._options:
            return
        threads = self._hardware.threads
        if wanted % threads:
            raise NotAdmitted(AdmissionRefusal.odd_threads(wanted, threads))
        # Without what init containers leave, as the kubelet has it.
        whole = self.default & ~self.topology.with_siblings(self._hardware.reserved_cpus)
        if wanted > whole.bit_count():
            raise NotAdmitted(AdmissionRefusal.too_few_cores(wanted, threads, whole.bit_count()))

    def _aligned(self, zones: int) -> int:
        if "align-by-socket" not in self._options:
            return mask_of(cpu for position in bits(zones) for cpu in bits(self._hardware.zone_cpus[position]))
        # Zones without CPUs say nothing about a socket.
        sockets = {self._hardware.zones[position].socket for position in bits(zones & self._zones)}
        return mask_of(cpu for socket in sockets for cpu in bits(self.topology.sockets[socket]))

    def _take_cpus(self, usable: int, wanted: int) -> int:
        if wanted > usable.bit_count():
            text = f"not enough cpus available to satisfy request: requested={wanted}, available={usable.bit_count()}"
            raise NotAdmitted(AdmissionRefusal.unexpected(text))
        return take_by_topology(self.topology, usable, wanted, self._options)

    def release_pod(self, uid: str) -> None:
        """Take back all that the pod holds."""
        for cpus in self.held.pop(uid, {}).values():
            self.default |= cpus

    def restore_pod(self, uid: str, held: Mapping[str, int]) -> None:
        """Take over what the pod's containers held before a restart."""
        if held:
            self.held[uid] = dict(held)
            self.default &= ~mask_of(cpu for cpus in held.values() for cpu in bits(cpus))
