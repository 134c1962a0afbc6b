"""Why a node takes no pod: its kubelet and the inside of it, its devices, and the volumes that pods need."""

from unittest import mock

import msgspec
from msgspec.structs import replace
from support import dra
from support.engine_factories import BLOCK, GPU, make_node, make_pod_set, make_state
from support.engine_factories import ask as place
from support.numa_factories import BEST_EFFORT, RESTRICTED, SINGLE, make_layout, make_machine, make_shape
from support.sentences.golden import Golden

from engine.claim_zones import meeting
from engine.claims.asks import ExtendedRequest
from engine.claims.counting import count as counting
from engine.claims.in_use import Use
from engine.claims.read.asks import read_ask, text_of
from engine.claims.read.claims import read_class
from engine.claims.read.slices import read_slice
from engine.cluster.state import ClusterState
from engine.devices import first_fits, kinds, ledger
from engine.devices.first_fits import aligned
from engine.kubelet import admit
from engine.kubelet.device_manager import pick, pick_zones
from engine.kubelet.devices.choose import DeviceChoice
from engine.kubelet.devices.links import from_words
from engine.kubelet.devices.xpu import board
from engine.kubelet.disagreement import disagreement
from engine.kubelet.machine import DeviceLayout, DeviceZones, NumaPlacement, Qos, ZoneUse
from engine.kubelet.machine import TopologyPolicy as Wish
from engine.kubelet.observed_devices import broken_promises
from engine.model import (
    HOSTNAME_LABEL,
    Flavor,
    LabelRequirement,
    Node,
    PodSet,
    PodTerm,
    Policy,
    SliceLayer,
    TopologyRequest,
)
from engine.numa.refusal import kubelet_refusal
from engine.placement.place import place as placed
from engine.quantity import parse
from engine.results import WorkloadRequest
from kube import objects, replicas
from kube.pods import convert
from kube.pods.device_claims import DeviceClass, DeviceClasses, extended_asks
from kube.volumes.available import TooManyWishes
from kube.volumes.binding import Storage, reach_of, reach_of_template
from kube.volumes.objects import BIND_COMPLETED, CsiDriver, PersistentVolume, PersistentVolumeClaim, StorageClass

GOLDEN = Golden("nodes")
case = GOLDEN.case


def raised(make, *values):
    """What is said of what cannot be read."""
    try:
        return make(*values)
    except ValueError as error:
        return error


GOLDEN.section("what a kubelet would do")
TWO = ({"cpu": 4, "memory": 8, GPU: 2},) * 2


def wished(wish, asked, *names, zones=TWO, qos=Qos.GUARANTEED, claimed=None, more=None, **kubelet):
    """What a kubelet that aligns as best it can says of a pod that wishes for zones, of these resources."""
    layout = replace(make_layout(*zones, policy=BEST_EFFORT, **kubelet), **(more or {}))
    machine = make_machine(*zones, policy=BEST_EFFORT, **kubelet)
    shape = make_shape(asked, qos=qos, wish=wish, wish_resources=names, claimed=claimed)
    return admit.admit(layout, machine.state, shape).message


@case
def a_wish_for_one_zone():
    return wished(SINGLE, {"cpu": 2, GPU: 3})


@case
def a_wish_for_no_more_zones_than_needed():
    zones = ({"cpu": 4, GPU: 2},) * 4
    layout, shape = make_layout(*zones, policy=BEST_EFFORT), make_shape({"cpu": 2, GPU: 4}, wish=RESTRICTED)
    free = tuple(tuple(1 if name == GPU else 4000 for name in layout.resources) for _ in zones)
    return admit.admit(layout, replace(make_machine(*zones).state, free=free), shape).message


