"""Jobs of manifests whose pods have resource claims, in simulated time: placed as the controller counts devices, which
are held while a job runs."""

import json

import pytest
import yaml
from support.snapshots import DOMAIN, FLAVOR, GPU, HOST, RACK, node

from cli.output import Failure
from cli.simulate.cluster import equipped, generated, recorded, servers
from cli.simulate.job_files import read_job_files
from cli.simulate.jobs import jobs_in
from cli.simulate.known import known
from cli.simulate.options import Made
from crds.constants import Keys
from engine.devices.ledger import DeviceLedger
from simulator.model import Placing, SchedulingPolicy, SimulatorOptions
from simulator.results import End
from simulator.run import Simulation

DRIVER = "gpu.example.com"
DRA = "resource.k8s.io/v1"
CLASS = {
    "apiVersion": DRA,
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
}
OURS = SchedulingPolicy("topology")


def sliced(name, count=4):
    """Devices of one node, two a socket."""
    numbers = [{"socket": {"int": at // 2}, "index": {"int": at}} for at in range(count)]
    devices = [{"name": f"gpu-{at}", "attributes": found} for at, found in enumerate(numbers)]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    return {"apiVersion": DRA, "kind": "ResourceSlice", "metadata": {"name": f"{name}-gpus"}, "spec": spec}


def template(name, count=1, *, one_socket=False, index=None, device_class="gpu", **meta):
    exactly = {"deviceClassName": device_class, "count": count}
    if index is not None:
        exactly["selectors"] = [{"cel": {"expression": f"device.attributes['{DRIVER}'].index == {index}"}}]
    asked = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if one_socket:
        asked["constraints"] = [{"matchAttribute": f"{DRIVER}/socket"}]
    meta = {"name": name, **meta}
    return {"apiVersion": DRA, "kind": "ResourceClaimTemplate", "metadata": meta, "spec": {"spec": {"devices": asked}}}


def job(name, arrival=0, duration=100, *, pods=1, of="one", level="", **spec):
    claims = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": of}]}
    asked = {f"{DOMAIN}/podset-required-topology": level} if level else {}
    meta = {"name": name, "annotations": {"topogate.dev/arrival-seconds": str(arrival), **asked}}
    made = {"restartPolicy": "Never", "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}
    pod = {"metadata": {"annotations": {"topogate.dev/run-seconds": str(duration)}}, "spec": {**made, **claims, **spec}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"parallelism": pods, "template": pod}}


def simulated(tmp_path, cluster, *manifests, policy=OURS, empty=False, options=None):
    (tmp_path / "cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": cluster}))
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump_all(manifests))
    jobs = str(tmp_path / "jobs.yaml")
    read = known([str(tmp_path / "cluster.json")], Keys(), read_job_files([jobs]))
    place = recorded(read, (), empty=empty)
    return Simulation(place, jobs_in(read_job_files([jobs]), place, read, duration=1), policy, options)


def waits(result):
    return {one.name: one.wait for one in result.outcomes}


NODES = [node("r1h1", "r1"), node("r1h2", "r1"), node("r2h1", "r2")]
CLUSTER = [FLAVOR, *NODES, CLASS, *(sliced(name) for name in ("r1h1", "r1h2", "r2h1")), template("one", namespace="x")]


@pytest.mark.parametrize(
    "policy", [OURS, SchedulingPolicy("count", Placing.SPREAD), SchedulingPolicy("pack", Placing.PACK)]
)
def test_devices_are_held_while_a_job_runs_and_come_back(tmp_path, policy):
    """12 devices: ten are taken until 100, so four more find two until then. Nothing else of the nodes is short."""
    jobs = [job("ten", pods=10), job("two", 10, 50, pods=2), job("four", 20, 30, pods=4)]
    simulation = simulated(tmp_path, CLUSTER, template("one"), *jobs, policy=policy)
    result = simulation.run()
    assert waits(result) == {"ten": 0, "two": 0, "four": 80}
    assert {one.end for one in result.outcomes} == {End.FINISHED}
    assert simulation.site.state.cluster.devices.facts().uses == {}
    assert not simulation.site.state.pods


def test_a_rack_is_required_of_pods_with_devices(tmp_path):
    """One node of rack 1 has a device taken: seven are there, and rack 2 has four."""
    jobs = [job("first", pods=1, level=HOST, nodeSelector={HOST: "r1h1"}), job("eight", 1, pods=8, level=RACK)]
    result = simulated(tmp_path, CLUSTER, template("one"), *jobs).run()
    assert waits(result) == {"first": 0, "eight": 99}


def test_the_first_devices_that_fit_are_given(tmp_path):
    """Two that ask for one device each take both of socket 0 and not one of each; so a pair fits in socket 1."""
    jobs = [job("singles", pods=2), job("pair", 5, of="pair"), job("other", 10, of="pair")]
    cluster = [FLAVOR, NODES[0], CLASS, sliced("r1h1")]
    simulation = simulated(tmp_path, cluster, template("one"), template("pair", 2, one_socket=True), *jobs)
    seen = {}

    def watch(step):
        seen[step.now] = {
            pod: [use.device[2] for use in uses] for pod, uses in step.site.state.cluster.devices.facts().uses.items()
        }

    result = simulation.run(watch=watch)
    assert seen[10.0] == {
        "default/singles-main-0": ["gpu-0"],
        "default/singles-main-1": ["gpu-1"],
        "default/pair-main-0": ["gpu-2", "gpu-3"],
    }
    assert waits(result) == {"singles": 0, "pair": 0, "other": 90}


