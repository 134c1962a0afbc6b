"""Jobs whose pods claim channels of ComputeDomains, as NVIDIA's controller makes the templates of these."""

import msgspec
import pytest
from support.claims_world import a_class, read
from support.equipped import META, on, told
from test_device_quota import Charged

from engine.devices.compute_domains import CHANNELS, DRIVER, LABEL
from engine.reasons import Reason
from kube.pods.devices import ResourceClaimTemplate, ResourceSlice

CHANNEL = [{"name": "channel", "resourceClaimTemplateName": "domain-a"}]
HOSTS = ("r1-h1", "r1-h2", "r2-h1", "r2-h2")


def channels(node):
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    attributes = {"type": {"string": "channel"}, "id": {"int": 0}}
    devices = [{"name": "channel-0", "attributes": attributes}]
    whole = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return read(ResourceSlice, {"metadata": {"name": f"{node}-compute-domain"}, "spec": whole})


def template(uid, name="domain-a", **more):
    """As the controller makes it for a ComputeDomain."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig", "domainID": uid}
    config = {"requests": ["channel"], "opaque": {"driver": DRIVER, "parameters": parameters}}
    request = {"name": "channel", "exactly": {"deviceClassName": CHANNELS, **more}}
    spec = {"devices": {"requests": [request], "config": [config]}}
    return read(ResourceClaimTemplate, {"metadata": {"name": name, **META}, "spec": {"spec": spec}})


class Domains(Charged):
    """Four hosts with a channel each."""

    def __init__(self, mapped=None):
        super().__init__(mapped=mapped)
        self.put("device_class", a_class(CHANNELS, selector=f"device.driver == '{DRIVER}'"))
        for node in HOSTS:
            self.put("resource_slice", channels(node))
        for letter in "ab":
            self.put("claim_template", template(f"uid-{letter}", f"domain-{letter}"))

    def join(self, number, uid):
        """A host is labelled by the driver's plugin there, or not any more."""
        node = self.nodes[number]
        labels = {**node.metadata.labels, LABEL: uid}
        if not uid:
            del labels[LABEL]
        now = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels))
        self.nodes[number] = now
        self.put("node", now)


@pytest.fixture
def world():
    return Domains()


def test_each_pod_goes_to_a_node_of_its_own(world):
    assert on(world.placed(claims=CHANNEL)) == {"r1-h1": 1, "r1-h2": 1}
    assert on(world.placed("more", claims=CHANNEL)) == {"r2-h1": 1, "r2-h2": 1}
    reason, text = told(world, world.placed("third", 1, claims=CHANNEL))
    assert (reason, "lacks devices of its claims" in text) == (Reason.DOES_NOT_FIT, True)


def test_nodes_of_another_domain_take_none(world):
    world.join(0, "uid-b")
    assert on(world.placed(claims=CHANNEL)) == {"r2-h1": 1, "r2-h2": 1}
    world.join(1, "uid-b")
    reason, text = told(world, world.placed("more", claims=CHANNEL))
    assert (reason, "in other ComputeDomains" in text) == (Reason.DOES_NOT_FIT, True)


def test_who_waits_for_nodes_of_another_domain_is_placed_when_these_leave_it(world):
    for number in (0, 3):
        world.join(number, "uid-b")
    record = world.placed(claims=CHANNEL)
    assert record.admission is None
    world.join(0, "")
    world.settle()
    assert on(record) == {"r1-h1": 1, "r1-h2": 1}


def test_a_job_keeps_its_nodes_when_they_join_its_domain(world):
    record = world.placed(claims=CHANNEL)
    for number in (0, 1):
        world.join(number, "uid-a")
    world.settle()
    assert on(record) == {"r1-h1": 1, "r1-h2": 1}


def test_pods_of_two_domains_are_placed_nowhere(world):
    both = [*CHANNEL, {"name": "other", "resourceClaimTemplateName": "domain-b"}]
    why = world.why(world.job("both", 1, claims=both))
    assert "they ask for channels of several ComputeDomains" in why[1]


@pytest.mark.parametrize("more", [{}, {"allocationMode": "All"}], ids=["one", "all"])
def test_a_channel_counts_as_nothing_where_no_mapping_has_its_class(more):
    world = Domains(mapped={})
    world.put("claim_template", template("uid-a", **more))
    job = world.queued(claims=CHANNEL)
    assert world.hindered(job) is None
    (wish,) = world.memory.pod_sets.wish(world.of(job))
    assert world.memory.device_claims.quota.charged(world.of(job), wish) is None


def test_a_channel_counts_as_what_a_mapping_says():
    world = Domains(mapped={CHANNELS: "gpus"})
    job = world.queued(claims=CHANNEL)
    world.admit(job)
    assert world.used() == 2
