"""Pods that wish the devices of their claims and their CPUs from one zone: where first fit and kubelet meet."""

import msgspec
import pytest
from support.dra import DRIVER, ask, claim, device, device_class, resource_slice
from support.engine_factories import GIB
from support.numa_factories import BEST_EFFORT, NONE, RESTRICTED, SINGLE, make_machine, make_shape, on_zone, pod_on

from engine.claims.asks import OWN
from engine.claims.in_use import Use
from engine.claims.model import PCIE_ROOT
from engine.claims.read.asks import read_ask, text_of
from engine.claims.read.claims import read_class
from engine.claims.read.slices import read_slice
from engine.cluster.state import ClusterState
from engine.devices.first_fits import OUT_OF_TURN, aligned
from engine.kubelet.arrival_orders import Free
from engine.kubelet.machine import Qos, TopologyPolicy
from engine.model import HOSTNAME_LABEL, Flavor, Node, PodSet, Policy, TopologyRequest
from engine.placement.explain import explain
from engine.placement.place import place
from engine.reasons import Reason
from engine.results import Refusal, WorkloadRequest

NUMA_NODE = "resource.kubernetes.io/numaNode"
CLASS = "deviceclass.resource.kubernetes.io/c"
ANYWHERE = TopologyRequest(policy=Policy.UNCONSTRAINED)
SHAPE = make_shape({"cpu": 4}, wish=SINGLE)


def asks(*requests, what="one", named=()):
    return read_ask([("gpu", what, text_of(claim(*requests)["spec"]))], (), named)


ONE, TWO = asks(ask("gpu")), asks(ask("gpu", 2))


def devices(zones, node="a", key=NUMA_NODE):
    """A device a zone, in this order; None: it tells none."""
    made = [device(f"gpu-{at}", **({key: zone} if zone is not None else {})) for at, zone in enumerate(zones)]
    return read_slice(resource_slice(*made, name=f"{node}-gpus", pool=node, nodeName=node))


class Cluster(ClusterState):
    """A node with two zones of 8 CPUs, and devices in this order of zones."""

    def __init__(self, zones=(0, 0, 1, 1), nodes=("a",), *, machine=True, key=NUMA_NODE, **kubelet):
        super().__init__()
        self.set_flavor(Flavor(name="f", levels=(HOSTNAME_LABEL,)))
        self.cluster.devices.set_device_class("c", read_class(device_class()))
        for name in nodes:
            self.set_node(Node(name=name, labels={HOSTNAME_LABEL: name}, allocatable={"cpu": 16_000, "pods": 110}))
            self.cluster.devices.set_slice(f"{name}-gpus", devices(zones, name, key))
            if machine:
                self.set_machine(make_machine({"cpu": 8}, {"cpu": 8}, node=name, **kubelet))

    def request(self, count=1, what=ONE, shape=SHAPE, cpu=4):
        found = PodSet(
            name="main", count=count, requests={"cpu": cpu * 1000}, topology=ANYWHERE, shape=shape,
            devices=aligned(what, shape),
        )  # fmt: skip
        return WorkloadRequest(key="ns/w", pod_sets=(found,))

    def place(self, count=1, what=ONE, shape=SHAPE, cpu=4):
        return place(self, self.request(count, what, shape, cpu))

    def fits(self, what=ONE, shape=SHAPE, cpu=4):
        """How many pods of that kind the cluster takes."""
        return next(
            (count for count in range(8, 0, -1) if not isinstance(self.place(count, what, shape, cpu), Refusal)), 0
        )

    def why(self, what=ONE, shape=SHAPE, count=8):
        (request,) = self.request(count, what, shape).pod_sets
        return explain(self, "f", request)[0].refusal

    def busy(self, zone, cpu, node="a"):
        """CPUs of a zone that somebody holds."""
        key = f"ns/busy-{node}-{zone}"
        shape = make_shape({"cpu": cpu})
        self.set_pod(pod_on(key, shape, on_zone(zone, cpu=cpu), node=node))

    def used(self, *numbers, node="a"):
        self.cluster.devices.set_uses("ns/held", tuple(Use((DRIVER, node, f"gpu-{number}")) for number in numbers))


def test_a_node_is_used_only_where_the_next_device_and_the_cpus_are_of_one_zone():
    cluster = Cluster()
    cluster.busy(0, 8)
    assert cluster.place().reason is Reason.NUMA_ALIGNMENT  # gpu-0 is the next device, and zone 1 has the CPUs
    plain = make_shape({"cpu": 4})
    assert cluster.fits(shape=plain) == 2
    assert "here the devices come from zone 0, and cpu from zone 1" in cluster.why()
    cluster.used(0, 1)
    assert cluster.fits() == 2


