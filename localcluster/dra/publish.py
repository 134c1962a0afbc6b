"""Writes the ResourceSlices of simulated machines, and the DeviceClasses, to the API server."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kube.client import Client
from kube.errors import AlreadyExists
from kube.resources import DEVICE_CLASSES, NODES, RESOURCE_SLICES
from localcluster.dra.driver import Driver
from localcluster.dra.slices import DRIVERS, device_classes, pools, resource_slice
from localcluster.kubelets.specs import build, parse_machine

WRITERS = 16

Json = dict[str, Any]


async def publish(client: Client, names: Sequence[str], machine: str, driver: Driver | None) -> None:
    """Bring the slices of these nodes, which are there, in line with their machine; with ``driver`` None they go.

    Pools that are right already keep their generation, others get the next one. Classes that are there already stay as
    they are. Raises kube.errors.KubeError.
    """
    if driver is not None:
        for one in device_classes():
            with suppress(AlreadyExists):
                await client.create(DEVICE_CLASSES, one)
    # One list for all nodes, and not a request for each of them.
    slices = await client.list(RESOURCE_SLICES)
    # (driver, node) -> its slices, by name; only those that could have been published here.
    there: dict[tuple[str, str], list[Json]] = {}
    for one in sorted(slices, key=lambda one: str(one["metadata"]["name"])):
        spec = one["spec"]
        if spec["driver"] in DRIVERS and spec.get("nodeName") == spec["pool"]["name"]:
            there.setdefault((spec["driver"], spec["nodeName"]), []).append(one)
    waiting = iter(names)

    async def work() -> None:
        for name in waiting:  # all workers share the one iterator
            wanted = {} if driver is None else pools(name, build(parse_machine(machine), name), driver)
            # Over all drivers: a driver without devices now may have left slices of an earlier form.
            pairs = [(wanted.get(one, []), there.get((one, name), [])) for one in DRIVERS]
            changed = [(specs, found) for specs, found in pairs if not same_slices(specs, found)]
            owner = None
            if any(specs for specs, _ in changed):
                uid = (await client.get(NODES, name))["metadata"]["uid"]
                owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
            for specs, found in changed:
                await _replace(client, owner, specs, found)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(WRITERS, len(names))):
            group.create_task(work())


def same_slices(wanted: Sequence[Json], found: Sequence[Json]) -> bool:
    """Whether the slices that are there say what is wanted, in one generation."""
    generations = {one["spec"]["pool"]["generation"] for one in found}
    # Several generations mean that an earlier attempt was cut: the pool is written as a whole again.
    return len(generations) < 2 and [_comparable_spec(one["spec"]) for one in found] == list(wanted)


def _comparable_spec(spec: Json) -> Json:
    """Without what the pool's history and the API server add."""
    plain = {**spec, "pool": _drop_key(spec["pool"], "generation")}
    if "devices" in spec:
        plain["devices"] = [
            {**one, "taints": [_drop_key(taint, "timeAdded") for taint in one["taints"]]} if "taints" in one else one
            for one in spec["devices"]
        ]
    return plain


def _drop_key(given: Json, key: str) -> Json:
    return {name: value for name, value in given.items() if name != key}


async def _replace(client: Client, owner: Json | None, specs: Sequence[Json], found: Sequence[Json]) -> None:
    """Write a pool's next generation over the slices that are there.

    Whoever reads meanwhile finds the pool incomplete, or whole in one generation: what is left over goes last.
    """
    # Above all that is there: the scheduler ignores slices of older generations at once.
    generation = max((one["spec"]["pool"]["generation"] for one in found), default=0) + 1
    before = {one["metadata"]["name"]: one for one in found}
    for number, spec in enumerate(specs):
        one = resource_slice(spec, number, generation, owner)
        if (old := before.pop(one["metadata"]["name"], None)) is None:
            await client.create(RESOURCE_SLICES, one)
        else:
            version = {"resourceVersion": old["metadata"]["resourceVersion"]}
            await client.replace(RESOURCE_SLICES, {**one, "metadata": one["metadata"] | version})
    for name in before:
        await client.delete(RESOURCE_SLICES, name)
