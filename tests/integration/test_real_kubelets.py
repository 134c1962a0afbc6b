"""Real kubelets as nodes: what they are, whom they admit and refuse, what outlives them, and what an agent tells."""

import asyncio
import json
import os
import signal
import tempfile

import pytest
import pytest_asyncio
from support.agents import install_agent_rights
from support.jobs import GPU, settled, until
from support.real import START_SECONDS, agent_beside, agrees, held, host, layout, pid, supervised
from typer.testing import CliRunner

from cli.local import app
from cli.output import Failure
from crds.constants import NUMA_PLACEMENT_OBSERVED
from kube.client import Client
from kube.errors import Forbidden, NotFound
from kube.patches import PatchType
from kube.resources import EVENTS, FLEX_TOPOS, NODES, PODS, SECRETS, SELF_SUBJECT_REVIEWS
from localcluster import Options, health, supervisor
from localcluster.kubelets.specs import build, parse_machine
from localcluster.process import start_time
from localcluster.programs.build import KUBERNETES_VERSION
from localcluster.real import service
from localcluster.real.layout import node_folder

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

MACHINE = "1 socket / 2 NUMA / 8 cores / 4 GPUs / 64Gi"
ASK = ["--real-kubelets", "2", "--machine", MACHINE, "--kubelet", "single-numa-node, container"]
NODE, OTHER = "real-b1-r1-h1", "real-b1-r1-h2"
DEVICES = [device.id for device in build(parse_machine(MACHINE), OTHER).devices[GPU]]
NAMESPACE = "default"


@pytest.fixture(scope="module")
def before():
    if why := service.refusal():
        pytest.skip(f"no kubelet runs here: {why}")
    return host()


@pytest.fixture(scope="module")
def cluster(before):
    """Made by the commands that a person types."""
    # An agent's socket must not have a long path, as pytest's folders have.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="real-") as home:
        patch.setenv("XDG_STATE_HOME", home)
        with supervised(supervisor.directory("default")) as folder:
            made = CliRunner().invoke(app, ["nodes", *ASK])
            assert made.exit_code == 0, made.output + str(made.exception)
            yield folder
            running = supervisor.running(folder)
            assert running is not None
        assert not any(start_time(one) for one in running.pids.values())
        assert {key: value for key, value in host().items() if before[key] != value} == {}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(cluster):
    async with await Client.connect(str(layout(cluster).kubeconfig("admin"))) as client:
        await install_agent_rights(client)
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def client(admin):
    yield admin
    await admin.raw("DELETE", PODS.path(NAMESPACE), params={"gracePeriodSeconds": "0"})
    await until(lambda: _none(admin), "the pods to be gone")


async def _none(client):
    return not await client.list(PODS, NAMESPACE)


async def start(client, name, *, gpus=1, cpu="2", node=NODE, wait=True, annotations=None, init=(), **more):
    """A pod of one container (and init containers, as name and command) bound to a node."""

    def container(name, **more):
        return {"name": name, "image": "i", "resources": {"limits": amounts}, **more}

    amounts = {"cpu": cpu, "memory": "1Gi", **({GPU: str(gpus)} if gpus else {})}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "initContainers": [container(each, command=command) for each, command in init],
            "containers": [container("main")],
            **more,
        },
    }
    await client.create(PODS, body, NAMESPACE)
    return await settled(client, NAMESPACE, name) if wait else body