@case
def a_wish_for_one_socket():
    layout = make_layout(*({"cpu": 4},) * 4, exact=True)
    zones = tuple(replace(zone, socket=at // 2) for at, zone in enumerate(layout.zones))
    return wished(Wish.SOCKET, {"cpu": 9}, zones=({"cpu": 4},) * 4, exact=True, more={"zones": zones})


@case
def a_wish_for_cpus_that_are_not_pinned():
    return wished(SINGLE, {"cpu": 2, GPU: 1}, "cpu", qos=Qos.BURSTABLE)


@case
def a_wish_for_memory_that_is_not_pinned():
    return wished(SINGLE, {"cpu": 2, "memory": 2}, "memory", static_memory=False)


@case
def a_wish_for_what_no_zone_has():
    return wished(SINGLE, {"cpu": 2, "rdma/nic": 1}, "rdma/nic")


@case
def a_wish_for_what_the_node_does_not_align():
    return wished(SINGLE, {"cpu": 2, GPU: 1}, GPU, more={"ignored": (GPU,)})


@case
def a_wish_for_devices_without_a_zone():
    layout = make_layout(*TWO, exact=True)
    devices = tuple(tuple(DeviceLayout(zones=0) for _ in of) for of in layout.devices)
    return wished(SINGLE, {"cpu": 2, GPU: 1}, GPU, exact=True, more={"devices": devices})


@case
def a_wish_for_devices_of_claims_in_another_zone():
    return wished(SINGLE, {"cpu": 6}, claimed=DeviceZones((1,), 1))


@case
def a_wish_for_devices_of_claims_in_a_zone_that_the_node_lacks():
    return wished(SINGLE, {"cpu": 2}, claimed=DeviceZones((7,), 1))


@case
def a_wish_for_devices_of_claims_and_cpus_that_are_not_pinned():
    return wished(SINGLE, {"cpu": 2}, claimed=DeviceZones((1,), 1), static_cpu=False)


def disagree(asked, *available):
    machine = make_machine(*TWO, available=available or None, policy=RESTRICTED)
    return disagreement(machine.layout, machine.state, make_shape(asked))


@case
def resources_that_need_different_numbers_of_zones():
    return disagree({"cpu": 6, GPU: 2})


@case
def resources_that_are_free_in_different_zones():
    return disagree({"cpu": 3, GPU: 2}, {"cpu": 4, "memory": 8, GPU: 0}, {"cpu": 0, "memory": 8, GPU: 2})


@case
def more_than_all_zones_have():
    return disagree({"cpu": 9, GPU: 2})


@case
def a_kubelet_that_would_take_minutes():
    zones = [{"cpu": 4, "memory": 8, GPU: 1, "rdma/nic": 1}] * 8
    machine, shape = make_machine(*zones, policy=RESTRICTED), make_shape({"cpu": 1, "memory": 1, GPU: 1, "rdma/nic": 1})
    return kubelet_refusal("n0", machine, machine.state, shape)


GOLDEN.section("links and cards")
PAIRS = [["X" if a == b else "NV4" if a // 2 == b // 2 else "SYS" for b in range(4)] for a in range(4)]
LINKED = from_words(PAIRS, zones=[1, 1, 2, 2])


@case
def gpus_whose_links_nobody_knows():
    return pick(GPU, None, DeviceChoice(count=2, free=3, mode="require"))


@case
def gpus_of_which_too_few_are_linked():
    return pick(GPU, LINKED, DeviceChoice(count=3, free=0b1111, mode="require"))


def by_amounts(**more):
    return pick_zones(GPU, LINKED, 3, free=(2, 1), zones=3, mode="require", whole=3, **more)


@case
def gpus_of_which_nobody_knows_which_are_free():
    return by_amounts()


@case
def gpus_of_which_too_few_are_linked_as_the_node_says():
    return by_amounts(declared=0b0111)


@case
def cards_in_a_number_that_is_not_given():
    return pick("kunlunxin.com/xpu", board([1] * 4 + [2] * 4), DeviceChoice(count=3, free=0xFF))


@case
def cards_that_are_not_free_together():
    return pick("kunlunxin.com/xpu", board([1] * 4 + [2] * 4), DeviceChoice(count=2, free=0b10001000))


@case
def cards_of_which_none_is_free():
    return pick("kunlunxin.com/xpu", board([1] * 4 + [2] * 4), DeviceChoice(count=2, free=0))


@case
def gpus_that_a_pod_got_without_links():
    machine = make_machine({GPU: 4}, links={GPU: LINKED}, device_ids={GPU: tuple(f"GPU-{at}" for at in range(4))})
    got = ZoneUse(zone=0, amounts={GPU: 3}, devices={GPU: ("GPU-0", "GPU-1", "GPU-2")})
    (said,) = broken_promises(machine, make_shape({GPU: 3}, gpu_link="require"), NumaPlacement(zones=(got,)))
    return said


GOLDEN.section("devices of claims")
FAR, NEAR = (f'device.attributes["{dra.DRIVER}"].kind == "{kind}"' for kind in ("far", "near"))


def asks(*requests, named=()):
    return read_ask([("gpu", "one", text_of(dra.claim(*requests)["spec"]))], (), named)


EITHER = asks(dra.first("gpu", dra.ask("near", 1, NEAR), dra.ask("far", 1, FAR)))
ONE, NEXT = asks(dra.ask("gpu")), asks(dra.ask("gpu", 1, FAR))


class Devices(ClusterState):
    """Nodes a and b: each with so many devices of its own, and so many that both share."""

    def __init__(self, own=1, shared=0):
        super().__init__()
        self.set_flavor(Flavor(name="f", levels=(HOSTNAME_LABEL,)))
        self.devices = self.cluster.devices
        self.devices.set_device_class("c", read_class(dra.device_class()))
        for name in "ab":
            self.set_node(Node(name=name, labels={HOSTNAME_LABEL: name}, allocatable={"cpu": 64_000, "pods": 110}))
            if own:
                self.put(name, own, "near", nodeName=name)
        if shared:
            self.put("shared", shared, "far", allNodes=True)

    def put(self, name, count, kind, **where):
        made = [dra.device(f"{name}-{at}", kind=kind) for at in range(count)]
        found = read_slice(dra.resource_slice(*made, name=f"{name}-devices", pool=name, **where))
        self.devices.set_slice(found.name, found)

    def hold(self, count, ask, node="a"):
        """So many pods wait for devices."""
        anywhere = TopologyRequest(policy=Policy.UNCONSTRAINED)
        pod_set = PodSet(
            name="main",
            count=count,
            requests={"cpu": 1000},
            topology=anywhere,
            devices=ask,
            node_selector={HOSTNAME_LABEL: node},
        )
        self.reserve("ns/first", placed(self, WorkloadRequest(key="ns/first", pod_sets=(pod_set,))).assignments)

    def why(self, ask=ONE):
        return self.devices.explain_devices("a", ask)


@case
def a_node_without_devices():
    return Devices(own=0).why()


@case
def a_device_that_another_claim_has():
    state = Devices()
    state.devices.set_uses("ns/held", (Use((dra.DRIVER, "a", "a-0")),))
    return state.why()


@case
def a_device_that_another_pod_gets_first():
    state = Devices()
    state.hold(1, ONE)
    return state.why()


@case
def devices_that_other_pods_get_first():
    state = Devices(own=2)
    state.hold(2, ONE)
    return state.why()


@case
def devices_that_pods_on_other_nodes_get_first():
    state = Devices(own=0, shared=2)
    state.hold(2, NEXT, node="b")
    return state.why(NEXT)


@case
def devices_that_pods_with_alternatives_get_on_other_nodes_first():
    state = Devices(own=0, shared=2)
    state.hold(2, NEXT, node="b")
    return state.why(EITHER)


@case
def devices_for_a_pod_with_alternatives():
    return Devices(own=0, shared=2).why(EITHER)


@case
def devices_that_nodes_share_in_too_many_ways():
    state = Devices(own=0)
    state.set_node(Node(name="c", labels={HOSTNAME_LABEL: "c"}, allocatable={"cpu": 64_000, "pods": 110}))
    for name, kind in (("a", "far"), ("b", "near")):
        state.put(name, 2, kind, **_reached(name, "c"))
    both = asks(dra.ask("gpu", 1, FAR), dra.ask("more", 1, NEAR))
    return state.devices.explain_devices("c", both)


def _reached(*names):
    """Devices of these nodes."""
    hosts = [{"key": HOSTNAME_LABEL, "operator": "In", "values": list(names)}]
    return {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": hosts}]}}


@case
def devices_that_take_too_long_to_tell_apart():
    with mock.patch.object(kinds, "DRAW_STEPS", 0):
        return Devices(own=0, shared=2).why(NEXT)


@case
def a_device_without_a_zone():
    zone = make_machine({"cpu": 8}, {"cpu": 8}, node="a")
    state, shape = Devices(), make_shape({"cpu": 1}, wish=SINGLE)
    state.set_machine(zone)
    return state.cluster.claim_zones.explain_zones("a", aligned(ONE, shape), shape, 1)


@case
def a_device_of_a_named_claim_that_other_nodes_reach():
    state, shape = Devices(), make_shape({"cpu": 1}, wish=SINGLE)
    state.set_machine(make_machine({"cpu": 8}, {"cpu": 8}, node="a"))
    state.devices.set_uses("ns/mine", (Use((dra.DRIVER, "b", "b-0")),))
    return state.cluster.claim_zones.explain_zones("a", aligned(read_ask([], (), ("ns/mine",)), shape), shape, 1)


@case
def a_node_whose_device_plugins_give_what_is_asked_for():
    state = Devices(own=0)
    state.cluster.table.delegate("x.com/gpu")
    amounts = {"cpu": 64_000, "pods": 110, "x.com/gpu": 2}
    state.set_node(Node(name="a", labels={HOSTNAME_LABEL: "a"}, allocatable=amounts))
    return state.why(read_ask([], (ExtendedRequest("x.com/gpu", "container-0-request-0", "c", 1),)))


for _name, _text in (
    ("devices that take too long to count", ledger.COSTLY),
    ("devices that also other nodes reach", counting._COMMON),
    ("devices whose zones are not known because others are first", first_fits.OUT_OF_TURN),
    ("a claim that pods share and that has no devices yet", meeting.SHARED_CLAIMS),
    ("a claim that lost its devices", meeting.LOST),
    ("a wish about classes beside a claim that has devices", meeting.CLASSES),
    ("a kubelet of a machine with too many zones", admit.TOO_MANY),
):
    GOLDEN.add(_name, lambda text=_text: text)

GOLDEN.section("what pods ask for")


@case
def an_affinity_by_a_key_that_is_no_level():
    state = make_state([make_node(f"n{at}", labels={"zone": f"z{at}"}) for at in range(2)])
    selector = (LabelRequirement(key="app", operator="In", values=("x",)),)
    term = PodTerm(topology_key="zone", selector=selector, namespaces=("default",))
    pods = make_pod_set(2, affinity=(term,), labels={"app": "x"}, namespace="default", level="cloud/block")
    return place(state, pods)


@case
def slices_of_a_level_that_is_not_narrower():
    layers = (SliceLayer(level=BLOCK, size=2),)
    pods = make_pod_set(4)
    return place(make_state([make_node()]), replace(pods, topology=replace(pods.topology, slices=layers)))


def with_spec(**spec):
    """A pod set as it is read from a pod template."""
    template = msgspec.convert({"metadata": {"labels": {"app": "x"}}, "spec": spec}, objects.PodTemplate)
    return convert.pod_set("main", 1, template, make_pod_set(1).topology, "default")


def anti_affine(**term):
    terms = [{"topologyKey": HOSTNAME_LABEL, "labelSelector": {"matchLabels": {"app": "x"}}, **term}]
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return place(make_state([make_node()]), with_spec(affinity=affinity))


@case
def an_anti_affinity_to_namespaces_by_label():
    return anti_affine(namespaceSelector={"matchLabels": {"team": "a"}})


@case
def an_anti_affinity_by_the_index_of_a_pod():
    return anti_affine(matchLabelKeys=["batch.kubernetes.io/job-completion-index"])


@case
def an_amount_that_cannot_be_read():
    return raised(parse, "cpu", "lots")


CLASSES = DeviceClasses()
CLASSES.set_device_class("gpu", msgspec.convert({"spec": {"extendedResourceName": "x.com/gpu"}}, DeviceClass))


def extended(*containers):
    spec = {"containers": [{"name": f"c{at}", "resources": {"limits": one}} for at, one in enumerate(containers)]}
    return raised(extended_asks, msgspec.convert(spec, objects.PodSpec), CLASSES)


@case
def a_part_of_a_device():
    return extended({"x.com/gpu": "500m"})


@case
def devices_for_too_many_containers():
    return extended(*[{"x.com/gpu": "1"}] * 200)


@case
def a_number_of_pods_that_is_none():
    return raised(replicas._read_pod_count, "many", 0)


GOLDEN.section("volumes of pods")


def read(kind, body):
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def claim(*, storage_class="slow", volume="", annotations=None, selector=None):
    meta = {"name": "data", "namespace": "ns", "annotations": annotations or {}}
    spec = {"volumeName": volume, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    spec |= {"storageClassName": storage_class, "selector": selector}
    return read(PersistentVolumeClaim, {"metadata": meta, "spec": spec})


def a_class(mode="WaitForFirstConsumer", provisioner="ebs.csi.aws.com"):
    body = {"metadata": {"name": "slow"}, "provisioner": provisioner, "volumeBindingMode": mode}
    return read(StorageClass, body)


def volume(terms=()):
    affinity = {"required": {"nodeSelectorTerms": list(terms)}}
    spec = {"storageClassName": "slow", "accessModes": ["ReadWriteOnce"], "nodeAffinity": affinity}
    return read(PersistentVolume, {"metadata": {"name": "pv"}, "spec": spec})


def storage(found=None, of=None, pv=None, *, told=None):
    driver = read(CsiDriver, {"metadata": {"name": "ebs.csi.aws.com"}, "spec": {"storageCapacity": told is not None}})
    return Storage(
        claim=lambda _: found,
        volume=lambda _: pv,
        storage_class=lambda _: of,
        classes=lambda: [of] if of else [],
        available=lambda _: [],
        local=lambda _: [],
        csi_node=lambda _: None,
        csi_driver=lambda _: driver,
        capacities=lambda _: told,
    )


def reach(*given, **more):
    return reach_of(storage(*given, **more), "ns", "data")


@case
def a_claim_that_is_not_there():
    return reach()


@case
def a_claim_of_a_volume_that_is_gone():
    return reach(claim(volume="pv"))


@case
def a_claim_that_is_just_being_bound():
    return reach(claim(volume="pv"), None, volume())


@case
def a_volume_with_very_much_node_affinity():
    terms = [{"matchExpressions": [{"key": f"k{at}", "operator": "Exists"} for at in range(1 << 13)]}]
    return reach(claim(volume="pv", annotations={BIND_COMPLETED: "yes"}), None, volume(terms))


@case
def a_claim_without_a_class():
    return reach(claim(storage_class=""))


@case
def a_claim_of_a_class_that_is_not_there():
    return reach(claim())


@case
def a_claim_of_a_class_that_binds_at_once():
    return reach(claim(), a_class("Immediate"))


@case
def a_claim_that_selects_by_very_much():
    selector = {"matchLabels": {f"k{at}": "v" for at in range(1 << 9)}}
    return reach(claim(selector=selector), a_class())


@case
def a_claim_without_a_volume():
    return reach(claim(), a_class(provisioner="kubernetes.io/no-provisioner"))


@case
def a_claim_whose_driver_has_nothing_left():
    return reach(claim(), a_class(), told=[])


@case
def claims_that_select_in_too_many_ways():
    class Busy:
        def terms_of_claim(self, *_):
            raise TooManyWishes

    return reach_of(storage(claim(), a_class()), "ns", "data", Busy())


@case
def an_ephemeral_volume_whose_driver_has_nothing_left():
    return reach_of_template(storage(None, a_class(), told=[]), claim().spec)
