"""Pods that ask for channels of a ComputeDomain, on machines of NVLink cliques."""

import json
from collections import Counter

import pytest
from support.dra import device, resource_slice

from engine.claims.in_use import Use
from engine.claims.read.asks import read_ask, text_of
from engine.claims.read.claims import read_class
from engine.claims.read.slices import read_slice
from engine.cluster.state import ClusterState
from engine.devices.compute_domains import CHANNELS, CLIQUE, DRIVER, LABEL, domain_of, domains_of
from engine.model import HOSTNAME_LABEL, Flavor, Node, PodSet, Policy, SliceLayer, TopologyRequest
from engine.placement.explain import explain
from engine.placement.place import place
from engine.placement.upper_bounds import UpperBounds
from engine.reasons import Reason
from engine.results import WorkloadRequest

LEVELS = (CLIQUE, HOSTNAME_LABEL)
ANYWHERE = TopologyRequest(policy=Policy.UNCONSTRAINED)
ONE_CLIQUE = TopologyRequest(policy=Policy.REQUIRED, level=CLIQUE)
PREFERRED = TopologyRequest(policy=Policy.PREFERRED, level=CLIQUE)


def config(uid, **parameters):
    whole = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig", "domainID": uid}
    return {"requests": ["channel"], "opaque": {"driver": DRIVER, "parameters": whole | parameters}}


def claim(*configs):
    request = {"name": "channel", "exactly": {"deviceClassName": CHANNELS}}
    return text_of({"devices": {"requests": [request], "config": list(configs)}})


def channel(*uids):
    return read_ask([(f"channel-{number}", "one", claim(config(uid))) for number, uid in enumerate(uids)])


A, B = channel("a"), channel("b")


class Fleet(ClusterState):
    """Cliques of so many machines with four GPUs and a channel each."""

    def __init__(self, *cliques, channels=1):
        super().__init__()
        self.set_flavor(Flavor(name="f", levels=LEVELS))
        selector = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'channel'"
        found = {"metadata": {"name": CHANNELS}, "spec": {"selectors": [{"cel": {"expression": selector}}]}}
        self.cluster.devices.set_device_class(CHANNELS, read_class(found))
        self.domains = {}
        for clique, size in enumerate(cliques, 1):
            for number in range(size):
                self._machine(f"c{clique}n{number}", f"uuid.{clique}", channels)

    def _machine(self, name, clique, channels):
        self.domains[name] = clique
        self.label(name, "")
        devices = [device(f"channel-{at}", type="channel", id=at) for at in range(channels)]
        made = resource_slice(
            *devices,
            device("daemon-0", type="daemon", id=0),
            name=f"{name}-cd",
            pool=name,
            nodeName=name,
            driver=DRIVER,
        )
        self.cluster.devices.set_slice(f"{name}-cd", read_slice(made))

    def label(self, name, uid):
        labels = {CLIQUE: self.domains[name], HOSTNAME_LABEL: name, **({LABEL: uid} if uid else {})}
        self.set_node(Node(name=name, labels=labels, allocatable={"cpu": 64_000, "gpu": 4, "pods": 110}))

    def use(self, name, uid, pod="ns/p"):
        """A pod of a domain runs there."""
        device_id = (DRIVER, name, "channel-0")
        self.cluster.devices.set_uses(f"ns/{name}", (Use(device_id),), frozenset({pod}))
        self.cluster.devices.set_uses(f"ns/{name}-daemon", (Use((DRIVER, name, "daemon-0")),), frozenset({"nv/d"}))
        self.label(name, uid)

    def pod_set(self, count, devices=A, topology=ONE_CLIQUE, gpus=4):
        return PodSet(name="main", count=count, requests={"gpu": gpus}, topology=topology, devices=devices)

    def place(self, count, devices=A, topology=ONE_CLIQUE, gpus=4, key="ns/w"):
        return place(self, WorkloadRequest(key=key, pod_sets=(self.pod_set(count, devices, topology, gpus),)))

    def hold(self, key, count, devices=A, topology=ONE_CLIQUE):
        found = self.place(count, devices, topology, key=key)
        self.reserve(key, found.assignments)
        return cliques(found)


def nodes(found):
    return {name: count for one in found.assignments for part in one.slices for name, count in part.nodes}


def cliques(found):
    return dict(Counter(name[:2] for name in nodes(found)))


# -- what a claim says ------------------------------------------------------------------------------------------------


def test_a_claim_names_its_domain():
    assert (domains_of(A), domain_of(A), domain_of(None)) == (("a",), "a", "")
    both = channel("a", "b", "a")
    assert (domains_of(both), domain_of(both)) == (("a", "b"), "")


@pytest.mark.parametrize(
    "bad",
    [
        config(""),
        config(7),
        config(None),
        config("a", kind="ComputeDomainDaemonConfig"),
        {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "ComputeDomainChannelConfig", "domainID": "a"}}},
        {"opaque": {"driver": DRIVER, "parameters": [DRIVER]}},
        {"opaque": {"driver": DRIVER}},
        {"requests": [DRIVER]},
    ],
    ids=lambda one: json.dumps(one)[:40],
)
def test_what_is_no_such_configuration_names_none(bad):
    assert domains_of(read_ask([("channel", "one", claim(bad))])) == ()


# -- nodes of other domains -------------------------------------------------------------------------------------------