def test_pods_are_followed_one_by_one():
    assert Cluster().fits() == 4  # two a zone, both ways
    assert Cluster((0, 1, 0, 1)).fits() == 1  # the second is given a device of zone 1, and CPUs of zone 0
    assert Cluster((1, 0, 1, 0)).fits() == 0
    assert Cluster((0, 1, 0, 1)).fits(shape=make_shape({"cpu": 4})) == 4
    assert Cluster((0, 1)).fits(shape=make_shape({"cpu": 8}, wish=SINGLE), cpu=8) == 2  # each fills a zone


def test_all_devices_of_a_pod_count():
    assert Cluster((0, 1, 1)).fits(TWO) == 0
    assert Cluster((0, 0, 1, 1)).fits(TWO) == 1  # the next would have CPUs of zone 0
    assert Cluster((0, 0, 1, 1)).fits(TWO, make_shape({"cpu": 8}, wish=SINGLE), cpu=8) == 2


def test_other_wishes():
    def fits(wish, zones=(0, 1)):
        return Cluster(zones).fits(TWO, make_shape({"cpu": 4}, wish=TopologyPolicy(wish)))

    assert fits("best-effort") == fits("none") == 1
    assert fits("single-numa-node") == fits("socket") == 0  # of sockets this node tells nothing
    assert fits("restricted") == 1  # there are no two devices in one zone of the empty machine
    assert fits("restricted", (0, 1, 1)) == 0


def test_memory_counts_where_the_kubelet_pins_it():
    cluster = Cluster()
    cluster.set_machine(make_machine({"cpu": 8, "memory": 8}, {"cpu": 8, "memory": 8}, node="a"))
    shape = make_shape({"cpu": 2, "memory": 6}, wish=SINGLE)
    assert cluster.fits(shape=shape, cpu=2) == 1  # the second has memory and CPUs of zone 1 alone
    assert 6 * GIB in dict(shape.containers[0].requests).values()


@pytest.mark.parametrize("key", [NUMA_NODE, "dra.net/numaNode", "dra.cpu/numaNodeID", "numaNode"])
def test_drivers_name_zones_in_several_ways(key):
    assert Cluster((0,), key=key).fits() == 1
    assert Cluster((1,), key=key).fits() == 0


@pytest.mark.parametrize("zone", [None, -1, True, "0"])
def test_devices_without_a_zone_are_promised_to_nobody_with_such_a_wish(zone):
    cluster = Cluster((zone,))
    assert cluster.fits() == 0
    assert "publishes no NUMA zone for it" in cluster.why()
    assert cluster.fits(shape=make_shape({"cpu": 4})) == 1


def test_two_attributes_that_contradict_each_other_tell_nothing():
    one = device("gpu-0", **{NUMA_NODE: 0, "dra.net/numaNode": 1})
    (found,) = read_slice(resource_slice(one)).devices
    assert found.numa_zones({}) == ()
    (found,) = read_slice(resource_slice(device("gpu-0", **{NUMA_NODE: 1, "dra.net/numaNode": 1}))).devices
    assert found.numa_zones({}) == (1,)


def rooted(roots, *, told=None):
    """A cluster whose node has a device behind a PCIe root, and knows the zones of these roots."""
    one = device("gpu-0", **{PCIE_ROOT: "pci0000:16"}, **({NUMA_NODE: told} if told is not None else {}))
    cluster = Cluster(())
    cluster.cluster.devices.set_slice("a-gpus", read_slice(resource_slice(one, pool="a", nodeName="a")))
    machine = make_machine({"cpu": 8}, {"cpu": 8}, node="a")
    cluster.set_machine(msgspec.structs.replace(machine, pcie_roots=roots))
    return cluster


def test_a_device_that_tells_its_pcie_root_alone_is_of_the_zone_that_its_node_knows_of_that():
    assert rooted({"pci0000:16": 0, "pci0000:80": 1}).fits() == 1
    assert "the devices come from zone 1, and cpu from zone 0" in rooted({"pci0000:16": 1}).why()
    assert "publishes no NUMA zone for it" in rooted({"pci0000:80": 0}).why()
    assert rooted({"pci0000:16": 0}).cluster.claim_zones.devices_by_zone("a", ONE) == {0: (f"{DRIVER}/a/gpu-0",)}


def test_what_a_driver_tells_of_a_device_goes_before_its_root():
    assert rooted({"pci0000:16": 1}, told=0).fits() == 1
    assert rooted({"pci0000:16": 0}, told=1).fits() == 0
    assert rooted({"pci0000:16": 0}, told=-1).fits() == 1


