"""Workloads whose pods have claims of templates: they go where devices are, and keep them until they have them."""

import msgspec
import pytest
from support.claims_world import ONE, Devices, a_class, a_pod, spec
from support.equipped import DRIVER, Equipped, claim, gpus, on, rule, template, told
from support.owned import KEYS, make_job

from engine.reasons import Reason
from kube.objects import PodClaimStatus
from ungater.scheduling import relocation


@pytest.fixture
def world():
    return Equipped()


def test_pods_go_where_their_devices_are_and_no_more_than_there_are(world):
    assert on(world.placed(count=4)) in ({"r1-h1": 2, "r1-h2": 2}, {"r2-h1": 2, "r2-h2": 2})


def test_nothing_goes_where_no_device_is():
    assert on(Equipped(["r2-h1"]).placed(count=2)) == {"r2-h1": 2}


def test_who_does_not_fit_is_told_that_devices_are_short(world):
    reason, text = told(world, world.placed(count=5))
    assert reason is Reason.NEVER_FITS
    assert 'devices of claims are short (r1-h1: claim "gpu", request "gpu" (1 of DeviceClass "gpu"): 2 fit)' in text


def test_who_waits_is_told_who_holds_devices(world):
    for node in ("r1-h1", "r2-h1"):
        world.put("resource_claim", claim(f"on-{node}", node, 0))
    reason, text = told(world, world.placed(count=4))
    assert reason is Reason.DOES_NOT_FIT
    assert 'r1-h1: claim "gpu", request "gpu" (1 of DeviceClass "gpu"): 2 fit, 1 held by ns/on-r1-h1-gpu' in text


def test_more_than_one_device_and_more_than_one_claim_count(world):
    world.put("claim_template", template(2, "two-gpus"))
    two = [{"name": "gpus", "resourceClaimTemplateName": "two-gpus"}]
    assert set(on(world.placed("pairs", 2, claims=two)).values()) == {1}
    both = [{"name": name, "resourceClaimTemplateName": "one-gpu"} for name in ("a", "b")]
    assert set(on(world.placed("both", 2, claims=both)).values()) == {1}


def test_others_wait_until_a_workload_gives_its_devices_back(world):
    held = on(world.placed("first", 4))
    assert not set(held) & set(on(world.placed("second", 4)))
    third = world.placed("third", 1)
    assert third.admission is None
    world.drop("job", world.stores["job"]["ns/first"])
    world.settle()
    assert set(on(third)) <= set(held)


def test_a_pod_goes_with_its_claim_and_holds_what_that_was_given():
    world = Equipped(["r1-h1"])
    record = world.placed(count=1)
    world.pod_of(record, "train-x")
    assert world.let_go(record) == ["train-x"]
    charged = world.memory.state.pods["ns/train-x"]
    assert charged.devices == record.grant.assignments[0].devices
    world.put("resource_claim", claim("train-x", "r1-h1", 1))
    assert world.memory.state.pods["ns/train-x"].devices is None
    assert on(world.placed("pair", 2)) is None
    assert on(world.placed("other", 1)) == {"r1-h1": 1}


def test_devices_come_back_when_the_claim_gives_them_back():
    world = Equipped(["r1-h1"])
    record = world.placed(count=2)
    for number in (0, 1):
        world.pod_of(record, f"train-{number}")
    assert len(world.let_go(record)) == 2
    for number in (0, 1):
        world.put("resource_claim", claim(f"train-{number}", "r1-h1", number))
    world.drop("job", world.stores["job"]["ns/train"])
    for pod in tuple(world.stores["pod"].values()):
        world.drop("pod", pod)
    waits = world.placed("next", 1)
    assert waits.admission is None
    world.put("resource_claim", claim("train-1", "r1-h1"))
    world.settle()
    assert on(waits) == {"r1-h1": 1}


def test_devices_that_others_claims_hold_are_not_promised(world):
    for node in ("r1-h1", "r2-h1"):
        world.put("resource_claim", claim(f"somebody-{node}", node, 0))
    assert on(world.placed(count=4)) is None
    assert sum(on(world.placed("small", 3)).values()) == 3


def test_it_waits_for_its_template_and_its_class():
    world = Devices()
    record = world.job(claims=ONE)
    assert world.why(record)[1].endswith(': ResourceClaimTemplate "one-gpu" does not exist')
    world.asked.clear()
    world.put("claim_template", template())
    assert world.asked == [record.id]
    assert world.why(record)[1].endswith(': DeviceClass "gpu" does not exist')
    world.asked.clear()
    world.put("device_class", a_class("gpu"))
    assert (world.asked, world.why(record)) == ([record.id], None)
    world.drop("claim_template", template())
    assert world.why(record)[0] is Reason.RESOURCE_CLAIMS_NOT_COUNTED


