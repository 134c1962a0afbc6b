"""Servers full of admitted workloads, and workloads that preempt there: the queue core's own cycle, and kubelets.

What the controller does with a preemptor, step by step: a cycle plans, the pods of its victims end, a cycle admits it
into the room that was made, and the kubelet of the node that its pod is sent to takes it, or refuses it. Nothing here
chooses anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from engine.cluster.assignment import Assignment, Slice
from engine.cluster.state import ClusterState
from engine.kubelet.machine import Machine, State, TopologyPolicy
from engine.model import HOSTNAME_LABEL, Flavor, Node, Pod, PodSet, Policy, TopologyRequest
from engine.preemption.model import Rules as VictimRules
from queueing.cycle.cycle import Admitted, Preempting, cycle
from queueing.model import ClusterQueue, LocalQueue, Preemption, Rules, Within, Workload, asks_of
from queueing.queues.entry import AssumedAdmission
from queueing.queues.queues import Queues
from simulator.kubelets import Kubelets
from simulator.model import NAMESPACE, QUEUE
from simulator.servers import GPU, Instance, InstanceClass, Server, seated, shape_of

FLAVOR: Final = "servers"
MAIN: Final = "main"
ANYWHERE: Final = TopologyRequest(policy=Policy.UNCONSTRAINED)
ONE_NODE: Final = TopologyRequest(policy=Policy.REQUIRED, level=HOSTNAME_LABEL)


@dataclass(frozen=True)
class MadeRoom:
    """What came of one preemption: who had to go, and what the preemptor's kubelet gave it.

    ``refused``: the kubelet's reason, "" where it took the pod; ``crosses``: its GPUs are on several sockets though one
    socket has as many.
    """

    node: str
    victims: tuple[str, ...]
    refused: str
    crosses: bool

    @property
    def hit(self) -> bool:
        """Whether it runs aligned, as Table 4 counts."""
        return not self.refused and not self.crosses


class SaturatedCluster:
    """See the module. Every instance is a workload of one pod, in one queue that preempts lower priorities."""

    def __init__(self, server: Server, instances: Mapping[str, Sequence[Instance]], rules: VictimRules) -> None:
        """``instances``: by node, those that it has."""
        self.state = ClusterState()
        self.queues = Queues(Rules(victims=rules))
        self.queues.set_namespace(NAMESPACE, {})
        self.queues.set_cluster_queue(
            ClusterQueue(name=QUEUE, unlimited=True, preemption=Preemption(within=Within.LOWER))
        )
        self.queues.set_local_queue(LocalQueue(namespace=NAMESPACE, name=QUEUE, cluster_queue=QUEUE))
        self.state.set_flavor(Flavor(name=FLAVOR, levels=(HOSTNAME_LABEL,)))
        machines: list[tuple[Machine, State]] = []
        for name, on in instances.items():
            self.state.set_node(Node(name=name, labels={HOSTNAME_LABEL: name}, allocatable=server.amounts))
            held, left = seated(server, name, on)
            holds = {_key(one): placement for one, placement in held.items()}
            machines.append((Machine(name, server.layout, left, server.ids, holds), left))
            self.state.set_machine(machines[-1][0])
        self.kubelets = Kubelets(machines)
        self._number = 0
        for name, on in instances.items():
            for one in on:
                self._started(one, name)

    def _started(self, one: Instance, node: str) -> None:
        """An instance runs since before the simulation began."""
        workload = self._workload(_key(one.id), one.of, ANYWHERE, TopologyPolicy.NONE)
        (pod_set,) = workload.pod_sets
        slots = Assignment(
            pod_set=MAIN,
            flavor=FLAVOR,
            levels=(HOSTNAME_LABEL,),
            requests=pod_set.requests,
            slices=(Slice((node,), 1, ((node, 1),)),),
            shape=pod_set.shape,
        )
        grant = AssumedAdmission(QUEUE, {MAIN: 1}, {MAIN: {}}, {}, (slots,), asks_of(workload))
        self.queues.restore(self.state, workload, grant, 0.0)
        self._bind(workload, node)

    def _workload(self, key: str, of: InstanceClass, topology: TopologyRequest, wish: TopologyPolicy) -> Workload:
        self._number += 1
        pod_set = PodSet(
            name=MAIN,
            count=1,
            requests={name: amount for name, amount in of.requests.items() if name != "pods"},
            topology=topology,
            namespace=NAMESPACE,
            shape=shape_of(of, wish),
        )
        created = float(self._number)
        return Workload(
            key=key,
            namespace=NAMESPACE,
            queue=QUEUE,
            pod_sets=(pod_set,),
            priority=of.priority,
            created=created,
            uid=key,
        )

    def _bind(self, workload: Workload, node: str) -> None:
        """Its pod is on a node whose kubelet took it, and the node says what it holds."""
        (pod_set,), held = workload.pod_sets, self.kubelets.held(node, workload.key)
        self.state.set_pod(
            Pod(
                key=workload.key,
                node=node,
                requests=pod_set.requests,
                namespace=NAMESPACE,
                claim=(workload.key, MAIN),
                shape=pod_set.shape,
                placement=held,
                observed=held is not None,
            )
        )
        self.queues.bind(workload.key, workload.key)

    # -- one more ---------------------------------------------------------------------------------------------

    def plan(
        self,
        name: str,
        of: InstanceClass,
        *,
        topology: TopologyRequest = ANYWHERE,
        wish: TopologyPolicy = TopologyPolicy.NONE,
    ) -> Preempting | Admitted | None:
        """Submit one more instance and have a cycle decide; None where it has to wait, and is forgotten."""
        workload = self._workload(_key(name), of, topology, wish)
        self.queues.submit(workload, 0.0)
        made = cycle(self.state, self.queues, 0.0)
        decisions: list[Preempting | Admitted] = [*made.preempting, *made.admitted]
        for decided in decisions:
            if decided.key == workload.key:
                return decided
        self.queues.forget(self.state, workload.key)
        return None

    def carry_out(self, decided: Preempting | Admitted) -> MadeRoom:
        """Have the victims' pods end, the preemptor admitted, and its pod arrive at its node."""
        victims: tuple[str, ...] = ()
        if isinstance(decided, Preempting):
            victims = tuple(victim.key for victim in decided.victims)
            for key in victims:
                self.end(key)
            admitted = cycle(self.state, self.queues, 0.0).admitted
            assert decided.key in {one.key for one in admitted}  # noqa: S101  (all its victims are gone)
        ((node, _),) = (on for part in decided.grant.assignments for piece in part.slices for on in piece.nodes)
        workload = self.queues.entries[decided.key].workload
        refused = self.kubelets.admit(node, workload.key, workload.pod_sets[0].shape)
        if refused:
            self.queues.forget(self.state, workload.key)
        else:
            self._bind(workload, node)
        self._report(node)
        names = tuple(key.removeprefix(f"{NAMESPACE}/") for key in victims)
        return MadeRoom(node, names, refused, self.kubelets.crosses(node, workload.key, GPU))

    def end(self, key: str) -> None:
        """A workload's pod ends, and it gives back all it held."""
        node = self.state.pods[key].node
        self.kubelets.remove(node, key)
        self.state.remove_pod(key)
        self.queues.unbind(key)
        self.queues.forget(self.state, key)
        self._report(node)

    def _report(self, node: str) -> None:
        """The node's agent publishes what is there now."""
        report = self.kubelets.report(node)
        if report is not None:
            self.state.set_machine(report)


def _key(name: str) -> str:
    return f"{NAMESPACE}/{name}"
