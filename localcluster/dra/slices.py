"""ResourceSlices and DeviceClasses (resource.k8s.io/v1) of simulated machines."""

from collections.abc import Sequence
from typing import Any

from localcluster.dra.devices import GPU_DRIVER, NIC_DRIVER, counter_sets, gpus, nics
from localcluster.dra.domains import CHANNEL_CLASS, DAEMON_CLASS, DOMAIN_DRIVER, domain_devices
from localcluster.dra.driver import Driver
from localcluster.kubelets.hardware import PlayedHardware
from localcluster.kubelets.specs import GPU

DRIVERS = (GPU_DRIVER, NIC_DRIVER, DOMAIN_DRIVER)
# What the API server takes in one slice.
MOST_DEVICES = 128
MOST_ADVANCED_DEVICES = 64  # where any of them has taints or takes counters
MOST_COUNTER_SETS = 8
_API = "resource.k8s.io/v1"

Json = dict[str, Any]


def pools(node: str, hardware: PlayedHardware, driver: Driver) -> dict[str, list[Json]]:
    """Driver name -> the specs of its slices for a node, without the pool's generation; [] where it has no devices.

    A pool is called like its node. Slices hold devices or counter sets, as the API wants it.
    """
    return {
        GPU_DRIVER: _pool(node, GPU_DRIVER, counter_sets(hardware, driver), list(gpus(hardware, driver))),
        NIC_DRIVER: _pool(node, NIC_DRIVER, [], list(nics(hardware, driver))),
        DOMAIN_DRIVER: _pool(node, DOMAIN_DRIVER, [], domain_devices() if driver.channels else []),
    }


def _pool(node: str, driver: str, sets: Sequence[Json], devices: Sequence[Json]) -> list[Json]:
    advanced = any("taints" in one or "consumesCounters" in one for one in devices)
    parts = [
        *({"sharedCounters": part} for part in _split_devices(sets, MOST_COUNTER_SETS)),
        *({"devices": part} for part in _split_devices(devices, MOST_ADVANCED_DEVICES if advanced else MOST_DEVICES)),
    ]
    # Every slice carries the number of all, by which readers tell an incomplete pool.
    pool = {"name": node, "resourceSliceCount": len(parts)}
    return [{"driver": driver, "nodeName": node, "pool": pool, **part} for part in parts]


def _split_devices(found: Sequence[Json], most: int) -> list[list[Json]]:
    return [list(found[start : start + most]) for start in range(0, len(found), most)]


def slice_name(node: str, driver: str, number: int) -> str:
    """The scheduler looks at the slices of a pool by their names: three digits keep the devices in their order."""
    return f"{node}-{driver}-{number:03d}"


def resource_slice(spec: Json, number: int, generation: int, owner: Json | None = None) -> Json:
    """The object of the pool's slice ``number``, from 0; with the node ``owner``, an ownerReference, its slices go."""
    return {
        "apiVersion": _API,
        "kind": "ResourceSlice",
        "metadata": {
            "name": slice_name(spec["nodeName"], spec["driver"], number),
            **({"ownerReferences": [owner]} if owner else {}),
        },
        "spec": {**spec, "pool": {**spec["pool"], "generation": generation}},
    }


def _class(name: str, *expressions: str, resource: str = "") -> Json:
    return {
        "apiVersion": _API,
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {
            "selectors": [{"cel": {"expression": expression}} for expression in expressions],
            **({"extendedResourceName": resource} if resource else {}),
        },
    }


def device_classes() -> list[Json]:
    """Classes for all forms: five as drivers install them, and two that serve extended resources."""
    whole = f"device.driver == '{GPU_DRIVER}' && device.attributes['{GPU_DRIVER}'].type == 'gpu'"
    part = f"device.driver == '{GPU_DRIVER}' && device.attributes['{GPU_DRIVER}'].type == 'mig'"
    of_domains = f"device.driver == '{DOMAIN_DRIVER}' && device.attributes['{DOMAIN_DRIVER}'].type"
    smallest = f"device.attributes['{GPU_DRIVER}'].profile == '1g.10gb'"
    return [
        _class("gpu.nvidia.com", whole),
        _class("mig.nvidia.com", part),
        _class("dranet", f"device.driver == '{NIC_DRIVER}' && device.attributes['{NIC_DRIVER}'].rdma"),
        _class(CHANNEL_CLASS, f"{of_domains} == 'channel' && device.attributes['{DOMAIN_DRIVER}'].id == 0"),
        _class(DAEMON_CLASS, f"{of_domains} == 'daemon'"),
        _class("extended-gpu.nvidia.com", whole, resource=GPU),
        _class("extended-mig.nvidia.com", part, smallest, resource="nvidia.com/mig-1g.10gb"),
    ]
