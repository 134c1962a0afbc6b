"""Pods that ask for an extended resource of a DeviceClass: they go where devices are, or where plugins give it."""

import msgspec
import pytest
from support.claims_world import GPU, ONE, a_class, a_pod, publishing, spec
from support.equipped import Equipped, claim, gpus, on, told
from support.owned import make_job

from engine.cluster.capacity import WHOLE, Capacity, measured
from engine.reasons import Reason
from kube.objects import PodExtendedClaimStatus
from kube.pods.device_claims import CLASS_PREFIX
from ungater.scheduling import relocation


@pytest.fixture
def world():
    """Two devices on each of four nodes, and a class that stands for GPUs."""
    found = Equipped()
    found.put("device_class", a_class("gpu", GPU))
    return found


def asking(world, name="train", count=2, amount="1", resource=GPU, **more):
    record = world.job(name, count, amounts={resource: amount}, **more)
    world.settle()
    return record


def pod_of(world, record, name, resource=GPU):
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": record.job.name, "uid": record.job.uid}
    pod = a_pod(name, owner={**owner, "controller": True}, amounts={resource: "1"})
    world.put("pod", pod)
    return pod


def served(world, name, node, *numbers):
    """The scheduler made the claim of a pod, and told it, before it bound the pod."""
    made = claim(name, node, *numbers)
    world.put("resource_claim", made)
    pod = world.stores["pod"][f"ns/{name}"]
    status = PodExtendedClaimStatus(resource_claim_name=made.metadata.name)
    world.put(
        "pod",
        msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, extended_resource_claim_status=status)),
    )


def counts(world, record):
    """How many more of its pods each node takes as far as devices go, by name."""
    state = world.memory.state
    found = state.cluster.devices.count_by_node(record.grant.assignments[0].devices)
    return {name: int(found[state.cluster.by_name[name].index]) for name in state.nodes}


def test_pods_go_where_devices_are_and_no_more_than_there_are(world):
    assert set(on(asking(world, count=4)).values()) == {2}
    assert set(on(asking(world, "pair", 1, "2")).values()) == {1}
    assert on(asking(world, "second", 3)) is None


def test_who_does_not_fit_is_told_which_request_lacks_devices(world):
    reason, text = told(world, asking(world, count=9))
    assert reason is Reason.NEVER_FITS
    request = 'claim "<extended-resources>", request "container-0-request-1" (1 of DeviceClass "gpu"): 2 fit'
    assert f"devices of claims are short (r1-h1: {request})" in text


def test_the_name_of_a_class_is_a_resource_too(world):
    assert set(on(asking(world, count=4, resource=CLASS_PREFIX + "gpu")).values()) == {2}


def test_who_asks_for_more_than_a_claim_may_have_waits(world):
    world.put("resource_slice", gpus("r1-h1", 64))
    reason, text = told(world, asking(world, count=1, amount="33"))
    assert reason is Reason.NEVER_FITS
    assert "exceeds the claim limit of 32" in text


@pytest.mark.parametrize("amount", ["9223372036854775807", 2**63, "1E30"])
def test_amounts_of_any_size_harm_nobody(world, amount):
    assert asking(world, "huge", 1, amount).admission is None
    assert set(on(asking(world, count=4)).values()) == {2}


@pytest.mark.parametrize("amount", ["1E9999", "1n", "1500m"])
def test_what_is_no_number_of_devices_is_told(world, amount):
    reason, text = world.why(asking(world, count=1, amount=amount))
    assert reason is Reason.RESOURCE_CLAIMS_NOT_COUNTED
    assert text.startswith(f"the pods of pod set main ask for {GPU}: they ask for ")


def test_a_node_whose_plugin_gives_it_goes_by_amounts_and_not_by_devices(world):
    world.put("node", publishing(world.nodes[0], "3"))
    record = asking(world, count=1, amount="3")
    assert on(record) == {"r1-h1": 1}
    assert world.memory.state.free_on_node("r1-h1")[GPU] == 0
    assert on(asking(world, "second", 4)) == {"r2-h1": 2, "r2-h2": 2}
    assert on(asking(world, "third", 2)) == {"r1-h2": 2}
    reason, text = told(world, asking(world, "fourth", 1))
    assert reason is Reason.DOES_NOT_FIT
    assert "(r1-h2: claim " in text


def test_plugins_that_come_and_go_change_what_counts():
    world = Equipped(["r1-h1"])
    world.put("device_class", a_class("gpu", GPU))
    record = asking(world, count=1)
    assert counts(world, record)["r1-h1"] == 1
    world.put("node", publishing(world.nodes[0], "1"))
    assert counts(world, record)["r1-h1"] > 1000
    assert asking(world, "second", 1).admission is None  # the slot takes what the plugin has
    world.put("node", publishing(world.nodes[1], "1"))
    world.settle()
    assert on(world.memory.entries[asking(world, "second", 1).id]) == {"r1-h2": 1}
    world.put("node", publishing(world.nodes[0], "0"))
    assert counts(world, record)["r1-h1"] == 1


def test_nodes_that_publish_none_have_none_to_tell_of(world):
    asking(world, count=1)
    world.put("node", publishing(world.nodes[3], "4"))
    state = world.memory.state
    assert GPU in measured(state)
    capacity = Capacity(state, state.tree(next(iter(state.flavors))))
    assert capacity.allocatable(GPU, WHOLE).tolist() == [4]
    assert capacity.free_amounts(GPU, WHOLE).tolist() == [4]