def test_nodes_of_another_domain_take_none_of_its_pods():
    fleet = Fleet(4)
    fleet.label("c1n0", "b")
    fleet.label("c1n1", "a")
    assert nodes(fleet.place(3)) == {"c1n1": 1, "c1n2": 1, "c1n3": 1}
    assert nodes(fleet.place(4, devices=None)) == {"c1n0": 1, "c1n1": 1, "c1n2": 1, "c1n3": 1}
    refused = fleet.place(4)
    assert refused.reason is Reason.DOES_NOT_FIT  # it fits once the label goes
    assert refused.message.endswith("; of its nodes 1 is in other ComputeDomains")
    (one,) = explain(fleet, "f", fleet.pod_set(4))
    assert (one.fits, one.excluded) == (3, {Reason.OTHER_COMPUTE_DOMAIN: 1})
    fleet.label("c1n0", "")
    assert len(nodes(fleet.place(4))) == 4


def test_a_domain_has_one_channel_on_each_node():
    fleet = Fleet(2)
    assert nodes(fleet.place(2, gpus=1)) == {"c1n0": 1, "c1n1": 1}
    assert fleet.place(3, gpus=1).reason is Reason.NEVER_FITS
    fleet.use("c1n0", "a")
    assert nodes(fleet.place(1, gpus=1)) == {"c1n1": 1}


@pytest.mark.parametrize("channels", [1, 2])
def test_who_is_evicted_takes_the_label_along(channels):
    fleet = Fleet(2, channels=channels)
    for name in ("c1n0", "c1n1"):
        fleet.use(name, "b", f"ns/{name}")
    assert fleet.place(2).reason is Reason.DOES_NOT_FIT
    outlook = UpperBounds.compute_bounds(fleet, "f", fleet.pod_set(2))
    assert outlook.passing.tolist() == [1, 1]
    fleet.cluster.devices.think_away("ns/c1n0")
    assert nodes(fleet.place(1)) == {"c1n0": 1}
    fleet.cluster.devices.pod_came("ns/c1n0")
    assert fleet.place(1).reason is Reason.DOES_NOT_FIT


def test_a_label_that_was_left_behind_bars_a_node_whoever_goes():
    fleet = Fleet(1)
    fleet.label("c1n0", "b")
    fleet.cluster.devices.set_uses("ns/d", (Use((DRIVER, "c1n0", "daemon-0")),), frozenset({"nv/d"}))
    fleet.cluster.devices.think_away("nv/d")
    assert fleet.place(1).reason is Reason.DOES_NOT_FIT


# -- cliques of their own ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", [ONE_CLIQUE, PREFERRED, ANYWHERE], ids=["required", "preferred", "anywhere"])
def test_two_domains_prefer_separate_cliques(topology):
    fleet = Fleet(8, 8)
    assert fleet.hold("ns/first", 3, A, topology) == {"c1": 3}
    assert fleet.hold("ns/second", 3, B, topology) == {"c2": 3}
    assert cliques(fleet.place(3, A, topology)) == {"c1": 3}
    assert cliques(fleet.place(3, None, topology)) == {"c1": 3}


def test_a_domain_whose_pods_run_is_kept_apart_too():
    fleet = Fleet(8, 8)
    fleet.use("c1n0", "a")
    assert cliques(fleet.place(3, B)) == {"c2": 3}


def test_where_no_clique_is_left_two_domains_share_one():
    fleet = Fleet(8)
    fleet.hold("ns/first", 3, A)
    assert fleet.hold("ns/second", 5, B) == {"c1": 5}


def test_as_few_cliques_and_nodes_are_used_as_without():
    fleet = Fleet(8, 4, 4)
    fleet.use("c1n0", "a")
    assert cliques(fleet.place(6, B, PREFERRED)) == {"c1": 6}


def test_who_asks_for_no_channel_is_packed_as_ever():
    fleet = Fleet(8, 8)
    fleet.hold("ns/first", 3, A)
    assert cliques(fleet.place(3, None)) == {"c1": 3}


# -- spares -----------------------------------------------------------------------------------------------------------


def test_a_slice_leaves_spares_that_others_use():
    fleet = Fleet(18, 18)
    sixteen = TopologyRequest(policy=Policy.UNCONSTRAINED, slices=(SliceLayer(level=CLIQUE, size=16),))
    assert fleet.hold("ns/train", 32, A, sixteen) == {"c1": 16, "c2": 16}
    assert cliques(fleet.place(2, None)) == {"c1": 2}
    assert cliques(fleet.place(4, None, PREFERRED)) == {"c1": 2, "c2": 2}
    assert fleet.place(3, None).reason is Reason.DOES_NOT_FIT
    assert fleet.place(16, B, sixteen).reason is Reason.DOES_NOT_FIT


# -- why there is none ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "advice"),
    [
        ("device.driver == 'other'", "; ask for less in each pod, or correct its claims"),
        ("device.attributes['no'].such == 1", "; correct the expression in the claim or its DeviceClass"),
    ],
)
def test_devices_that_no_node_has_are_told_apart_from_an_expression_that_fails(expression, advice):
    """kube-scheduler 1.37 ends a pod on every node where an expression fails: neither fewer pods nor a level help."""
    fleet = Fleet(2)
    found = {"metadata": {"name": CHANNELS}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    fleet.cluster.devices.set_device_class(CHANNELS, read_class(found))
    refused = fleet.place(1)
    assert refused.message.startswith("no node has the devices of a pod's claims (c1n0: ")
    assert refused.message.endswith(advice)