def test_a_node_that_comes_to_know_its_roots_is_counted_anew():
    cluster = rooted({})
    assert cluster.fits() == 0
    machine = make_machine({"cpu": 8}, {"cpu": 8}, node="a")
    for roots, fit in (({"pci0000:16": 0}, 1), ({"pci0000:16": 1}, 0), ({"pci0000:16": 0}, 1)):
        assert cluster.set_machine(msgspec.structs.replace(machine, pcie_roots=roots))
        assert cluster.fits() == fit


@pytest.mark.parametrize("zone", [7, (1 << 63) - 1])
def test_a_zone_that_the_node_does_not_have(zone):
    cluster = Cluster((zone,))
    assert cluster.fits() == 0
    assert f"are in zone {zone}, which the node does not publish" in cluster.why()


def test_a_node_that_tells_nothing_of_its_zones():
    cluster = Cluster(machine=False)
    for shape in (SHAPE, make_shape({"cpu": 4}, qos=Qos.BURSTABLE, wish=SINGLE)):
        assert cluster.fits(shape=shape) == 0
        assert "the NUMA zones of this node are not known" in cluster.why(shape=shape)
    assert cluster.fits(shape=make_shape({"cpu": 4})) == 4


def test_cpus_have_to_be_pinned_where_they_could_be():
    cluster = Cluster(static_cpu=False)
    assert cluster.fits() == 0
    assert "pins CPUs only with the static CPU manager" in cluster.why()
    burstable = make_shape({"cpu": 4}, qos=Qos.BURSTABLE, wish=SINGLE)  # no kubelet pins those: the devices count
    assert Cluster((0, 1), static_cpu=False).fits(TWO, burstable) == 0
    assert Cluster((1, 1), static_cpu=False).fits(TWO, burstable) == 1


@pytest.mark.parametrize("policy", [SINGLE, RESTRICTED, BEST_EFFORT, NONE])
def test_under_each_policy_of_the_kubelet(policy):
    cluster = Cluster(policy=policy)
    found = cluster.fits()
    assert found == (0 if policy is NONE else 4)  # under none CPUs may come from any zone
    cluster.busy(0, 8)
    assert cluster.fits() == 0


def test_resources_limit_what_the_wish_is_about():
    cluster = Cluster((1, 0))
    assert cluster.fits(shape=make_shape({"cpu": 4}, wish=SINGLE, wish_resources=("cpu",))) == 2
    assert cluster.fits(shape=make_shape({"cpu": 4}, wish=SINGLE, wish_resources=("cpu", CLASS))) == 0
    alone = make_shape({"cpu": 4}, wish=SINGLE, wish_resources=(CLASS,))
    assert cluster.fits(shape=alone) == 2
    assert cluster.fits(TWO, alone) == 0


MINE = asks(ask("gpu"), what=f"{OWN}mine", named=("ns/mine",))
HELD = read_ask([], (), ("ns/mine",))  # of a claim that had devices before


def has(cluster, *numbers, admin=False, node="a"):
    """The claim that pods name has these devices."""
    uses = tuple(Use((DRIVER, node, f"gpu-{number}"), admin=admin) for number in numbers)
    cluster.cluster.devices.set_uses("ns/mine", uses)
    return cluster


def test_a_claim_that_one_pod_names_is_foreseen_like_one_of_a_template():
    assert not isinstance(Cluster().place(1, MINE), Refusal)
    cluster = Cluster((1, 1))
    assert cluster.place(1, MINE).reason is Reason.NEVER_FITS
    assert "here the devices come from zone 1, and cpu from zone 0" in cluster.why(MINE, count=1)


def test_a_claim_without_devices_that_several_pods_name_is_not_foreseen():
    cluster = Cluster()
    several = msgspec.structs.replace(MINE, shared=True)
    assert cluster.fits(several) == 0
    assert "several pods name a claim that has no devices yet" in cluster.why(several)
    assert has(cluster, 0).fits(several) == 2


@pytest.mark.parametrize("what", [MINE, HELD], ids=["given since", "given before"])
def test_devices_that_a_claim_has_already_are_those_of_each_pod_that_names_it(what):
    assert has(Cluster(), 1).fits(what) == 2  # zone 0 has CPUs for two
    cluster = has(Cluster(), 1)
    cluster.busy(0, 8)
    assert cluster.fits(what) == 0
    assert "here the devices come from zone 0, and cpu from zone 1" in cluster.why(what)
    assert cluster.fits(what, shape=make_shape({"cpu": 4})) == 2
    assert has(cluster, 2).fits(what) == 2
    assert cluster.cluster.claim_zones.devices_by_zone("a", aligned(what, SHAPE)) == {1: (f"{DRIVER}/a/gpu-2",)}


