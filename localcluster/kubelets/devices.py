"""The Device Manager: which devices a container gets.

Written after the kubelet's own. The plugins are played too: where they may choose, they keep what must be included and
add the lowest ids.
"""

import re
from collections.abc import Iterable, Mapping

from localcluster.kubelets.hardware import PlayedDevice, PlayedHardware
from localcluster.kubelets.masks import Hint, Hints, subsets
from localcluster.kubelets.pods import INIT, PlayedContainer, PlayedPod, round_up
from localcluster.kubelets.refusals import AdmissionRefusal, NotAdmitted

_NUMBERS = re.compile(r"([0-9]+)")


class DeviceManager:
    """The state of one kubelet's device manager."""

    def __init__(self, hardware: PlayedHardware) -> None:
        """Every device of the hardware is registered."""
        self.devices: dict[str, dict[str, PlayedDevice]] = {}
        self._zones: dict[str, dict[str, int]] = {}
        for resource, devices in hardware.devices.items():
            self.devices[resource] = {device.id: device for device in devices}
            self._zones[resource] = {device.id: hardware.zone_mask(device.zones) for device in devices}
        self.held: dict[str, dict[str, dict[str, frozenset[str]]]] = {}  # pod -> container -> resource -> ids
        self._reusable: tuple[str, dict[str, set[str]]] = ("", {})

    def zones_of_device(self, resource: str, device: str) -> int:
        """The zones of a device."""
        return self._zones[resource][device]

    def used(self, resource: str) -> set[str]:
        """Ids that are given out."""
        return {d for pod in self.held.values() for held in pod.values() for d in held.get(resource, ())}

    def free_ids(self, resource: str) -> set[str]:
        """Ids that can be given out: healthy ones that nobody has."""
        healthy = {name for name, device in self.devices[resource].items() if device.healthy}
        return healthy - self.used(resource)

    def _device_requests(self, container: PlayedContainer) -> dict[str, int]:
        return {r: round_up(amount) for r, amount in sorted(container.limits.items()) if r in self.devices}

    def topology_hints(self, pod: PlayedPod, container: PlayedContainer | None) -> Hints:
        """For one container, or for the pod (None)."""
        if container is not None:
            asked = self._device_requests(container)
            left_by_init = self._reusable[1] if self._reusable[0] == pod.uid else {}
            return {r: self._hints(r, amount, left_by_init.get(r, set())) for r, amount in asked.items()}
        asked = pod.peak(self._device_requests(c) for c in pod.containers)
        return {r: self._hints(r, amount, set()) for r, amount in asked.items()}

    def _hints(self, resource: str, wanted: int, reusable: set[str]) -> list[Hint] | None:
        zones = self._zones[resource]
        # Masks are made of zones that have a device of this resource (kubelet 1.36 and newer).
        bearing = 0
        for mask in zones.values():
            bearing |= mask
        if not bearing:
            return None
        free = self.free_ids(resource)
        if len(free | reusable) < wanted:
            return []
        must = [zones[device] for device in reusable if zones[device]]
        usable = [*must, *(zones[device] for device in free)]
        width, masks = bearing.bit_count(), []
        for mask in subsets(bearing):
            # Unhealthy devices count for the width, and not for what fits.
            if sum(1 for device in zones.values() if device & mask) >= wanted:
                width = min(width, mask.bit_count())
            if all(device & mask for device in must) and sum(1 for device in usable if device & mask) >= wanted:
                masks.append(mask)
        return [Hint(mask, mask.bit_count() == width) for mask in masks]

    def allocate(self, pod: PlayedPod, container: PlayedContainer, affinity: Hint) -> None:
        """Give the container its devices, from the zones of ``affinity`` first. Raises NotAdmitted."""
        if self._reusable[0] != pod.uid:
            self._reusable = (pod.uid, {})
        left = self._reusable[1]
        for resource, wanted in self._device_requests(container).items():
            # Also for a limit of 0: the check comes before the count.
            if not any(device.healthy for device in self.devices[resource].values()):
                what = f"no healthy devices present; cannot allocate unhealthy devices {resource}"
                raise NotAdmitted(AdmissionRefusal.unexpected(what))
            if wanted:
                chosen = self._choose(resource, wanted, left.get(resource, set()), affinity.mask)
                self.held.setdefault(pod.uid, {}).setdefault(container.name, {})[resource] = frozenset(chosen)
        for resource, devices in self.held.get(pod.uid, {}).get(container.name, {}).items():
            before = left.get(resource, set())
            left[resource] = before | devices if container.kind == INIT else before - devices

    def _choose(self, resource: str, wanted: int, reusable: set[str], affinity: int | None) -> set[str]:
        chosen = set(_lowest(reusable, wanted))
        missing = wanted - len(chosen)
        free = self.free_ids(resource)
        if not missing:
            return chosen
        if len(free) < missing:
            what = (
                f"requested number of devices unavailable for {resource}. Requested: {missing}, Available: {len(free)}"
            )
            raise NotAdmitted(AdmissionRefusal.unexpected(what))
        # All that are aligned before any other, even if they are fewer than asked.
        aligned = {d for d in free if affinity is not None and self._zones[resource][d] & affinity}
        chosen |= set(_lowest(aligned, missing))
        return chosen | set(_lowest(free - chosen, wanted - len(chosen)))

    def release_pod(self, uid: str) -> None:
        """Take back all that the pod holds."""
        self.held.pop(uid, None)

    def restore_pod(self, uid: str, held: Mapping[str, Mapping[str, Iterable[str]]]) -> None:
        """Take over what the pod's containers held before a restart; devices that are gone are left out."""
        for container, resources in held.items():
            for resource, devices in resources.items():
                # A device that is gone from the hardware must not count as used: it would never be given back.
                known = frozenset(devices) & self.devices.get(resource, {}).keys()
                if known:
                    self.held.setdefault(uid, {}).setdefault(container, {})[resource] = known


def _lowest(devices: Iterable[str], count: int) -> list[str]:
    return sorted(devices, key=_numbered)[:count]


def _numbered(device: str) -> list[tuple[int, str]]:
    """Numbers by value: gpu-2 before gpu-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _NUMBERS.split(device)]