def test_devices_that_come_late_are_found():
    world = Equipped([])
    record = world.placed(count=1)
    assert record.admission is None
    world.put("resource_slice", gpus("r2-h2"))
    world.settle()
    assert on(record) == {"r2-h2": 1}


def test_a_restart_keeps_what_was_promised(world):
    record = world.placed("first", 4)
    again = world.restarted()
    held = again.entries[record.id]
    assert held.grant.assignments[0].devices == record.grant.assignments[0].devices
    for memory in (world.memory, again):
        counts = memory.state.cluster.devices.count_by_node(record.grant.assignments[0].devices)
        assert sorted(counts.tolist()) == [0, 0, 2, 2]


def test_pods_with_other_claims_than_were_admitted_stay_gated(world):
    world.put("claim_template", template(2, "two-gpus"))
    record = world.group("db-0", claims=ONE)
    assert world.let_go(record) == ["db-0"]
    record = world.group("db-1", claims=[{"name": "gpu", "resourceClaimTemplateName": "two-gpus"}])
    assert world.let_go(record) == []
    assert all(one.devices.named == (("gpu", "one-gpu"),) for one in record.grant.assignments)
    record = world.group("db-2", claims=ONE)
    assert world.let_go(record) == ["db-2"]


def test_a_template_that_is_made_again_with_more_lets_nobody_go(world):
    record = world.placed(count=1)
    world.put("claim_template", template(2))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": record.job.uid, "controller": True}
    world.put("pod", a_pod("train-x", owner=owner, claims=ONE))
    assert world.let_go(record) == []
    world.put("claim_template", template(1))
    assert world.let_go(record) == ["train-x"]


def test_a_claim_that_was_made_before_its_template_was_made_again_counts(world):
    record = world.placed(count=1)
    world.pod_of(record, "train-x")
    world.put("claim_template", template(2))
    assert world.let_go(record) == ["train-x"]


def test_a_group_of_which_one_pods_claim_asks_for_something_else_waits(world):
    for name in "ab":
        pod = a_pod(name, total=2, labels={KEYS.pod_group: "g"}, claims=ONE)
        made = (PodClaimStatus(name="gpu", resource_claim_name=f"{name}-gpu"),)
        world.put("resource_claim", claim(name, "", count=1 if name == "a" else 2))
        status = msgspec.structs.replace(pod.status, resource_claim_statuses=made)
        world.put("pod", msgspec.structs.replace(pod, status=status))
    world.settle()
    (record,) = world.memory.entries.values()
    assert record.admission is None
    assert world.why(record)[1].startswith("its pods, such as b, have resource claim")


def test_tainted_devices_are_not_promised(world):
    world.put("taint_rule", rule(driver=DRIVER, pool="r1-h1"))
    record = world.placed(count=4)
    assert on(record) == {"r2-h1": 2, "r2-h2": 2}
    why = world.memory.state.cluster.devices.explain_devices("r1-h1", record.grant.assignments[0].devices)
    assert "2 fit, 2 tainted; no devices are left" in why
    waits = world.placed("next", 3)
    assert told(world, waits)[0] is Reason.DOES_NOT_FIT
    world.put("taint_rule", rule(device="gpu-0"))
    world.settle()
    assert waits.admission is None
    world.drop("taint_rule", world.stores["taint_rule"]["broken"])
    world.settle()
    assert on(waits) == {"r1-h1": 2, "r1-h2": 1}


@pytest.mark.parametrize(("effect", "count"), [("NoExecute", 0), ("None", 2)])
def test_taints_that_keep_nobody_away_do_not_count(effect, count):
    world = Equipped(["r1-h1"])
    world.put("taint_rule", rule(effect))
    assert sum((on(world.placed(count=2)) or {}).values()) == count


def test_nothing_is_promised_before_all_is_read(world):
    world.reads_devices = False
    record = world.placed(count=1)
    reason, text = world.why(record)
    assert (record.admission, reason) == (None, Reason.RESOURCE_CLAIMS_NOT_COUNTED)
    assert "from Kubernetes 1.37 on" in text
    world.reads_devices = True
    world.asked.clear()
    world.put("resource_slice", gpus("r1-h1", 3))
    assert world.asked == [record.id]
    world.settle()
    assert record.admission is not None


def test_leaders_and_workers_each_have_their_own(world):
    record = world.leaders(spec(claims=ONE))
    assert record.admission is not None
    assert [one.devices is not None for one in record.grant.assignments] == [False, True]
    assert world.let_go(record) == ["l-0"]


def test_one_that_runs_is_not_moved(world):
    record = world.placed(count=1)
    pod = world.pod_of(record, "train-x")
    world.run(record, pod, record.slots.slots[0])
    world.put("job", make_job(parallelism=1, spec=spec(claims=ONE), status={"ready": 1}))
    assert "devices of resource claims" in relocation.why_not_relocated(world.memory, record)