def test_what_slots_kept_beside_given_devices_is_free_at_once(tmp_path):
    """A pair could take the one device that the first needs, until that has it; then the other socket is the pair's."""
    cluster = [FLAVOR, NODES[0], CLASS, sliced("r1h1")]
    templates = [template("first", index=0), template("pair", 2, one_socket=True)]
    jobs = [job("a-first", of="first"), job("b-pair", of="pair"), job("c-late", 50, of="pair")]
    result = simulated(tmp_path, cluster, *templates, *jobs).run()
    assert waits(result) == {"a-first": 0, "b-pair": 0, "c-late": 50}


def test_devices_that_others_hold_are_theirs_unless_the_cluster_is_taken_empty(tmp_path):
    held = {
        "apiVersion": DRA,
        "kind": "ResourceClaim",
        "metadata": {"name": "held", "namespace": "x"},
        "spec": template("one")["spec"]["spec"],
        "status": {
            "allocation": {
                "devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": "r1h1", "device": "gpu-0"}]}
            }
        },
    }
    cluster = [FLAVOR, NODES[0], CLASS, sliced("r1h1"), held]
    full = simulated(tmp_path, cluster, template("one"), job("four", pods=4)).run().outcomes[0]
    assert (full.end, full.reason.partition(":")[0]) == (End.WAITING, "DoesNotFit")
    assert waits(simulated(tmp_path, cluster, template("one"), job("four", pods=4), empty=True).run()) == {"four": 0}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"of": "missing"}, 'claim "gpu" (of template "missing"): ResourceClaimTemplate "missing" does not exist'),
        ({"of": "odd"}, 'DeviceClass "odd" does not exist'),
        (
            {"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]},
            'have resource claim "gpu" (ResourceClaim "shared"): ResourceClaim "shared" does not exist',
        ),
    ],
)
def test_what_the_controller_does_not_count_waits_with_its_reason(tmp_path, change, why):
    jobs = [job("plain", 1), job("odd", 0, **change)]
    result = simulated(tmp_path, CLUSTER, template("one"), template("odd", device_class="odd"), *jobs).run()
    odd, plain = result.outcomes
    assert (odd.end, odd.wait, plain.end) == (End.WAITING, None, End.FINISHED)
    assert odd.reason.startswith("ResourceClaimsNotCounted: the pods of pod set main have resource ")
    assert why in odd.reason


def test_a_claim_that_pods_name_counts_where_it_has_devices(tmp_path):
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["r1h1"]}]}]
    given = {"devices": {"results": []}, "nodeSelector": {"nodeSelectorTerms": terms}}
    meta = {"name": "shared", "namespace": "default"}
    claim = {"apiVersion": DRA, "kind": "ResourceClaim", "metadata": meta, "spec": template("one")["spec"]["spec"]}
    named = job("named", 0, resourceClaims=[{"name": "gpu", "resourceClaimName": "shared"}])
    (waits_,) = simulated(tmp_path, [*CLUSTER, claim], named).run().outcomes
    assert waits_.reason.endswith('"shared", which has no devices, and nobody gives it any in a simulation')
    (runs,) = simulated(tmp_path, [*CLUSTER, {**claim, "status": {"allocation": given}}], named).run().outcomes
    assert (runs.end, runs.wait) == (End.FINISHED, 0)


def test_an_extended_resource_of_a_class_is_given_devices(tmp_path):
    asks = {"limits": {"deviceclass.resource.kubernetes.io/gpu": "2", "cpu": "1"}}
    spec = {"containers": [{"name": "main", "resources": asks}], "resourceClaims": []}
    jobs = [job("six", 0, pods=6, **spec), job("late", 10, **spec)]
    assert waits(simulated(tmp_path, CLUSTER, *jobs).run()) == {"six": 0, "late": 90}


def test_who_takes_too_many_steps_to_count_waits_as_not_counted(tmp_path):
    """Twelve requests that are to differ pairwise, of a hundred devices of two kinds."""
    hard = template("hard")
    requests = [{"name": f"r{at}", "exactly": {"deviceClassName": "gpu", "count": 1}} for at in range(12)]
    hard["spec"]["spec"]["devices"] = {"requests": requests, "constraints": [{"distinctAttribute": f"{DRIVER}/odd"}]}
    slices = [sliced(name, 100 + at) for at, name in enumerate(("r1h1", "r1h2", "r2h1"))]
    for one in slices:
        for at, device in enumerate(one["spec"]["devices"]):
            device["attributes"] = {"odd": {"int": at % 2}}
    jobs = [job("endless", of="hard"), job("plain", 1, pods=8)]
    endless, plain = simulated(tmp_path, [FLAVOR, *NODES, CLASS, *slices], template("one"), hard, *jobs).run().outcomes
    assert (endless.end, plain.end) == (End.WAITING, End.FINISHED)
    assert endless.reason == "ResourceClaimsNotCounted: counting such devices takes too many steps"


