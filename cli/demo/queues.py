"""The act of queues: one team borrows, the other takes its own back; a large job waits, then starts."""

import asyncio
from typing import Any

from cli.cluster import live_queues
from cli.demo.stage import (
    LEVEL,
    NAMESPACE,
    Stage,
    act,
    make_flavor,
    make_job,
    make_object,
    print_paragraph,
    syntax,
    until,
)
from cli.output import Failure, progress, stdout
from cli.queues.rendering import render
from cli.queues.report import report
from crds.constants import Keys
from kube.objects import controller_of, is_true
from kube.resources import CLUSTER_QUEUES, JOBS, LOCAL_QUEUES, NODES, PODS, RESOURCE_FLAVORS, WORKLOADS
from kube.workloads import WorkloadObject
from localcluster.nodes import RACK_LABEL, Fleet, add_nodes, wait_ready

GROUP = "teams"
FLEET = Fleet(blocks=1, racks=2, hosts=4, gpus=8, prefix="team-", group=GROUP)
GPU = "nvidia.com/gpu"
OWN = 32  # GPUs of each team; a rack has as many
SIMS = tuple(f"sim-{number}" for number in range(1, 9))
LARGE = 4  # pods of a job that needs a whole rack
Json = dict[str, Any]


async def teams(stage: Stage) -> None:
    """Two teams, borrowing, reclaim, and a large required job that waits, then starts."""
    act(
        "7. queues: two teams, one cluster",
        f"8 machines of 8 GPUs in 2 racks, shared by two teams. Each owns {OWN} GPUs, may use what the other leaves,\n"
        "and takes its own back when it needs it (cohort, reclaimWithinCohort).",
    )
    with progress("making the machines, their flavor, and two queues"):
        await add_nodes(stage.client, FLEET)
        await wait_ready(stage.client, FLEET.node_names())
        await stage.client.create(RESOURCE_FLAVORS, make_flavor(GROUP, GROUP))
        for team in ("team-a", "team-b"):
            resources = [{"name": GPU, "nominalQuota": OWN}, {"name": "cpu", "nominalQuota": 2 * OWN}]
            await stage.client.create(
                CLUSTER_QUEUES,
                make_object(
                    "ClusterQueue",
                    team,
                    {
                        "cohortName": "research",
                        "namespaceSelector": {},
                        "resourceGroups": [
                            {"coveredResources": [GPU, "cpu"], "flavors": [{"name": GROUP, "resources": resources}]},
                        ],
                        "preemption": {"reclaimWithinCohort": "Any"},
                    },
                ),
            )
            await stage.client.create(LOCAL_QUEUES, make_object("LocalQueue", team, {"clusterQueue": team}), NAMESPACE)
    syntax(
        "kind: ClusterQueue\nspec:\n  cohortName: research\n  resourceGroups:\n"
        f"  - coveredResources: [{GPU}, cpu]\n    flavors:\n    - name: {GROUP}\n"
        f"      resources: [{{name: {GPU}, nominalQuota: {OWN}}}, {{name: cpu, nominalQuota: {2 * OWN}}}]\n"
        "  preemption: {reclaimWithinCohort: Any}"
    )
    print_paragraph(
        "$ kubectl create -f sims.yaml      # 8 Jobs of team-a, each one pod of 8 GPUs, without a topology request",
        "bold",
    )
    syntax(f"labels:\n  {Keys().queue_name}: team-a")
    for name in SIMS:
        await stage.client.create(JOBS, _job(name, "team-a", 1), NAMESPACE)
    for name in SIMS:
        await stage.wait_for_running(name, 1)
    # Before anything is shown: the status is written a moment after the admission.
    await _usage(stage, "team-a", used=2 * OWN, borrowed=OWN)
    await _show(stage)
    print_paragraph(
        f"team-b uses nothing, so team-a runs on all {2 * OWN} GPUs: {OWN} of its own, {OWN} borrowed.", "green"
    )
    await _reclaim(stage)
    await _wait(stage)


def _job(name: str, team: str, pods: int, request: tuple[str, str] | None = None) -> Json:
    job = make_job(name, pods, 8, request or ("", ""))
    job["metadata"]["labels"] = {Keys().queue_name: team}
    if request is None:
        del job["metadata"]["annotations"]
    return job


async def _reclaim(stage: Stage) -> None:
    request = (Keys().required[0], LEVEL)
    print_paragraph("\n$ kubectl create -f train-b.yaml      # team-b: 4 pods of 8 GPUs, all in one rack", "bold")
    syntax(f"labels:\n  {Keys().queue_name}: team-b\nannotations:\n  {request[0]}: {request[1]}")
    began = stage.clock.monotonic()
    await stage.client.create(JOBS, _job("train-b", "team-b", LARGE, request), NAMESPACE)
    await stage.wait_for_running("train-b", LARGE)
    seconds = stage.clock.monotonic() - began
    rack = await _one_rack(stage, "train-b")
    await until(lambda: _are_requeued(stage, LARGE), f"{LARGE} Jobs of team-a wait again")
    # More victims than needed would be a bug of the search, and the demo says so.
    told = {name: found.status for name, found in (await _workloads(stage)).items() if name in SIMS}
    gone = [name for name, one in told.items() if is_true(one.conditions, "Preempted") and one.admission is None]
    if len(gone) != LARGE:
        raise Failure(f"{len(gone)} Jobs of team-a were preempted, and {LARGE} were enough: {', '.join(gone)}")
    await _usage(stage, "team-b", used=OWN, borrowed=0)
    await _usage(stage, "team-a", used=OWN, borrowed=0)
    await _show(stage)
    print_paragraph(
        f"{len(gone)} Jobs of team-a that ran on borrowed GPUs made room ({', '.join(sorted(gone))}): just enough, and "
        f"all in one rack.\ntrain-b ran {seconds:.1f} s after it was created, in rack {rack}. Those that made room "
        "wait in their queue again, in their old places.",
        "green",
    )


