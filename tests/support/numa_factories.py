"""Machines by their zones, pods by what they ask for, and states that hold both. cpu here is in whole CPUs."""

from support.engine_factories import GIB, GPU, LEVELS, RACK, make_flavor, make_node

from engine.cluster.state import ClusterState
from engine.kubelet.machine import (
    CPU,
    MEMORY,
    Container,
    DeviceLayout,
    Kubelet,
    Layout,
    Machine,
    MemoryCells,
    NumaPlacement,
    PodShape,
    Qos,
    State,
    TopologyPolicy,
    Zone,
    ZoneUse,
)
from engine.model import Pod, PodSet, Policy, TopologyRequest

SINGLE, RESTRICTED = TopologyPolicy.SINGLE, TopologyPolicy.RESTRICTED
BEST_EFFORT, NONE = TopologyPolicy.BEST_EFFORT, TopologyPolicy.NONE


def units(amounts):
    """Whole CPUs and GiB as the engine counts them."""
    scale = {CPU: 1000, MEMORY: GIB}
    return {resource: amount * scale.get(resource, 1) for resource, amount in amounts.items()}


def make_layout(*zones, policy=SINGLE, ids=None, distances=None, exact=False, links=None, **kubelet):
    """Zones like {"cpu": 4, GPU: 2}; with ``exact`` every CPU is a core of its own, every device has one zone.

    ``links``: resource -> how its devices are linked.
    """
    resources = tuple(sorted({resource for zone in zones for resource in zone}))
    amounts = tuple(tuple(units(zone).get(resource, -1) for resource in resources) for zone in zones)
    cores, first = [], 0
    for zone in zones:
        cores.append(tuple((cpu,) for cpu in range(first, first + zone.get(CPU, 0))) if exact else ())
        first += zone.get(CPU, 0)
    devices = [
        tuple(DeviceLayout(zones=1 << at) for at, zone in enumerate(zones) for _ in range(zone.get(resource, 0)))
        if exact and resource not in {CPU, MEMORY}
        else ()
        for resource in resources
    ]
    known = {"static_cpu": CPU in resources, "static_memory": MEMORY in resources} | kubelet
    return Layout(
        zones=tuple(
            Zone(id=(ids or range(len(zones)))[at], distances=(distances or [()] * len(zones))[at], cores=cores[at])
            for at in range(len(zones))
        ),
        resources=resources,
        capacity=amounts,
        allocatable=amounts,
        kubelet=Kubelet(policy=policy, **known),
        devices=tuple(devices) if exact else (),
        exact=exact,
        links=tuple((links or {}).get(resource) for resource in resources) if links else (),
    )


def make_machine(*zones, node="n0", available=None, holds=None, state=None, device_ids=None, **more):
    """``available``: what NodeResourceTopology says is left, by zone; by default everything."""
    layout = make_layout(*zones, **more)
    if state is None and layout.exact:
        state = full_state(layout)
    if state is None:
        rows = layout.allocatable
        if available is not None:
            rows = tuple(tuple(units(zone).get(resource, -1) for resource in layout.resources) for zone in available)
        state = State(free=rows)
    if layout.exact and holds is None:
        holds = {}
    return Machine(node=node, layout=layout, state=state, holds=holds, device_ids=device_ids or {})


def full_state(layout):
    """Nothing runs."""
    cpus = sum(1 << cpu for zone in layout.zones for core in zone.cores for cpu in core)
    devices = tuple((1 << len(devices)) - 1 for devices in layout.devices)
    memory = tuple(MemoryCells(cells=1 << at) for at in range(len(layout.zones)))
    return State(free=layout.allocatable, cpus=cpus, devices=devices, memory=memory)


def make_shape(*containers, qos=Qos.GUARANTEED, **more):
    """Containers like {"cpu": 3, GPU: 1}, all of them apps, with limits equal to requests."""
    made = []
    for at, amounts in enumerate(containers):
        asked = tuple(sorted(units(amounts).items()))
        limits = asked if qos is Qos.GUARANTEED else tuple(item for item in asked if item[0] not in {CPU, MEMORY})
        made.append(Container(name=f"c{at}", requests=asked, limits=limits))
    return PodShape(containers=tuple(made), qos=qos, **more)


def requests_of(shape):
    total = {}
    for container in shape.containers:
        for resource, amount in container.requests:
            total[resource] = total.get(resource, 0) + amount
    return total


def at(*uses):
    """A placement from (zone id, {"cpu": 2}) pairs."""
    return NumaPlacement(zones=tuple(ZoneUse(zone=zone, amounts=units(amounts)) for zone, amounts in uses))


def on_zone(zone, **amounts):
    """A placement on one zone, in whole CPUs, GiB and GPUs."""
    names = {"gpu": GPU}
    return at((zone, {names.get(name, name): amount for name, amount in amounts.items()}))


def pod_on(key, shape, placement=None, node="n0", claim=None, *, observed=False):
    requests = requests_of(shape)
    return Pod(key=key, node=node, requests=requests, shape=shape, placement=placement, claim=claim, observed=observed)


def pods_of(shape, count=1, policy=Policy.REQUIRED, level=RACK, *, name="main", **more):
    level = None if policy is Policy.UNCONSTRAINED else level
    topology = TopologyRequest(policy=policy, level=level)
    return PodSet(name=name, count=count, requests=requests_of(shape), topology=topology, shape=shape, **more)


def state_of(*machines, rack_of=None, nodes=True, **more):
    """A state with a node for each machine, which has as much as its zones together."""
    state = ClusterState(**more)
    state.set_flavor(make_flavor(levels=LEVELS))
    for machine in machines:
        if nodes:
            state.set_node(node_for(machine, (rack_of or {}).get(machine.node, "r1")))
        state.set_machine(machine)
    return state


def node_for(machine, rack="r1", pods=110):
    layout = machine.layout
    total = {
        resource: sum(max(zone[row], 0) for zone in layout.allocatable) for row, resource in enumerate(layout.resources)
    }
    return make_node(machine.node, rack=rack, gpu=total.get(GPU, 0), pods=pods, allocatable={"cpu": 10**9, **total})


def left(state, resource="cpu", node="n0"):
    """What each zone has left, in whole CPUs or units."""
    layout, inside = state.machines[node].layout, state.state_inside(node)
    row = layout.resources.index(resource)
    scale = 1000 if resource == CPU else 1
    return [zone[row] // scale if zone[row] >= 0 else -1 for zone in inside.free]


def zones_of(placements):
    """The zones of each placement."""
    return [tuple(use.zone for use in placement.zones) for placement in placements]