def test_slices_and_classes_may_be_in_the_file_of_the_jobs(tmp_path):
    """Of generated servers: a template without a namespace is in the one that its jobs are in."""
    made = Made(1, 1, 2, 8, cpu="96", memory="768Gi", machine="", kubelet="")
    names = [one.metadata.name for one in servers(made)]
    file = tmp_path / "jobs.yaml"
    told = [CLASS, *(sliced(name) for name in names), template("one"), job("all", pods=8), job("more", 1)]
    file.write_text(yaml.safe_dump_all(told))
    read = known((), Keys(), read_job_files([str(file)]), servers(made))
    place = equipped(generated(made), read)
    assert waits(Simulation(place, jobs_in(read_job_files([str(file)]), place, read, duration=1), OURS).run()) == {
        "all": 0,
        "more": 99,
    }


def test_what_cannot_be_read_is_told_with_its_file(tmp_path):
    broken = sliced("r1h1")
    broken["spec"]["devices"] = "gpu-0"
    with pytest.raises(Failure) as failure:
        simulated(tmp_path, CLUSTER, broken, template("one"), job("two"))
    assert [part for part in ("jobs.yaml", "ResourceSlice", "r1h1-gpus") if part not in str(failure.value)] == []


def test_a_job_that_is_suspended_or_over_where_it_was_recorded_is_asked_for_its_claims_too(tmp_path):
    held, over = job("held", of="missing"), job("over", of="missing")
    held["spec"]["suspend"] = True
    over["status"] = {"conditions": [{"type": "Complete", "status": "True"}], "succeeded": 1}
    assert {one.end for one in simulated(tmp_path, CLUSTER, held, over).run().outcomes} == {End.WAITING}


def test_a_ledger_takes_over_what_another_was_told(tmp_path):
    simulation = simulated(tmp_path, CLUSTER, template("one"), job("two", pods=2))
    seen = []
    simulation.run(until=1, watch=lambda step: seen.append(step.site.state.cluster.devices.facts()))
    facts = seen[-1]
    assert sorted(facts.slices) == ["r1h1-gpus", "r1h2-gpus", "r2h1-gpus"]
    assert {len(uses) for uses in facts.uses.values()} == {1}
    assert isinstance(simulation.site.state.cluster.devices, DeviceLedger)
    again = simulated(tmp_path, [FLAVOR, *NODES], job("two")).site.state.cluster.devices
    again.take_over(facts)
    assert again.facts() == facts
    assert facts.unused.uses == {}


def test_pods_that_a_kubelet_refuses_give_their_devices_back(tmp_path):
    """Its kubelet takes pods of one NUMA zone alone: the job fails in the end, and the next one finds all devices."""
    machine = "2 sockets / 2 NUMA / 32 cores / 8 GPUs / 512Gi"
    made = Made(1, 1, 1, 8, cpu="1", memory="1Gi", machine=machine, kubelet="single-numa-node")
    (name,) = [one.metadata.name for one in servers(made)]
    wide = {"name": "main", "resources": {"limits": {"cpu": "20", "memory": "8Gi", GPU: "5"}}}
    file = tmp_path / "jobs.yaml"
    jobs = [job("wide", pods=1, containers=[wide]), job("four", 5, pods=4)]
    file.write_text(yaml.safe_dump_all([CLASS, sliced(name), template("one"), *jobs]))
    read = known((), Keys(), read_job_files([str(file)]), servers(made))
    place = equipped(generated(made), read)
    blind = SchedulingPolicy("count-only", Placing.SPREAD)
    simulation = Simulation(
        place, jobs_in(read_job_files([str(file)]), place, read, duration=1), blind, SimulatorOptions(retries=0)
    )
    wide_one, four = simulation.run().outcomes
    assert (wide_one.end, four.end) == (End.REFUSED, End.FINISHED)
    assert simulation.site.state.cluster.devices.facts().uses == {}


def test_the_more_important_takes_the_devices_of_the_less_important(tmp_path):
    """Of two that have two devices each the newer one goes, and starts anew when there is room."""
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 9}
    jobs = [job("old", pods=2), job("new", 1, pods=2), job("high", 10, 50, pods=2, priorityClassName="urgent")]
    policy = SchedulingPolicy("preempts", preemption=True)
    cluster = [FLAVOR, NODES[0], CLASS, sliced("r1h1")]
    simulation = simulated(
        tmp_path, cluster, template("one"), urgent, *jobs, policy=policy, options=SimulatorOptions(grace=5)
    )
    result = simulation.run()
    assert {one.end for one in result.outcomes} == {End.FINISHED}
    assert waits(result)["high"] == 5
    assert {one.name: one.evictions for one in result.outcomes} == {"old": 0, "new": 1, "high": 0}
    assert simulation.site.state.cluster.devices.facts().uses == {}