def test_devices_that_a_claim_has_already_count_beside_those_of_a_template():
    text = text_of(claim(ask("gpu"))["spec"])
    both = read_ask([("own", "one", text), ("mine", f"{OWN}mine", text)], (), ("ns/mine",))
    assert has(Cluster((0, 0, 1, 1)), 1).fits(both) == 1  # the next is given one of zone 1
    assert has(Cluster((0, 0, 1, 1)), 2).fits(both) == 0
    assert has(Cluster((0, 0, 1, 1)), 2, admin=True).fits(both) == 4


def test_devices_that_a_claim_has_elsewhere_are_of_no_zone_of_a_node():
    cluster = has(Cluster(nodes=("a", "b")), 0, node="b")
    assert cluster.fits(HELD) == 2
    assert "of a claim that the pods name is not on this node alone" in cluster.why(HELD)


def test_a_claim_that_lost_its_devices_is_not_foreseen():
    assert Cluster().fits(HELD) == 0
    assert "has lost its devices" in Cluster().why(HELD)


def test_a_wish_about_classes_of_devices_is_not_foreseen_for_a_claim_that_has_some():
    wish = make_shape({"cpu": 4}, wish=SINGLE, wish_resources=(CLASS, "cpu"))
    for what in (MINE, HELD):
        cluster = has(Cluster(), 0)
        assert cluster.fits(what, wish) == 0
        assert "it names DeviceClasses" in cluster.why(what, wish)
    assert not isinstance(Cluster().place(1, MINE, wish), Refusal)


def test_slots_that_wait_for_devices_come_first():
    cluster = Cluster()
    cluster.reserve("ns/first", cluster.place(2).assignments)
    assert cluster.fits() == 2  # alike: the third has gpu-2 and zone 1
    assert cluster.fits(shape=make_shape({"cpu": 2}, wish=SINGLE), cpu=2) == 0  # who comes first is not known
    assert cluster.cluster.devices.explain_devices("a", TWO) == OUT_OF_TURN
    assert cluster.fits(TWO, make_shape({"cpu": 2})) == 0  # it might be given what was foreseen for those
    cluster.release_workload("ns/first")
    assert cluster.fits(TWO, make_shape({"cpu": 2})) == 2


def test_pods_without_a_wish_do_not_keep_each_other_off():
    cluster = Cluster()
    cluster.reserve("ns/first", cluster.place(1, shape=make_shape({"cpu": 2})).assignments)
    assert cluster.fits(TWO, make_shape({"cpu": 4})) == 1
    assert cluster.fits() == 0


def test_what_could_never_meet_is_told_so():
    assert Cluster((1, 0)).place().reason is Reason.NEVER_FITS
    assert Cluster().place(5).reason is Reason.NEVER_FITS


def test_nodes_alike_are_searched_once():
    cluster = Cluster(nodes=[f"n{at}" for at in range(30)])
    assert not isinstance(cluster.place(100), Refusal)
    zones = cluster.cluster.claim_zones
    assert len(zones._fits) == 1
    assert len(zones._walks) == 1


def forecast(cluster, coming=(0, 0), shape=SHAPE, what=ONE):
    return cluster.cluster.claim_zones.forecast("a", aligned(what, shape), shape, cluster.free_for("a", (), ()), coming)


def test_a_pod_may_go_beside_others_where_no_order_makes_a_difference():
    cluster = Cluster()
    assert forecast(cluster).sure
    assert forecast(cluster, (1, 1)).sure  # two devices and two pods' CPUs in zone 0
    assert not forecast(cluster, (2, 2)).sure  # the third may be given a device of zone 1 before zone 0 is full
    assert forecast(cluster, (1, 0)).sure
    cluster.used(0)
    assert not forecast(cluster, (1, 1)).sure
    assert forecast(cluster, (1, 1)).refused == ""
    cluster.busy(0, 8)
    assert "from zone 0, and cpu from zone 1" in forecast(cluster).refused


def test_a_pod_waits_where_one_that_may_end_makes_another_zone_come_first():
    cluster = Cluster((1,))
    cluster.busy(0, 8)
    least = cluster.free_for("a", (), ())
    assert forecast(cluster).sure
    both = Free(least.least, cluster.free_for("a", (), ("ns/busy-a-0",)).most)
    found = cluster.cluster.claim_zones.forecast("a", aligned(ONE, SHAPE), SHAPE, both, (0, 0))
    assert (found.sure, found.refused) == (False, "")


def test_a_pod_whose_claim_has_devices_goes_while_its_cpus_are_of_their_zone():
    for what in (MINE, HELD):
        cluster = has(Cluster(), 0)
        assert forecast(cluster, (1, 0), what=what).sure
        assert not forecast(cluster, (2, 0), what=what).sure  # zone 0 has CPUs for two
        cluster.busy(0, 8)
        assert "from zone 0, and cpu from zone 1" in forecast(cluster, what=what).refused
        has(cluster)
        assert ("lost its devices" in forecast(cluster, what=what).refused) is (what is HELD)