def zone_of(cpus):
    """The zone of a machine with 4 cores in each, numbered as Linux does: 0-3 and 8-11 are zone 0's."""
    members = [
        cpu
        for run in cpus.split(",")
        for cpu in range(int(run.split("-", maxsplit=1)[0]), int(run.rsplit("-", maxsplit=1)[-1]) + 1)
    ]
    zones = {cpu % 8 // 4 for cpu in members}
    assert len(zones) == 1, cpus
    return zones.pop()


async def test_the_nodes_are_the_machines_that_were_described(client):
    for name in (NODE, OTHER):
        node = await client.get(NODES, name)
        status = node["status"]
        assert (status["nodeInfo"]["kubeletVersion"], status["nodeInfo"]["containerRuntimeVersion"]) == (
            f"v{KUBERNETES_VERSION}",
            "topogate-none://1.0.0",
        )
        assert {key: status["capacity"][key] for key in ("cpu", "memory", GPU)} == {
            "cpu": "16",
            "memory": "64Gi",
            GPU: "4",
        }
        assert (status["allocatable"]["cpu"], status["allocatable"]["memory"]) == ("14", "63Gi")
        assert node["metadata"]["labels"]["cloud-provider.com/topology-rack"] == "r1"


async def test_a_kubelet_is_itself_and_nobody_else(cluster, client):
    async with await Client.connect(str(node_folder(cluster, NODE).kubeconfig)) as kubelet:
        review = {"apiVersion": SELF_SUBJECT_REVIEWS.api_version, "kind": SELF_SUBJECT_REVIEWS.kind}
        told = await kubelet.create(SELF_SUBJECT_REVIEWS, review)
        user = told["status"]["userInfo"]
        assert (user["username"], "system:nodes" in user["groups"]) == (f"system:node:{NODE}", True)
        with pytest.raises(Forbidden):
            await kubelet.patch(NODES, OTHER, body={"metadata": {"labels": {"a": "b"}}})
        with pytest.raises(Forbidden):
            await kubelet.list(SECRETS, NAMESPACE)


async def test_a_pod_is_granted_what_lies_in_one_zone(cluster, client):
    pod = await start(client, "granted", gpus=2, cpu="4")
    assert pod["status"]["phase"] == "Running"
    uid = pod["metadata"]["uid"]
    files = held(node_folder(cluster, NODE))
    zone = zone_of(files["cpus"][uid, "main"])
    assert files["memory"][uid, "main", "memory"] == ([zone], 1 << 30)
    devices = [where for where in files["devices"].values() if where[0] == uid]
    assert devices == [(uid, zone)] * 2


async def test_a_pod_is_refused_that_no_zone_can_hold(client):
    pod = await start(client, "wide", gpus=3)
    status = pod["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "TopologyAffinityError")
    assert status["message"] == "Pod was rejected: Resources cannot be allocated with Topology locality"
    assert "conditions" not in status, "1.37.1: not even PodScheduled, so no podFailurePolicy matches by condition"

    async def said():
        events = await client.list(EVENTS, NAMESPACE)
        return any(e["reason"] == "TopologyAffinityError" and e["regarding"]["name"] == "wide" for e in events)

    await until(said, "an event")


@pytest.mark.parametrize("cpu", ["500m", "2"])
async def test_kubelet_1_37_resizes_no_guaranteed_pod_in_place_beside_the_static_cpu_manager(client, cpu):
    """Also not one without CPUs of its own; a node declares which kinds of resizes its kubelet knows."""
    await start(client, "resized", gpus=0, cpu=cpu)
    amounts = {"cpu": "3", "memory": "1Gi"}
    more = {"spec": {"containers": [{"name": "main", "resources": {"limits": amounts, "requests": amounts}}]}}
    await client.patch(PODS, "resized", NAMESPACE, body=more, subresource="resize", content_type=PatchType.STRATEGIC)

    async def told():
        found = (await client.get(PODS, "resized", NAMESPACE))["status"].get("conditions", ())
        return next((one for one in found if one["type"] == "PodResizePending"), None)

    pending = await until(told, "the kubelet's answer")
    assert pending["reason"] == "Infeasible"
    assert 'alongside CPU Manager policy "static"' in pending["message"]
    assert "RestartAllContainersOnContainerExits" in (await client.get(NODES, NODE))["status"]["declaredFeatures"]


async def test_pods_end_by_themselves_and_are_stopped(client):
    await start(client, "brief", annotations={"topogate.dev/run-seconds": "1"})
    await settled(client, NAMESPACE, "brief", ("Succeeded",))
    failing = {"topogate.dev/fail-after-seconds": "0", "topogate.dev/exit-code": "42"}
    await start(client, "failing", annotations=failing)
    ended = (await settled(client, NAMESPACE, "failing", ("Failed",)))["status"]["containerStatuses"][0]["state"][
        "terminated"
    ]
    assert (ended["exitCode"], ended["reason"]) == (42, "Error")
    await start(client, "after", init=[("first", ["sleep", "1"])])
    await start(client, "broken", init=[("first", ["false"])])
    assert (await client.get(PODS, "broken", NAMESPACE))["status"]["phase"] == "Failed"
    await client.delete(PODS, "after", NAMESPACE)
    await until(lambda: _gone(client, "after"), "the pod to be gone, which its kubelet alone may say")


async def _gone(client, name):
    try:
        await client.get(PODS, name, NAMESPACE)
    except NotFound:
        return True
    return False


@pytest.mark.parametrize("kind", ["kubelet", "runtime"])
async def test_what_was_killed_comes_again_and_pods_run_on(cluster, client, kind):
    folder = node_folder(cluster, NODE)
    before = await start(client, f"stays-{kind}", gpus=2, cpu="3")
    files, old = held(folder), pid(cluster, kind, NODE)
    os.kill(old, signal.SIGKILL)

    async def again():
        return pid(cluster, kind, NODE) not in {old, None} and service.is_ready(kind, folder, _api(cluster))

    await until(again, f"the {kind} to run again")
    late = await start(client, f"late-{kind}", gpus=2, cpu="3")
    assert late["status"]["phase"] == "Running"
    after = await client.get(PODS, f"stays-{kind}", NAMESPACE)
    ids = [pod["status"]["containerStatuses"][0]["containerID"] for pod in (before, after)]
    assert ids[0] == ids[1]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    now, uid = held(folder), before["metadata"]["uid"]
    assert now["cpus"][uid, "main"] == files["cpus"][uid, "main"]
    assert {each: where for each, where in now["devices"].items() if where[0] == uid} == files["devices"]
    assert zone_of(now["cpus"][late["metadata"]["uid"], "main"]) != zone_of(now["cpus"][uid, "main"])


def _api(cluster):
    return health.api(layout(cluster))


async def test_an_agent_tells_what_the_kubelet_holds(cluster, client):
    """On the other node: a new agent believes for 30 s what a kubelet's files still have of pods that are gone."""
    folder = node_folder(cluster, OTHER)
    async with agent_beside(cluster, client, OTHER):
        await agrees(client, folder, "at first")
        pod = await start(client, "first", node=OTHER, gpus=1, cpu="2", init=[("before", ["sleep", "1"])])
        await settled(client, NAMESPACE, "first", ("Running",))
        uid = pod["metadata"]["uid"]
        files = await agrees(client, folder, "with a pod that had an init container")
        assert {owner for owner in files["cpus"] if owner[0] == uid} == {(uid, "before"), (uid, "main")}

        async def observed():
            metadata = (await client.get(PODS, "first", NAMESPACE))["metadata"]
            return json.loads(metadata.get("annotations", {}).get(NUMA_PLACEMENT_OBSERVED, "null"))

        zones = await until(observed, "the placement to be reported")
        zone = zone_of(files["cpus"][uid, "main"])
        assert [(each["zone"], each["amount"]) for each in zones] == [
            (f"node-{zone}", {"cpu": "2", "memory": "1Gi", GPU: "1"})
        ]
        await start(client, "refused", node=OTHER, gpus=3)
        await agrees(client, folder, "after a refusal")
        os.kill(pid(cluster, "kubelet", OTHER), signal.SIGKILL)
        await start(client, "second", node=OTHER, gpus=2, cpu="3", annotations={"topogate.dev/run-seconds": "1"})
        await settled(client, NAMESPACE, "second", ("Succeeded",))
        await agrees(client, folder, "after the kubelet came again")
        (gpus,) = (devices for name, devices in (await sick(client)).items() if name == GPU)
        assert gpus == []
        folder.unhealthy.write_text(f"{DEVICES[1]}\n")
        await until(lambda: _sick_are(client, [DEVICES[1]]), "a device to be told as unhealthy")
        folder.unhealthy.unlink()
        await until(lambda: _sick_are(client, []), "the device to be told as healthy again")
    await start(client, "third", node=OTHER, gpus=1, cpu="1")
    async with agent_beside(cluster, client, OTHER):
        files = await agrees(client, folder, "after the agent came again")
        assert len({uid for uid, _ in files["cpus"]}) == 2


async def sick(client):
    """Which devices are told as unhealthy, by resource."""
    status = (await client.get(FLEX_TOPOS, OTHER))["status"]
    return {
        each["resource"]: [device["id"] for device in each["devices"] if not device.get("healthy", True)]
        for each in status["devices"]
    }


async def _sick_are(client, ids):
    return (await sick(client))[GPU] == ids


async def _ended(pids):
    return not any(start_time(one) for one in pids)


async def typed(*arguments):
    return await asyncio.to_thread(CliRunner().invoke, app, ["nodes", *arguments])


async def test_a_person_is_told_what_is_not_possible(cluster, client):
    for arguments, said in (
        (["--real-kubelets", "1"], "give --machine too"),
        (["--real-kubelets", "9", "--machine", MACHINE, "--blocks", "1", "--racks", "1"], "8 nodes have a place"),
    ):
        failed = await typed(*arguments)
        assert isinstance(failed.exception, Failure)
        assert said in str(failed.exception)
    made = await typed("--blocks", "1", "--racks", "1", "--hosts", "1", "--prefix", "fake-")
    assert made.exit_code == 0, made.output
    failed = await typed(*ASK, "--prefix", "fake-")
    assert "node fake-b1-r1-h1 is there and simulated" in str(failed.exception)
    assert [node.name for node in service.wanted(cluster)] == [NODE, OTHER]


async def test_a_cluster_goes_on_whose_supervisor_was_killed(cluster, client):
    """Nothing outlives it. Then pods run on, with what they held; and a node that is not wanted any more goes."""
    pod = await start(client, "kept", gpus=1, cpu="2")
    files = held(node_folder(cluster, NODE))
    state = supervisor.running(cluster)
    os.kill(state.pid, signal.SIGKILL)
    await until(lambda: _ended(state.pids.values()), "everything to end")
    await asyncio.to_thread(supervisor.start, cluster, Options(), progress=print, timeout=START_SECONDS)
    made = await typed(*ASK[:1], "1", *ASK[2:])
    assert made.exit_code == 0, made.output + str(made.exception)
    after = await client.get(PODS, "kept", NAMESPACE)
    assert after["status"]["containerStatuses"][0]["state"] == pod["status"]["containerStatuses"][0]["state"]
    assert held(node_folder(cluster, NODE)) == files
    assert not node_folder(cluster, OTHER).root.exists()
    assert pid(cluster, "kubelet", OTHER) is None
    with pytest.raises(NotFound):
        await client.get(NODES, OTHER)