def test_a_pod_goes_and_its_slot_is_kept_until_its_claim_is_there():
    world = Equipped(["r1-h1"])
    world.put("device_class", a_class("gpu", GPU))
    record = asking(world, count=1)
    pod_of(world, record, "train-x")
    assert world.let_go(record) == ["train-x"]
    served(world, "train-x", "r1-h1", 1)
    assert world.memory.state.pods["ns/train-x"].devices is None
    assert asking(world, "pair", 2).admission is None
    assert on(asking(world, "other", 1)) == {"r1-h1": 1}


def test_a_claim_that_is_not_seen_yet_is_waited_for():
    world = Equipped(["r1-h1"])
    world.put("device_class", a_class("gpu", GPU))
    record = asking(world, count=1)
    pod_of(world, record, "train-x")
    world.let_go(record)
    served(world, "train-x", "r1-h1")
    assert counts(world, record)["r1-h1"] == 1
    world.put("resource_claim", claim("train-x", "r1-h1", 0))
    assert (world.memory.state.pods["ns/train-x"].devices, counts(world, record)["r1-h1"]) == (None, 1)


def test_a_pod_that_was_bound_without_a_claim_gets_none(world):
    pod = a_pod("stray", amounts={GPU: "2"}, gated=False)
    world.put("pod", msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name="r1-h1")))
    assert set(on(asking(world, count=4)).values()) == {2}
    assert set(on(asking(world, "second", count=4)).values()) == {2}


def test_claims_and_an_extended_resource_of_one_pod_share_its_node(world):
    assert set(on(asking(world, count=2, claims=ONE)).values()) == {1}


def test_of_several_classes_the_newest_counts(world):
    world.put("device_class", a_class("none", GPU, "2026-11-22T00:00:00Z", selector="false"))
    assert told(world, asking(world, count=1))[0] is Reason.NEVER_FITS
    world.drop("device_class", world.stores["device_class"]["none"])
    world.settle()
    assert on(asking(world, "again", 1)) is not None


def test_pods_stay_gated_where_another_class_stands_for_what_was_admitted(world):
    record = asking(world, count=1)
    pod_of(world, record, "train-x")
    world.put("device_class", a_class("newer", GPU, "2026-11-22T00:00:00Z"))
    assert world.let_go(record) == []
    assert "it has a request for nvidia.com/gpu, for which Job train" in world.said(record)
    world.asked.clear()
    world.drop("device_class", world.stores["device_class"]["newer"])
    assert record.id in world.asked
    assert world.let_go(record) == ["train-x"]


def test_a_class_that_is_deleted_in_use_lets_nobody_go(world):
    record = asking(world, count=1)
    pod_of(world, record, "train-x")
    world.drop("device_class", world.stores["device_class"]["gpu"])
    assert world.let_go(record) == []
    assert "a request for nvidia.com/gpu" in world.said(record)
    assert told(world, asking(world, "second", 1))[0] is Reason.NEVER_FITS


def test_what_was_admitted_by_plugins_goes_on_when_a_class_comes():
    world = Equipped()
    world.put("node", publishing(world.nodes[0], "2"))
    record = asking(world, count=1)
    pod_of(world, record, "train-x")
    world.put("device_class", a_class("gpu", GPU))
    asking(world, "other", 1)
    assert world.let_go(record) == ["train-x"]


def test_who_counts_on_plugins_is_sent_to_no_node_without(world):
    world.put("node", publishing(world.nodes[0], "1"))
    asking(world, "first", 1)
    world.reads_devices = False
    assert on(asking(world, "second", 1)) in (None, {"r1-h1": 1})


def test_pods_that_ask_beyond_their_template_wait(world):
    record = world.job(count=1)
    pod_of(world, record, "train-x")
    assert world.why(record)[1].startswith(f"its pods, such as train-x, ask for {GPU}: devices are counted only where")


def test_a_restart_keeps_what_was_promised(world):
    world.put("node", publishing(world.nodes[0], "2"))
    record = asking(world, "first", 4)
    again = world.restarted()
    held = again.entries[record.id]
    assert held.grant.assignments[0].devices == record.grant.assignments[0].devices
    assert on(record) == {"r1-h1": 2, "r1-h2": 2}
    for memory in (world.memory, again):
        found = memory.state.cluster.devices.count_by_node(record.grant.assignments[0].devices)
        assert sorted(found.tolist())[:3] == [0, 2, 2]
        assert memory.state.free_on_node("r1-h1")[GPU] == 0


def test_one_that_runs_on_devices_is_not_moved_and_one_on_plugins_may_be(world):
    def hindered(name, on_node):
        record = asking(world, name, 1)
        assert on(record) == {on_node: 1}
        world.run(record, pod_of(world, record, f"{name}-x"), record.slots.slots[0])
        world.put("job", make_job(name, parallelism=1, spec=spec({GPU: "1"}), status={"ready": 1}))
        return relocation.why_not_relocated(world.memory, record)

    world.put("node", publishing(world.nodes[0], "1"))
    found = {node: hindered(name, node) for name, node in (("a", "r1-h1"), ("b", "r1-h2"))}
    assert "devices of resource claims" in found["r1-h2"]
    assert "devices" not in found["r1-h1"]
