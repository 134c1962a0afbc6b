"""Choosing among the sources of one node, and what to do where they disagree.

A NodeResourceTopology whose zones cannot be those of its node (`contradictions`) is not believed: without another
source the node counts as one that publishes nothing.

Where FlexTopo and NodeResourceTopology are both whole and differ in policy, scope or what is allocatable, one of them
is not this machine as it is. Then the safer picture counts until they agree: amounts alone, the smaller of each, the
stricter policy, scope ``pod`` where one of them says so. Of which zones PCIe roots are is then not known either. Where
they name different zones, no picture is safer: of zones that both name pods would wait for ever, if those are a part
of the machine. The node then counts as one that publishes nothing.
"""

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from engine.kubelet.machine import HUGEPAGES, MEMORY, Layout, Machine, Scope, State, TopologyPolicy
from kube import objects
from kube.links import XPU_RESOURCE
from kube.pods.requests import parsed
from kube.topologies import FlexTopo, NodeResourceTopology
from ungater.numa.sources import annotated, flex_topo, nrt
from ungater.numa.sources.checked import MOST, Problems
from ungater.numa.sources.contradictions import contradictions
from ungater.numa.sources.flex_hardware import roots_of

BOTH = "FlexTopo and NodeResourceTopology"
_STRICTNESS = (TopologyPolicy.NONE, TopologyPolicy.BEST_EFFORT, TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE)
_MEMORY_SLACK = 64  # one part in so many: exporters round, and a reboot moves a little


class SourceRules(msgspec.Struct, frozen=True):
    """What holds for all nodes.

    ``ignored``: resources that are not aligned, whatever the zones report. ``xpus``: those given out by XPU rules.
    """

    ignored: tuple[str, ...] = ()
    xpus: tuple[str, ...] = (XPU_RESOURCE,)


class DescribedMachine(msgspec.Struct, frozen=True):
    """A machine, or None where nothing usable is published, and what was wrong with what is.

    ``source`` names what the picture is from. ``zones_known``: its zone ids are the kubelet's. ``disagreements`` are
    between the sources; ``problems`` with one of them.
    """

    machine: Machine | None = None
    source: str = ""
    zones_known: bool = True
    problems: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()


def describe(
    node: objects.Node,
    *,
    topology: NodeResourceTopology | None = None,
    flex: FlexTopo | None = None,
    rules: SourceRules | None = None,
) -> DescribedMachine:
    """The picture of one node's machine. Never raises: what cannot be used is a problem."""
    found = _chosen(node, topology, flex, rules or SourceRules())
    machine = found.machine
    if machine is None or flex is None or not found.zones_known or found.disagreements:
        return found
    zones = {zone.id for zone in machine.layout.zones}
    roots = {root: zone for root, zone in roots_of(flex.spec).items() if zone in zones}
    return replace(found, machine=msgspec.structs.replace(machine, pcie_roots=roots)) if roots else found


def _chosen(
    node: objects.Node, topology: NodeResourceTopology | None, flex: FlexTopo | None, rules: SourceRules
) -> DescribedMachine:
    """By the source that knows most."""
    ignored, xpus = tuple(sorted(rules.ignored)), rules.xpus
    annotations, status = node.metadata.annotations or {}, node.status
    of_node = Problems(f"{annotated.KIND} {node.metadata.name}")
    version = flex_topo.version_of(status.node_info.kubelet_version if status.node_info else None)
    name = node.metadata.name
    of_flex, of_nrt = Problems(f"{flex_topo.KIND} {name}"), Problems(f"{nrt.KIND} {name}")
    full = part = None
    if flex is not None:
        full = flex_topo.machine_of(flex, of_flex, version=version, ignored=ignored, annotations=annotations, xpus=xpus)
    if topology is not None:
        spec = flex.spec if flex is not None else None
        part = nrt.machine_of(
            topology, of_nrt, version=version, ignored=ignored, spec=spec, annotations=annotations, xpus=xpus
        )
        if part is not None and (wrong := [*contradictions(part.layout, parsed(status.allocatable))]):
            of_nrt.add_problems(wrong)
            part = None
    problems = (*of_flex.texts, *of_nrt.texts)
    if full is not None and part is not None and full.layout.exact:
        different = tuple(_differences(full.layout, part.layout))
        if different:
            safer = _safer(full, part)
            safer = safer and annotated.with_free_gpus(safer, annotations, of_node)
            return DescribedMachine(safer, BOTH, problems=(*problems, *of_node.texts), disagreements=different)
        return DescribedMachine(full, flex_topo.KIND, problems=problems)
    if full is not None and full.layout.exact:
        return DescribedMachine(full, flex_topo.KIND, problems=problems)
    if part is not None:
        knows = full is not None and flex is not None and flex.status.kubelet is not None
        part = annotated.with_free_gpus(_told_more(part, full) if full and knows else part, annotations, of_node)
        return DescribedMachine(part, nrt.KIND, problems=(*problems, *of_node.texts))
    if full is not None and flex is not None and flex.status.kubelet is not None and full.layout.resources:
        full = annotated.with_free_gpus(full, annotations, of_node)
        return DescribedMachine(full, flex_topo.KIND, problems=(*problems, *of_node.texts))
    found = annotated.machine_of(name, annotations, status.allocatable, of_node, version=version, ignored=ignored)
    machine, known = found or (None, True)
    return DescribedMachine(machine, annotated.KIND if machine else "", known, (*problems, *of_node.texts))


