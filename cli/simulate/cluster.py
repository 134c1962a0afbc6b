"""The cluster of a simulation: generated, or from files."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from cli.cluster import dump as dumps
from cli.output import Failure
from cli.simulate.known import SimulationInput
from cli.simulate.options import Made, teams
from crds.levels import LevelNames
from engine.cluster.state import ClusterState
from engine.kubelet.machine import Machine
from engine.model import HOSTNAME_LABEL, Flavor, Node, Pod
from kube import objects
from kube.pods import convert
from kube.queues import cluster_queue, cohort, local_queue, plain_flavor
from kube.topologies import FlexTopo
from localcluster.kubelets import publish
from localcluster.kubelets.kubelet import PlayedKubelet
from localcluster.kubelets.specs import build, parse_kubelet, parse_machine
from localcluster.nodes import BLOCK_LABEL, GROUP_LABEL, RACK_LABEL
from queueing.model import ClusterQueue, FlavorQuotas, Quota, ResourceGroup
from simulator.model import SimulatedCluster
from ungater import kinds
from ungater.numa.sources import describe

FLAVOR = "default"
LEVELS = (BLOCK_LABEL, RACK_LABEL, HOSTNAME_LABEL)


def generated(made: Made, queues: int = 1) -> SimulatedCluster:
    """Equal servers in blocks and racks; with machines where the options describe one."""
    wires = servers(made)
    nodes = tuple(map(convert.node, wires))
    flavor = Flavor(name=FLAVOR, levels=LEVELS, node_labels={GROUP_LABEL: "tas"})
    machines = tuple(_machines(made, wires)) if made.machine else ()
    return SimulatedCluster((flavor,), nodes, machines, queues=tuple(_shared(nodes, teams(queues))))


def servers(made: Made) -> list[objects.Node]:
    """The nodes of a generated cluster."""
    return [msgspec.convert(body, objects.Node) for body in made.fleet().objects()]


def equipped(cluster: SimulatedCluster, found: SimulationInput, *, empty: bool = False) -> SimulatedCluster:
    """A cluster with the devices that are known; ``empty``: nobody has any yet."""
    facts = found.cache.state.cluster.devices.facts()
    return replace(cluster, devices=facts.unused if empty else facts)


def names_in(cluster: SimulatedCluster) -> LevelNames:
    """By which jobs may ask for levels there."""
    return LevelNames.read((one.name, one.levels, cluster.names.get(one.name)) for one in cluster.flavors)


def _machines(made: Made, wires: Sequence[objects.Node]) -> Iterator[Machine]:
    """What an agent would publish of one of them, for all: they are equal."""
    first = wires[0]
    kubelet = PlayedKubelet(build(parse_machine(made.machine), first.metadata.name), parse_kubelet(made.kubelet))
    ready = [{"type": "Ready", "status": "True", "reason": "Ready", "message": ""}]
    body = {
        "metadata": {"name": first.metadata.name},
        "spec": publish.flex_topo_spec(kubelet.hardware),
        "status": publish.flex_topo_status(kubelet, {}) | {"conditions": ready},
    }
    found = describe(first, flex=msgspec.json.decode(msgspec.json.encode(body), type=FlexTopo))
    if found.machine is None:
        raise Failure(f"--machine {made.machine!r}: {'; '.join(found.problems)}")
    for wire in wires:
        # Described once and copied: the nodes are equal, and reading a FlexTopo for each would cost time.
        yield msgspec.structs.replace(found.machine, node=wire.metadata.name)


def _shared(nodes: Sequence[Node], names: Sequence[str]) -> Iterator[ClusterQueue]:
    """Queues of one cohort that share all there is evenly."""
    have: dict[str, int] = {}
    for node in nodes:
        for resource, amount in node.allocatable.items():
            have[resource] = have.get(resource, 0) + amount
    for name in names:
        # What the division leaves over belongs to nobody: no queue gets more than another.
        quotas = {resource: Quota(nominal=amount // len(names)) for resource, amount in have.items()}
        flavors = FlavorQuotas(flavor=FLAVOR, resources=quotas)
        yield ClusterQueue(name=name, cohort="all", groups=(ResourceGroup(resources=tuple(have), flavors=(flavors,)),))


def recorded(known: SimulationInput, levels: Sequence[str], *, empty: bool = False) -> SimulatedCluster:
    """A cluster from files. ``levels``: where there is no ResourceFlavor; ``empty``: without the pods that are there.

    Raises:
        Failure: the files hold no node or no topology.
    """
    dump, files, found = known.dump, ", ".join(known.files), known.cache.state
    dumps.say_ignored(dump)
    if not dump.of(kinds.NODES):
        raise Failure(f"{files}: there is no Node; expected the output of kubectl get nodes,pods -o yaml")
    try:
        cohorts = tuple(map(cohort, dump.of(kinds.COHORTS)))
        queues = tuple(map(cluster_queue, dump.of(kinds.CLUSTER_QUEUES)))
        local = tuple(map(local_queue, dump.of(kinds.LOCAL_QUEUES)))
    except ValueError as error:
        raise Failure(f"{files}: {error}") from None
    flavors = tuple(found.flavors[name] for name in sorted(found.flavors))
    # A recording without Topogate has no flavors; then the levels come from the command line.
    if not flavors:
        keys = levels or (HOSTNAME_LABEL,)
        flavor = Flavor(name=FLAVOR, levels=tuple(keys))
        # Without one such node no job that asks for a level ever starts, and the result would say nothing of why.
        if not any(all(key in node.labels for key in keys) for node in found.nodes.values()):
            there = sorted({key for node in found.nodes.values() for key in node.labels})
            raise Failure(f"--level {', '.join(keys)}: no node has all these labels; nodes have {', '.join(there)}")
        flavors = (flavor,)
    elif levels:
        raise Failure("--level: the files have ResourceFlavors with levels of their own; leave it out")
    cluster = SimulatedCluster(
        flavors=flavors,
        nodes=tuple(found.nodes[name] for name in sorted(found.nodes)),
        machines=tuple(found.machines[name] for name in sorted(found.machines)),
        # Nobody knows how long recorded pods would still run, so they stay for the whole simulation.
        pods=() if empty else (*_unclaimed(found.pods.values()), *_slots(found)),
        plain=tuple(filter(None, map(plain_flavor, dump.of(kinds.FLAVORS)))),
        cohorts=cohorts,
        queues=queues,
        local=local,
        namespaces={one.metadata.name: one.metadata.labels or {} for one in dump.of(kinds.NAMESPACES)},
        names={
            one.metadata.name: one.spec.topology.names or {}
            for one in dump.of(kinds.FLAVORS)
            if one.spec.topology is not None
        },
    )
    return equipped(cluster, known, empty=empty)


def _unclaimed(pods: Iterable[Pod]) -> Iterator[Pod]:
    """The pods as ones that nobody owns: they stay."""
    for pod in sorted(pods, key=lambda pod: pod.key):
        yield msgspec.structs.replace(pod, claim=None)


def _slots(state: ClusterState) -> Iterator[Pod]:
    """Slots of admitted workloads whose pods are not there yet, as pods that stay."""
    for workload, parts in state.workloads.items():
        for pod_set, part in parts.items():
            for node, count in state.unclaimed_by_node(workload, pod_set):
                for number in range(count):
                    key = f"{workload}-{pod_set}-{node}-{number}"
                    yield Pod(key=key, node=node, requests=part.requests, shape=part.shape, devices=part.devices)
