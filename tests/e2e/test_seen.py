"""What people see: `tree` and dry runs that agree with what happens, metrics, events, logs; by reading rights alone."""

import asyncio
import json
import re
import urllib.request

import pytest
import pytest_asyncio
import yaml
from support.house import NAMESPACE, PREFERRED, REQUIRED, house, user_job
from support.jobs import GPU, KEYS, RACK_LABEL, Watched, until

from engine.reasons import Reason
from kube.resources import (
    CLUSTER_QUEUES,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    LOCAL_QUEUES,
    NAMESPACES,
    PODS,
    PRIORITY_CLASSES,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    WORKLOADS,
    Resource,
)
from localcluster import Fleet

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

API = {"apiVersion": "topogate.dev/v1alpha1"}
FLEET = Fleet(blocks=2, racks=2, hosts=2, gpus=8)  # 64 GPUs, 16 in a rack
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here():
    async with house(FLEET) as made:
        quotas = [{"name": GPU, "nominalQuota": 64}, {"name": "cpu", "nominalQuota": 1000}]
        group = {"coveredResources": [GPU, "cpu"], "flavors": [{"name": "tas", "resources": quotas}]}
        spec = {"resourceGroups": [group], "namespaceSelector": {}}
        spec["preemption"] = {"withinClusterQueue": "LowerPriority"}
        body = {**API, "kind": "ClusterQueue", "metadata": {"name": "all"}, "spec": spec}
        await made.client.create(CLUSTER_QUEUES, body)
        local = {**API, "kind": "LocalQueue", "metadata": {"name": "team"}, "spec": {"clusterQueue": "all"}}
        await made.client.create(LOCAL_QUEUES, local, NAMESPACE)
        high = {"metadata": {"name": "high"}, "value": 100}
        await made.client.create(
            PRIORITY_CLASSES, {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **high}
        )
        made.reader = await reader(made)
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def jobs(here):
    yield Watched(here.client, NAMESPACE)
    await here.clear()


