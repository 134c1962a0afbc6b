"""Two that were written apart: what the engine predicts from a FlexTopo, and what the simulated kubelet does."""

import random

import pytest

from engine.kubelet.admit import admit, placement_of
from engine.kubelet.machine import CPU, Container, ContainerKind, PodShape, Qos
from kube.connection.answers import decode
from kube.objects import Node, ObjectMeta
from kube.patches import encode
from kube.topologies import FlexTopo
from localcluster.kubelets import publish
from localcluster.kubelets.kubelet import PlayedKubelet
from localcluster.kubelets.pods import PlayedPod, make_container
from localcluster.kubelets.specs import GPU, NIC, build, parse_kubelet, parse_machine
from ungater.numa.sources.describe import describe

MACHINES = (
    "2 sockets / 8 NUMA / 64 cores / 8 GPUs",
    "2 NUMA / 32 cores / 8 GPUs / 4 NICs",
    "1 socket / 4 NUMA / 16 cores / 4 GPUs",
)
KUBELETS = (
    "restricted, pod",
    "single-numa-node, container",
    "best-effort, container, prefer-closest-numa-nodes",
    "restricted, container, full-pcpus-only",
    "single-numa-node, pod, no-static-memory",
    "none, distribute-cpus-across-numa",
)
ARRIVALS = 40


def containers(dice):
    """One to three containers as (name, kind, requests and limits)."""
    kinds = [*dice.choice([(), (), ("init",), ("sidecar",), ("init", "sidecar")]), "app"]
    for number, kind in enumerate(kinds):
        cpu = dice.choice(["1", "2", "4", "6", "12", "500m"])
        amounts = {"cpu": cpu, "memory": f"{dice.choice([1, 8, 40])}Gi"}
        devices = {GPU: str(dice.choice([0, 1, 1, 2, 4]))} if dice.random() < 0.6 else {}
        devices |= {NIC: "1"} if dice.random() < 0.2 else {}
        yield f"c{number}", kind, amounts, devices


def asked(dice, uid, qos):
    """The same pod for the kubelet and for the engine."""
    parts = list(containers(dice))
    limits = [{**(amounts if qos is Qos.GUARANTEED else {}), **devices} for _, _, amounts, devices in parts]
    pod = PlayedPod(
        uid,
        tuple(
            make_container(name, kind, amounts, most)
            for (name, kind, amounts, _), most in zip(parts, limits, strict=True)
        ),
    )
    assert pod.qos == qos
    shape = PodShape(
        containers=tuple(
            Container(name=c.name, kind=ContainerKind(c.kind), requests=whole(c.requests), limits=whole(c.limits))
            for c in pod.containers
        ),
        qos=qos,
    )
    return pod, shape


def whole(amounts):
    return tuple(sorted((name, int(amount * 1000 if name == CPU else amount)) for name, amount in amounts.items()))


def seen(kubelet):
    body = {
        "metadata": {"name": "n"},
        "spec": publish.flex_topo_spec(kubelet.hardware),
        "status": publish.flex_topo_status(kubelet, {}),
    }
    found = describe(Node(metadata=ObjectMeta(name="n")), flex=decode(FlexTopo, encode(body), "flextopo"))
    assert found.problems == ()
    assert found.machine.layout.exact
    return found.machine


def cpus_by_zone(kubelet, uid):
    mask = 0
    for held in kubelet.held_by_container(uid).values():
        mask |= held.cpus
    counts = {
        zone.id: (mask & cpus).bit_count()
        for zone, cpus in zip(kubelet.hardware.zones, kubelet.hardware.zone_cpus, strict=True)
    }
    return {zone: 1000 * count for zone, count in counts.items() if count}


def test_memory_of_init_containers_is_free_when_the_others_run():
    """As the real kubelet does it (`memorymanager.AddContainer`); CPUs and devices stay held."""
    kubelet = PlayedKubelet(build(parse_machine(MACHINES[1]), "n"), parse_kubelet("single-numa-node, container"))
    amounts = {"cpu": "2", "memory": "8Gi", GPU: "1"}
    kinds = {"first": "init", "beside": "sidecar", "second": "init", "main": "app"}
    pod = PlayedPod("u", tuple(make_container(name, kind, amounts, amounts) for name, kind in kinds.items()))
    assert kubelet.admit_pod(pod).refusal is None
    before = kubelet.held_by_container("u")
    total = sum(zone.free["memory"] for zone in kubelet.memory.zones)
    kubelet.started(pod)
    after = kubelet.held_by_container("u")
    assert {name for name, held in after.items() if held.memory} == {"beside", "main"}
    assert [(held.cpus, held.devices) for held in after.values()] == [(h.cpus, h.devices) for h in before.values()]
    given_back = sum(block.size for name in ("first", "second") for block in before[name].memory)
    assert sum(zone.free["memory"] for zone in kubelet.memory.zones) == total + given_back
    kubelet.remove("u")
    assert all(zone.free == zone.allocatable and not zone.assignments for zone in kubelet.memory.zones)


@pytest.mark.parametrize("kubelet_text", KUBELETS)
@pytest.mark.parametrize("machine_text", MACHINES)
def test_they_agree_on_every_pod_of_a_random_stream(machine_text, kubelet_text):
    dice = random.Random(f"{machine_text} {kubelet_text}")
    kubelet = PlayedKubelet(build(parse_machine(machine_text), "n"), parse_kubelet(kubelet_text))
    running, refused = [], 0
    for number in range(ARRIVALS):
        pod, shape = asked(dice, f"u{number}", dice.choice([Qos.GUARANTEED, Qos.GUARANTEED, Qos.BURSTABLE]))
        machine = seen(kubelet)
        predicted = admit(machine.layout, machine.state, shape)
        verdict = kubelet.admit_pod(pod)
        reason = verdict.refusal.reason if verdict.refusal else ""
        assert (predicted.admitted, predicted.reason) == (verdict.refusal is None, reason), (number, pod)
        if reason:
            refused += 1
            continue
        running.append(pod.uid)
        placement = placement_of(machine, predicted)
        cpus = {use.zone: use.amounts[CPU] for use in placement.zones if use.amounts.get(CPU)}
        assert cpus == cpus_by_zone(kubelet, pod.uid), (number, pod)
        if dice.random() < 0.4:
            kubelet.remove(running.pop(dice.randrange(len(running))))
    assert 0 < refused < ARRIVALS
