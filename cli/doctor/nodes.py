"""What is wrong with nodes, flavors, agents and kubelets. Pure: what was read in, findings out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise

import msgspec
from msgspec.structs import replace

from cli.cluster.simulated_nodes import is_simulated
from cli.doctor import labels
from cli.doctor.findings import Finding, error, warning
from cli.doctor.hostnames import shared_host_names
from cli.topology.known import UNIQUE, is_wider_level
from cli.topology.odd import odd_one
from cli.topology.survey import Labelled, labelled, listed, nesting, with_verb
from crds.constants import GPU_LINK, NUMA_POLICY, TOPOLOGY_QOS
from crds.levels import LevelNames
from engine.model import UNKNOWN_VALUES
from kube.objects import Node, Pod, ResourceFlavor
from kube.topologies import FlexTopo, NodeResourceTopology
from ungater.numa.sources import SourceRules, describe

ALIGNED = frozenset({"single-numa-node", "restricted", "socket"})  # wishes that a kubelet without a policy cannot keep
NO_POLICY = "none"
POLICIES = "docs/numa.md, Change a kubelet's policies"


class NodesView(msgspec.Struct, frozen=True):
    """What is looked at. ``asked``: annotations of templates and pods that are there, with whose they are.

    ``install``: the command that brings this installation up to date. ``placed``: pods on nodes, with the owners
    (``Job team/train``) that they were let go for. ``rules``: how the inside of nodes is read.
    """

    nodes: Sequence[Node]
    flavors: Sequence[ResourceFlavor]
    topologies: Mapping[str, NodeResourceTopology]
    flexes: Mapping[str, FlexTopo]
    asked: Sequence[tuple[str, Mapping[str, str]]]
    agent: bool
    install: str = "topogate install"
    placed: Sequence[tuple[str, Pod]] = ()
    rules: SourceRules | None = None


def findings(seen: NodesView) -> Iterator[Finding]:
    """All findings about nodes."""
    nodes = labelled(seen.nodes)
    flavors = [one for one in seen.flavors if one.spec.topology is not None and one.spec.topology.levels]
    if not flavors:
        text = "no ResourceFlavor has a topology, so nothing that asks for one can be placed"
        yield error("flavors", text, f"{seen.install} --topology auto")
    for flavor in flavors:
        yield from _flavor(flavor, nodes, seen)
    for one, other in combinations(flavors, 2):
        both = {node.name for node in _selected(one, nodes)} & {node.name for node in _selected(other, nodes)}
        if both:
            which = f"{one.metadata.name} and {other.metadata.name}"
            text = f"{with_verb(sorted(both), 'belongs', 'belong')} to {which}: counted twice"
            yield error("flavors", text, f"kubectl delete resourceflavors.topogate.dev {other.metadata.name}")
    topologies = [(one.metadata.name, one.spec.topology) for one in flavors if one.spec.topology is not None]
    known = LevelNames.read((name, topology.levels, topology.names) for name, topology in topologies)
    for text in sorted({text for _, topology in topologies for text in topology.names or {}}):
        if several := known.ambiguous_levels(text):
            message = (
                f'"{text}" is the name of different levels ({", ".join(several)}): requests by it are refused, but in '
                "queues whose flavors mean one of them"
            )
            mend = "where Jobs name no queue, or one with several of these flavors, have them say the level itself"
            yield warning("flavors", message, f"{mend}: kubectl get resourceflavors.topogate.dev -o wide lists them")
    yield from _outside(flavors, nodes)
    yield from shared_host_names(nodes)
    yield from _insides(seen, flavors, nodes)
    yield from _published(seen)


def _selected(flavor: ResourceFlavor, nodes: Sequence[Labelled]) -> list[Labelled]:
    wanted = (flavor.spec.node_labels or {}).items()
    topology = flavor.spec.topology
    said = topology.unknown_values if topology is not None else None
    # An empty list is an answer: then every value is a domain.
    unknown = UNKNOWN_VALUES if said is None else frozenset(said)
    return [replace(node, unknown=unknown) for node in nodes if wanted <= node.labels.items()]


def _flavor(flavor: ResourceFlavor, nodes: Sequence[Labelled], seen: NodesView) -> Iterator[Finding]:
    name, inside = f"flavor {flavor.metadata.name}", _selected(flavor, nodes)
    levels = flavor.spec.topology.levels if flavor.spec.topology is not None else ()
    wanted = ",".join(f"{key}={value}" for key, value in (flavor.spec.node_labels or {}).items())
    if not inside:
        yield error(name, f"no node has its nodeLabels {wanted}", f"kubectl label node NODE {wanted.replace(',', ' ')}")
        return
    yield from labels.without_a_domain(name, inside, levels, seen.install)
    yield from labels.of_tools(name, inside, levels, seen.install)
    yield from labels.changed(name, inside, levels, seen.placed)
    nested = True
    for wide, narrow in pairwise(levels):
        how = nesting(inside, wide, narrow)
        # Labels that cross prove nothing by themselves; with the usual names they do.
        if how.turned or (how.crossed and is_wider_level(narrow, wide)):
            lies = "lies within" if how.turned else "is narrower than"
            text = f"its levels are the wrong way round: {wide} {lies} {narrow}"
            order = ",".join({wide: narrow, narrow: wide}.get(level, level) for level in levels)
            mend = f"{seen.install} --topology {order} --flavor {flavor.metadata.name}-2"
            yield error(name, text, f"kubectl delete resourceflavors.topogate.dev {flavor.metadata.name}; {mend}")
        elif how.mistaken or (how.straddling and narrow in UNIQUE):
            value, parts = how.odd
            # The fewest nodes are the likeliest mistake, and the cheapest one to mend.
            few = min(parts, key=lambda above: (len(parts[above]), above))
            right = next(above for above in sorted(parts) if above != few)
            mend = labels.relabel(parts[few], wide, right, overwrite=True)
            yield warning(name, f"labels that do not nest: {how}; {value} counts as {len(parts)} domains", mend)
            nested = False
    # Domains that do not nest look odd in size too: that would be the same fault twice.
    if nested and (odd := odd_one(inside, levels)) is not None:
        mend = labels.relabel(odd.nodes, odd.key, odd.value, overwrite=True)
        look = f"kubectl get nodes -L {','.join(levels)}"
        yield warning(name, str(odd), mend if len(odd.nodes) == 1 else look)


def _outside(flavors: Sequence[ResourceFlavor], nodes: Sequence[Labelled]) -> Iterator[Finding]:
    if not flavors:
        return
    inside = {node.name for flavor in flavors for node in _selected(flavor, nodes)}
    # Control planes and storage nodes belong to no flavor for a reason.
    out = [node.name for node in nodes if node.accelerators and node.name not in inside]
    if out:
        labels = " ".join(f"{key}={value}" for key, value in (flavors[0].spec.node_labels or {}).items())
        text = f"{with_verb(out, 'has', 'have')} accelerators and no flavor, so nothing is placed there"
        yield warning("nodes", text, f"kubectl label node {' '.join(out[:4])} {labels}")


def _insides(seen: NodesView, flavors: Sequence[ResourceFlavor], nodes: Sequence[Labelled]) -> Iterator[Finding]:
    """Agents that are missing, and kubelets that cannot keep what is asked for."""
    inside = {node.name: node for flavor in flavors for node in _selected(flavor, nodes)}
    known = {name for name in inside if name in seen.flexes or name in seen.topologies}
    unknown = sorted(name for name, node in inside.items() if node.accelerators and name not in known)
    fake = {one.metadata.name for one in seen.nodes if is_simulated(one)}
    simulated, blind = [name for name in unknown if name in fake], [name for name in unknown if name not in fake]
    wishes = [(who, said) for who, said in seen.asked if {NUMA_POLICY, TOPOLOGY_QOS, GPU_LINK} & said.keys()]
    silent = [name for name in blind if name not in seen.flexes]
    if simulated and wishes:  # without one they have no kubelet that could refuse a pod, and no agent sees them
        who = with_verb(simulated, "is", "are")
        text = f"{wishes[0][0]} asks for NUMA zones or links, but {who} simulated without any"
        yield error("agents", text, "topogate local nodes --machine MACHINE (docs/localcluster.md)")
    if blind and seen.agent:
        mend = "kubectl -n topogate-system-agent get pods -o wide"
        yield warning(
            "agents", f"nothing is known of the inside of {listed(silent)}, though the agent is installed", mend
        )
    elif blind and wishes:
        text = f"{wishes[0][0]} asks for NUMA zones or links, but nothing is known of the inside of {listed(blind)}"
        yield error("agents", text, f"{seen.install} --agent")
    elif blind and not known:
        text = f"no node publishes its inside ({listed(blind)}), so kubelets may refuse pods that are sent there"
        yield warning("agents", text, f"{seen.install} --agent")
    elif blind:
        yield warning("agents", f"nothing is known of the inside of {listed(blind)}", f"{seen.install} --agent")
    yield from _kubelets(seen, inside, wishes)


def _published(seen: NodesView) -> Iterator[Finding]:
    """What exporters publish of nodes' insides and cannot be so, the same of several nodes together."""
    found: dict[str, list[str]] = {}
    for node in seen.nodes:
        name = node.metadata.name
        if (topology := seen.topologies.get(name)) is None:
            continue
        described = describe(node, topology=topology, flex=seen.flexes.get(name), rules=seen.rules)
        for text in (*described.problems, *described.disagreements):
            # Without the node's name the same fault of a whole pool is one line.
            found.setdefault(text.replace(f" {name}: ", ": ", 1), []).append(name)
    for text, names in found.items():
        look = f"kubectl get noderesourcetopology,flextopo {names[0]} -o yaml"
        mend = f"mend or restart the exporter that writes it: {look}"
        yield warning("zones", f"{listed(names)}: {text}", mend if seen.agent else f"{seen.install} --agent; or {mend}")