async def reader(here):
    """A kubeconfig of somebody who has ClusterRole topogate-inspect and nothing else."""
    await here.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "people"}})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "alice"}}
    await here.client.create(SERVICE_ACCOUNTS, account, "people")
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "topogate-inspect"}
    subject = {"kind": "ServiceAccount", "name": "alice", "namespace": "people"}
    binding = {"metadata": {"name": "inspect-alice"}, "roleRef": role, "subjects": [subject]}
    await here.client.create(
        BINDINGS, {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", **binding}
    )
    config = yaml.safe_load(here.cluster.kubeconfig.read_text())
    token = await here.client.request_token("alice", "people", 3600)
    (context,) = config["contexts"]
    user = {"name": "alice", "user": {"token": token}}
    config |= {"users": [user], "contexts": [{**context, "context": {**context["context"], "user": "alice"}}]}
    path = here.cluster.directory / "alice.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return str(path)


async def rehearse(here, tmp_path, *manifests, status=0):
    """The dry run's answers, by one who may only read."""
    path = tmp_path / "manifest.yaml"
    path.write_text(yaml.safe_dump_all(manifests))
    done = await here.run(
        "place", "-f", str(path), "--dry-run", "-n", NAMESPACE, "-o", "json", "--kubeconfig", here.reader
    )
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(done.stdout)


def nodes_of(answer):
    return {
        on["node"]: on["pods"] for part in answer["podSets"] for domain in part["domains"] for on in domain["nodes"]
    }


def counted(pods):
    names = [pod["spec"]["nodeName"] for pod in pods]
    return {name: names.count(name) for name in names}


async def events(here, kind, name):
    """Reasons of the events on an object."""
    found = await here.client.list(EVENTS, NAMESPACE)
    return [
        event["reason"] for event in found if (event["regarding"]["kind"], event["regarding"]["name"]) == (kind, name)
    ]


async def workload_of(here, name):
    (found,) = [
        one
        for one in await here.client.list(WORKLOADS, NAMESPACE)
        if one["metadata"].get("ownerReferences", [{}])[0].get("name") == name
    ]
    return found


def fetched(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


async def metrics(here):
    """Value by series, as Prometheus would read them from the controller."""
    url = f"{here.components.address('ungater')}/metrics"
    lines = (await asyncio.to_thread(fetched, url)).splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


async def test_jobs_go_where_the_dry_run_said(here, jobs, tmp_path):
    """One after the other into a cluster that fills up: required, preferred, spread over racks."""
    await here.submit("first", 3, REQUIRED, gpus=4)
    await jobs.running("first", 3)
    for name, pods, request, gpus in (
        ("rack", 3, REQUIRED, 4),
        ("wide", 5, PREFERRED, 4),
        ("small", 2, REQUIRED, 4),
    ):
        body = user_job(name, pods, request, gpus=gpus, indexed=True)
        (answer,) = await rehearse(here, tmp_path, body)
        assert answer["state"] == "Placed"
        assert not [one for one in await here.client.list(JOBS, NAMESPACE) if one["metadata"]["name"] == name]
        await here.client.create(JOBS, body, NAMESPACE)
        found = await jobs.running(name, pods)
        assert counted(found) == nodes_of(answer)
        ranks = {
            domain["first"] + offset: on["node"]
            for domain in answer["podSets"][0]["domains"]
            for on in domain["nodes"]
            for offset in range(domain["pods"])
        }
        label = "batch.kubernetes.io/job-completion-index"
        assert {int(pod["metadata"]["labels"][label]): pod["spec"]["nodeName"] for pod in found} == ranks


async def test_deployments_too(here, jobs, tmp_path):
    template = {
        "metadata": {"labels": {"app": "web"}, "annotations": {KEYS.required[-1]: RACK_LABEL}},
        "spec": user_job("x", 1, gpus=4)["spec"]["template"]["spec"] | {"restartPolicy": "Always"},
    }
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    (answer,) = await rehearse(here, tmp_path, body)
    assert (answer["name"], answer["state"]) == ("deployment/web", "Placed")
    await here.client.create(DEPLOYMENTS, body, NAMESPACE)
    try:

        async def run():
            pods = [pod for pod in await here.client.list(PODS, NAMESPACE) if pod["spec"].get("nodeName")]
            return pods if len(pods) == 3 else None

        await until(run, "three pods to be bound")
        assert counted(await run()) == nodes_of(answer)
    finally:
        await here.client.delete(DEPLOYMENTS, "web", NAMESPACE)


async def test_why_one_waits_and_what_would_have_to_go(here, jobs, tmp_path):
    for number in range(4):
        await here.submit(f"full-{number}", 2, REQUIRED, gpus=8)
        await jobs.running(f"full-{number}", 2)
    body = user_job("late", 2, REQUIRED, gpus=8)
    (answer,) = await rehearse(here, tmp_path, body, status=3)
    assert (answer["state"], answer["reason"]) == ("Waits", "DoesNotFit")
    (victim,) = answer["relief"]["enough"]
    assert "a job without a queue evicts nobody" in answer["relief"]["preemption"]
    await here.client.create(JOBS, body, NAMESPACE)

    async def told():
        found = await here.explain("late")
        return (found["state"], found["reason"]) == ("Waiting", "DoesNotFit")

    await until(told, "the job to wait")
    relief = (await here.explain("late"))["relief"]
    assert [one["name"] for one in relief["enough"]] == [victim["name"]]
    assert "WOULD HAVE TO GO" in await here.topogate("explain", "late")
    assert "DoesNotFit" in await events(here, "Job", "late")
    # What it said is true: once that one is gone, the job runs there.
    await here.client.delete(JOBS, victim["name"].removeprefix("job/"), NAMESPACE, propagation="Background")
    pods = await jobs.running("late", 2)
    assert {"/".join(rack) for rack in await here.racks(pods)} == {"/".join(answer["relief"]["enoughIn"])}


async def test_a_preemption_is_foretold_and_told_once_on_each_job(here, jobs, tmp_path):
    queued = {"metadata": {"labels": {KEYS.queue_name: "team"}}}
    for number in range(4):
        body = user_job(f"low-{number}", 2, REQUIRED, gpus=8)
        body["metadata"] |= queued["metadata"]
        await here.client.create(JOBS, body, NAMESPACE)
        await jobs.running(f"low-{number}", 2)
    body = user_job("urgent", 2, REQUIRED, gpus=8, pod_spec={"priorityClassName": "high"})
    body["metadata"] |= queued["metadata"]
    (answer,) = await rehearse(here, tmp_path, body, status=3)
    assert answer["state"] == "Preempts"
    (victim,) = answer["victims"]
    before = await metrics(here)
    await here.client.create(JOBS, body, NAMESPACE)
    pods = await jobs.running("urgent", 2)
    assert counted(pods) == nodes_of(answer)
    name = victim["job"].rpartition("/")[2]

    async def all_told():
        return "Preempted" in await events(here, "Job", name) and {"Preempting", "Admitted"} <= set(
            await events(here, "Job", "urgent")
        )

    await until(all_told, "events on the jobs")
    for job in (name, "urgent"):
        workload = await workload_of(here, job)
        assert not await events(here, "Workload", workload["metadata"]["name"]), "its conditions say it"
    key = 'topogate_evicted_workloads_total{reason="Preempted"}'
    assert (await metrics(here))[key] == before.get(key, 0) + 1


async def test_a_job_that_need_not_wait_has_one_event_however_large(here, jobs):
    await here.submit("many", 32, {KEYS.unconstrained: "true"}, gpus=0)
    await jobs.running("many", 32)
    assert "32 pods" in (await jobs.condition("many", "Admitted", "True"))["message"]
    await jobs.condition("many", "PodsReady", "True")
    name = (await workload_of(here, "many"))["metadata"]["name"]
    known = {str(one) for one in Reason}
    for kind, called, told in (("Job", "many", ["Admitted"]), ("Workload", name, [])):
        assert [reason for reason in await events(here, kind, called) if reason in known] == told


async def test_tree_and_metrics_say_the_same(here, jobs):
    await here.submit("some", 3, REQUIRED, gpus=4)
    await jobs.running("some", 3)
    done = await here.run("tree", "-o", "json", "--workloads", "--kubeconfig", here.reader)
    assert done.returncode == 0, done.stderr
    (flavor,) = json.loads(done.stdout)["flavors"]
    top = flavor["tree"]["resources"][GPU]
    assert top == {"allocatable": "64", "used": "12", "free": "52"}
    hosts = [host for block in flavor["tree"]["domains"] for rack in block["domains"] for host in rack["domains"]]
    holders = {one["name"]: one["pods"] for host in hosts for one in host.get("tenants", ())}
    assert set(holders) == {"job/some"}

    async def same():
        found = await metrics(here)
        rack = f'topogate_largest_free_domain{{flavor="tas",level="{RACK_LABEL}",resource="{GPU}"}}'
        return found[f'topogate_flavor_free{{flavor="tas",resource="{GPU}"}}'] == 52 and found[rack] == 16

    await until(same, "the gauges to follow")
    found = await metrics(here)
    whole = {one["level"]: one["free"] for one in flavor["whole"]}
    for level, free in whole.items():
        assert found[f'topogate_free_domains{{flavor="tas",level="{level}"}}'] == free
    heard = [value for name, value in found.items() if name.startswith("topogate_informer_last_heard")]
    assert len(heard) >= 9
    assert found["topogate_leader"] == 1
    assert found['topogate_api_requests_total{code="200",method="PATCH"}'] > 0
    assert "job/some" in await here.topogate("tree", "--workloads")


async def test_logs_are_lines_of_json_with_workload_and_reason(here, jobs):
    await here.submit("logged", 1, REQUIRED, gpus=1)
    await jobs.running("logged", 1)
    key = f"{NAMESPACE}/{(await workload_of(here, 'logged'))['metadata']['name']}"
    lines = [json.loads(line) for line in here.components.log("ungater").read_text().splitlines()]
    about = [line for line in lines if line.get("workload") == key]
    assert [line["event"] for line in about] == ["admitted"]
    assert {"timestamp", "level", "event", "message"} <= about[0].keys()


async def test_a_tenant_is_told_of_what_is_theirs_and_of_the_rest_what_to_ask_for(here, jobs, tmp_path):
    """With the role edit in their namespace, and no look at nodes or at others."""
    await here.submit("mine", 1, REQUIRED, gpus=1)
    (pod,) = await jobs.running("mine", 1)
    await here.submit("large", 9, REQUIRED, gpus=8)
    await jobs.condition("large", "QuotaReserved", "False")
    edit = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "edit-alice"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "name": "alice", "namespace": "people"}],
    }
    await here.client.create(ROLE_BINDINGS, edit, NAMESPACE)
    await here.client.delete(BINDINGS, "inspect-alice")
    path = tmp_path / "manifest.yaml"

    async def asked(*command):
        return await here.run(*command, "-n", NAMESPACE, "--kubeconfig", here.reader)

    async def refused():
        done = await here.run("tree", "--kubeconfig", here.reader)
        return done.returncode == 1 and "topogate-inspect" in done.stderr and "Traceback" not in done.stderr

    try:
        await until(refused, "the right to be gone")
        done = await asked("explain", "mine")
        assert done.returncode == 0, done.stderr
        assert f"Job {NAMESPACE}/mine" in done.stdout
        assert "Placed  1 pod in b" in done.stdout
        assert pod["spec"]["nodeName"] in done.stdout
        assert "ask for a ClusterRoleBinding to `topogate-inspect`" in done.stdout
        assert "Waiting  NeverFits: 9 pods do not fit one" in (await asked("explain", "job/large")).stdout
        assert "there is no such job" in (await asked("explain", "nobody")).stderr
        assert re.search(r"^team +all +", (await asked("queues")).stdout, re.MULTILINE)
        path.write_text(yaml.safe_dump(user_job("new", 1, REQUIRED | {KEYS.queue_name: "team"})))
        done = await asked("place", "-f", str(path))
        assert (done.returncode, "Accepted" in done.stdout) == (0, True), done.stdout + done.stderr
        assert f"{KEYS.queue_name}] has no effect as an annotation: make it a label" in " ".join(done.stdout.split())
        path.write_text(yaml.safe_dump(user_job("new", 1, {next(iter(REQUIRED)): "no-level"})))
        done = await asked("place", "-f", str(path))
        assert (done.returncode, "Refused" in done.stdout, "no-level" in done.stdout) == (4, True, True)
    finally:
        here.reader = None