async def _wait(stage: Stage) -> None:
    request = (Keys().required[0], LEVEL)
    print_paragraph(
        "\n$ kubectl create -f large-b.yaml      # team-b again: a whole rack, while its quota is used up", "bold"
    )
    await stage.client.create(JOBS, _job("large-b", "team-b", LARGE, request), NAMESPACE)

    async def refused() -> bool:
        found = (await _workloads(stage)).get("large-b")
        return found is not None and any(one.reason == "InsufficientQuota" for one in found.status.conditions or ())

    await until(refused, "Job large-b waits for quota")
    await stage.explain("large-b")
    # Remembered before room is made: whoever is evicted from here on has another time in its condition.
    waited = await _evictions(stage)
    print_paragraph("\n$ kubectl delete job train-b", "bold")
    began = stage.clock.monotonic()
    await stage.client.delete(JOBS, "train-b", NAMESPACE, propagation="Background")
    await stage.wait_for_running("large-b", LARGE)
    rack = await _one_rack(stage, "large-b")
    seconds = stage.clock.monotonic() - began
    # The jobs of team-a were first in time; only the quota keeps them back.
    if not await _are_requeued(stage, LARGE):
        raise Failure("a Job of team-a that would have to borrow got in before large-b")
    if again := [name for name, since in (await _evictions(stage)).items() if since != waited[name]]:
        raise Failure(f"{', '.join(again)} of team-a got the room that train-b left, and made room for large-b again")
    # The ones that wait have no pods that `check` could count.
    stage.jobs.extend(["large-b", *await _running(stage, SIMS)])
    await stage.explain("large-b")
    print_paragraph(
        f"large-b runs {seconds:.1f} s later, in rack {rack}, and nobody was evicted for it. The Jobs of team-a came "
        "first, but they would have to borrow: a team's own quota comes before that, also while the pods of train-b "
        "end one by one.",
        "green",
    )


async def _show(stage: Stage) -> None:
    print_paragraph("$ kubectl topogate queues -A", "bold")
    reading = await live_queues.read(stage.client)
    stdout().print(render(report(reading)))


async def _usage(stage: Stage, team: str, *, used: int, borrowed: int) -> None:
    """What the ClusterQueue's own status says; Failure where it does not come to that."""

    async def usage_is_reported() -> bool:
        status = (await stage.client.get(CLUSTER_QUEUES, team)).get("status", {})
        usages = [one for flavor in status.get("flavorsUsage", ()) for one in flavor["resources"]]
        return [(one["total"], one["borrowed"]) for one in usages if one["name"] == GPU] == [(str(used), str(borrowed))]

    await until(usage_is_reported, f"ClusterQueue {team} uses {used} GPUs, {borrowed} of them borrowed")


async def _workloads(stage: Stage) -> dict[str, WorkloadObject]:
    """By the name of the Job."""
    found = await stage.client.list(WORKLOADS, NAMESPACE, type=WorkloadObject)
    return {owner.name: one for one in found if (owner := controller_of(one.metadata)) is not None}


async def _evictions(stage: Stage) -> dict[str, str]:
    """By Job of team-a since when it is evicted; the same as before where it neither ran nor was evicted meanwhile."""
    return {
        name: next(
            (one.last_transition_time or "" for one in found.status.conditions or () if one.type == "Evicted"), ""
        )
        for name, found in (await _workloads(stage)).items()
        if name in SIMS
    }


async def _are_requeued(stage: Stage, count: int) -> bool:
    """Whether so many of team-a's Jobs are back in the queue, suspended and without pods."""
    running = await _running(stage, SIMS)
    jobs = await stage.client.list(JOBS, NAMESPACE)
    suspended = [job for job in jobs if job["metadata"]["name"] in SIMS and job["spec"].get("suspend")]
    return len(suspended) == count and len(running) == len(SIMS) - count


async def _running(stage: Stage, names: tuple[str, ...]) -> list[str]:
    pods = await stage.client.list(PODS, NAMESPACE)
    running = {pod["metadata"]["labels"].get("job-name") for pod in pods if pod["status"].get("phase") == "Running"}
    return [name for name in names if name in running]


async def _one_rack(stage: Stage, name: str) -> str:
    """The rack that all running pods of a Job are in, by the labels of their nodes; Failure where they are in more."""
    nodes, pods = await asyncio.gather(
        stage.client.list(NODES), stage.client.list(PODS, NAMESPACE, label_selector=f"job-name={name}")
    )
    racks: dict[str, str] = {node["metadata"]["name"]: node["metadata"]["labels"].get(RACK_LABEL, "") for node in nodes}
    used = {racks[pod["spec"]["nodeName"]] for pod in pods if pod["status"].get("phase") == "Running"}
    if len(used) != 1:
        raise Failure(f"the pods of Job {name} are in {len(used)} racks: {', '.join(sorted(used))}")
    return used.pop()