def _kubelets(
    seen: NodesView, inside: Iterable[str], wishes: Sequence[tuple[str, Mapping[str, str]]]
) -> Iterator[Finding]:
    strict = [(who, said) for who, said in wishes if said.get(NUMA_POLICY) in ALIGNED]
    if not strict:
        return
    configs = {name: kubelet for name in inside if (kubelet := _policy(seen, name)) is not None}
    lax = sorted(name for name, (topology, _) in configs.items() if topology == NO_POLICY)
    if lax:
        who, said = strict[0]
        text = (
            f"{who} asks for {NUMA_POLICY}: {said[NUMA_POLICY]}, but the kubelets of {listed(lax)} have "
            f"topologyManagerPolicy {NO_POLICY} and align nothing"
        )
        yield warning("kubelets", text, _other_policy("topologyManagerPolicy: restricted", lax))
    floating = sorted(name for name, (_, cpus) in configs.items() if cpus == NO_POLICY)
    if floating:
        text = f"the kubelets of {listed(floating)} have cpuManagerPolicy {NO_POLICY}, and pin no CPUs to a zone"
        mend = _other_policy("cpuManagerPolicy: static", floating, "delete /var/lib/kubelet/cpu_manager_state, ")
        yield warning("kubelets", text, mend)


def _other_policy(policy: str, nodes: Sequence[str], state: str = "") -> str:
    """How kubelets get another policy. A restart alone fails pods that run, or ends in no kubelet (Kubernetes 1.37)."""
    first = nodes[0]
    return (
        f"make a node pool whose kubelets have {policy}; or node by node: kubectl drain {first} --ignore-daemonsets "
        f"--delete-emptydir-data, stop its kubelet, set {policy} in its configuration, {state}start it, kubectl "
        f"uncordon {first} ({POLICIES})"
    )


def _policy(seen: NodesView, node: str) -> tuple[str, str] | None:
    """The Topology Manager's and the CPU Manager's policy ("": not told); None where neither is known."""
    flex = seen.flexes.get(node)
    if flex is not None and flex.status.kubelet is not None:
        return flex.status.kubelet.topology_manager_policy, flex.status.kubelet.cpu_manager_policy
    exported = seen.topologies.get(node)
    if exported is None:
        return None
    told = {one.name: str(one.value) for one in exported.attributes or ()}
    policy = told.get("topologyManagerPolicy")
    # `topologyPolicies` is deprecated in v1alpha2, in favor of attributes; some exporters fill nothing else.
    if policy is None and exported.topology_policies:
        policy = (
            NO_POLICY if exported.topology_policies[0].lower().startswith("none") else exported.topology_policies[0]
        )
    return None if policy is None else (policy, told.get("cpuManagerPolicy", ""))
