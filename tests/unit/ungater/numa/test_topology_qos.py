"""``topogate.dev/topology-qos`` with ``numa-policy``, on machines of 2 sockets, 8 zones and 8 GPUs (paper, Table 1)."""

import msgspec
import pytest
from support.engine_factories import GPU, ask, nodes_of
from support.numa_factories import BEST_EFFORT, at, make_machine, make_shape, pod_on, pods_of, state_of

from crds.constants import NUMA_POLICY, TOPOLOGY_QOS
from engine.kubelet.machine import TopologyPolicy
from engine.reasons import Reason
from engine.results import Refusal
from kube.objects import Container, PodSpec, ResourceRequirements
from ungater.model.job_view import shape_of

EIGHT = [{"cpu": 8, GPU: 1}] * 8
FAR = [tuple(10 if one == other else 12 if one // 4 == other // 4 else 32 for other in range(8)) for one in range(8)]
WHOLE = {"cpu": "32", GPU: "4"}  # Workload A
ACROSS, ONE_SOCKET, CROSSED = {0, 1, 4, 5}, {4, 5, 6, 7}, {0, 2, 5, 7}


def cluster(*free, takes=None):
    """A machine for each set of free zones; a pod that ``takes`` this is in the others. Zones 0 to 3 are one socket."""
    machines = []
    for number in range(len(free)):
        made = make_machine(*EIGHT, node=f"n{number}", policy=BEST_EFFORT, distances=FAR)
        zones = tuple(msgspec.structs.replace(zone, socket=at // 4) for at, zone in enumerate(made.layout.zones))
        machines.append(msgspec.structs.replace(made, layout=msgspec.structs.replace(made.layout, zones=zones)))
    state = state_of(*machines)
    amounts = takes or EIGHT[0]
    for number, zones in enumerate(free):
        for zone in set(range(8)) - zones:
            here = at((zone, amounts))
            state.set_pod(pod_on(f"p{number}-{zone}", make_shape(amounts), here, f"n{number}"))
    return state


def shape(**said):
    """What is made of a pod with these annotations."""
    annotations = {{"policy": NUMA_POLICY, "qos": TOPOLOGY_QOS}[name]: value for name, value in said.items()}
    container = Container(name="llm", resources=ResourceRequirements(limits=WHOLE))
    return shape_of(PodSpec(containers=(container,)), annotations, qos_class="Guaranteed")


def placed(state, **said):
    found = ask(state, pods_of(shape(**said)))
    return found.reason if isinstance(found, Refusal) else set(nodes_of(found))


@pytest.mark.parametrize(
    ("policy", "qos", "holds"),
    [
        (None, None, "none"),
        ("socket", None, "socket"),
        ("none", "guaranteed", "none"),
        ("socket", "guaranteed", "socket"),
        ("socket", "numa-guaranteed", "restricted"),
        ("socket", "best-effort", "best-effort"),
        ("single-numa-node", "guaranteed", "single-numa-node"),
        ("single-numa-node", "numa-guaranteed", "single-numa-node"),
        ("single-numa-node", "best-effort", "best-effort"),
        ("restricted", "numa-guaranteed", "restricted"),
        ("best-effort", "guaranteed", "best-effort"),
        (None, "guaranteed", "restricted"),
        (None, "numa-guaranteed", "restricted"),
        (None, "best-effort", "best-effort"),
    ],
)
def test_what_is_guaranteed_has_to_hold_and_nothing_else(policy, qos, holds):
    said = {name: value for name, value in (("policy", policy), ("qos", qos)) if value is not None}
    assert shape(**said).wish is TopologyPolicy(holds)


@pytest.mark.parametrize("qos", ["numa-guaranteed", "best-effort"])
def test_a_socket_that_is_no_more_than_preferred_keeps_nobody_waiting(qos):
    across = cluster(ACROSS)
    assert placed(across, policy="socket") is Reason.NUMA_ALIGNMENT
    assert placed(across, policy="socket", qos="guaranteed") is Reason.NUMA_ALIGNMENT
    assert placed(across, policy="socket", qos=qos) == {"n0"}
    assert placed(across, qos=qos) == {"n0"}


@pytest.mark.parametrize("qos", ["guaranteed", "numa-guaranteed", "best-effort"])
def test_the_machine_where_it_is_in_one_socket_is_taken_first(qos):
    state = cluster(ACROSS, ONE_SOCKET, CROSSED)
    assert placed(state, policy="socket", qos=qos) == {"n1"}
    assert placed(state, qos=qos) == {"n1"}


def test_more_zones_than_it_needs_are_refused_where_that_is_guaranteed():
    crumbs = cluster(set(), takes={"cpu": 4})
    assert placed(crumbs, qos="best-effort") == {"n0"}
    assert placed(crumbs, qos="numa-guaranteed") is Reason.NUMA_ALIGNMENT
    assert placed(crumbs, policy="socket", qos="numa-guaranteed") is Reason.NUMA_ALIGNMENT