def _told_more(part: Machine, full: Machine) -> Machine:
    """Amounts by NodeResourceTopology, with the kubelet's options, which it does not tell, by the agent."""
    theirs = part.layout.kubelet
    kubelet = msgspec.structs.replace(
        full.layout.kubelet,
        policy=theirs.policy,
        scope=theirs.scope,
        static_cpu=theirs.static_cpu,
        static_memory=theirs.static_memory,
    )
    return msgspec.structs.replace(
        part, layout=msgspec.structs.replace(part.layout, kubelet=kubelet, threads=full.layout.threads)
    )


def _differences(full: Layout, part: Layout) -> Iterator[str]:
    """What two layouts of one machine say differently."""
    ours, theirs = [zone.id for zone in full.zones], [zone.id for zone in part.zones]
    if ours != theirs:
        yield f"zones: FlexTopo has {_join_numbers(ours)}, NodeResourceTopology has {_join_numbers(theirs)}"
    for what in ("policy", "scope"):
        one, other = getattr(full.kubelet, what), getattr(part.kubelet, what)
        if one != other:
            yield f"Topology Manager {what}: FlexTopo has {one}, NodeResourceTopology has {other}"
    mine, others = _rows(full, full.allocatable), _rows(part, part.allocatable)
    found: list[str] = []
    for zone in set(ours) & set(theirs):
        for resource in mine[zone].keys() & others[zone].keys():
            one, other = mine[zone][resource], others[zone][resource]
            memory = resource == MEMORY or resource.startswith(HUGEPAGES)
            slack = max(one, other) // _MEMORY_SLACK if memory else 0
            if abs(one - other) > slack:
                what = f"allocatable {resource} of zone {zone}"
                found.append(f"{what}: FlexTopo has {one}, NodeResourceTopology has {other}")
    yield from sorted(found)[:MOST]
    if len(found) > MOST:
        yield f"and {len(found) - MOST} more"


def _rows(layout: Layout, table: tuple[tuple[int, ...], ...]) -> dict[int, dict[str, int]]:
    """Amounts by zone id and resource; what a zone does not report is left out."""
    return {
        zone.id: {name: amount for name, amount in zip(layout.resources, row, strict=True) if amount >= 0}
        for zone, row in zip(layout.zones, table, strict=True)
    }


def _safer(full: Machine, part: Machine) -> Machine | None:
    """See the module."""
    ours, theirs = full.layout, part.layout
    zones = ours.zones
    if [zone.id for zone in zones] != [zone.id for zone in theirs.zones]:
        return None
    resources = tuple(sorted({*ours.resources, *theirs.resources}))

    def least(one: tuple[tuple[int, ...], ...], other: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        left, right = _rows(ours, one), _rows(theirs, other)
        return tuple(
            tuple(
                min((rows[zone.id][name] for rows in (left, right) if name in rows[zone.id]), default=-1)
                for name in resources
            )
            for zone in zones
        )

    kubelet = msgspec.structs.replace(
        ours.kubelet,
        policy=max(ours.kubelet.policy, theirs.kubelet.policy, key=_STRICTNESS.index),
        scope=Scope.POD if Scope.POD in {ours.kubelet.scope, theirs.kubelet.scope} else Scope.CONTAINER,
        static_cpu=ours.kubelet.static_cpu or theirs.kubelet.static_cpu,
        static_memory=ours.kubelet.static_memory or theirs.kubelet.static_memory,
    )
    chosen = dict(zip(theirs.resources, theirs.links, strict=False))
    links = tuple(chosen.get(name) for name in resources)  # how devices are chosen
    layout = Layout(
        # Amounts alone: single CPUs are not to be foreseen by a picture that may be wrong.
        zones=tuple(msgspec.structs.replace(zone, cores=(), uncore=()) for zone in zones),
        resources=resources,
        capacity=least(ours.capacity, theirs.capacity),
        allocatable=least(ours.allocatable, theirs.allocatable),
        kubelet=kubelet,
        threads=ours.threads,
        links=links if any(each is not None for each in links) else (),
        ignored=ours.ignored,
    )
    return Machine(node=full.node, layout=layout, state=State(free=least(full.state.free, part.state.free)))


def _join_numbers(zones: list[int]) -> str:
    return ", ".join(map(str, zones))
