"""What ``topogate uninstall`` says of jobs that nothing of Topogate looks after any more."""

import msgspec
import pytest

from cli.install.left_objects import left_behind, lines
from crds.constants import DEFAULT_DOMAIN, Keys
from kube.errors import NotFound
from kube.resources import JOB_SETS, JOBS, PODS

KEYS = Keys(DEFAULT_DOMAIN)
UNGATED = (
    '{"spec":{"suspend":false,"template":{"spec":{"schedulingGates":[{"$patch":"delete","name":"'
    f'{KEYS.gate}"}}]}}}}}}}}'
)
AGAIN = (
    "Pods that run already go on. Create each {} again without a topology request, or let such pods run with "
    "`topogate uninstall --ungate`."
)
GATE = {"schedulingGates": [{"name": KEYS.gate}]}


class Cluster:
    """Stands in for the client: the objects of each kind; a kind that is not served is not found."""

    def __init__(self, *jobs, jobsets=None):
        self.served = {PODS: [], JOBS: jobs} | ({} if jobsets is None else {JOB_SETS: jobsets})

    async def list(self, resource, *, type, field_selector=""):  # noqa: A002
        if resource not in self.served:
            raise NotFound("GET jobsets: 404 Not Found", 404)
        return msgspec.convert(self.served[resource], list[type])


def job(name, *, suspend=False, queue="training", gated=True, owner="", condition="", **spec):
    metadata = {"name": name, "namespace": "team-a", "labels": {KEYS.queue_name: queue} if queue else {}}
    if owner:
        metadata["ownerReferences"] = [{"kind": owner, "name": "set", "controller": True}]
    conditions = [{"type": condition, "status": "True"}] if condition else []
    template = {"spec": GATE if gated else {}}
    return {
        "metadata": metadata,
        "spec": {"suspend": suspend, "template": template, **spec},
        "status": {"conditions": conditions},
    }


def jobset(name, *, suspend):
    made = job(name, suspend=suspend)
    template = {"spec": {"template": made["spec"].pop("template")}}
    made["spec"]["replicatedJobs"] = [{"name": "workers", "template": template}]
    return made


async def said(cluster, **how):
    left = await left_behind(cluster, DEFAULT_DOMAIN)
    return list(lines(left, **({"ungated": True} | how)))


@pytest.mark.parametrize(
    ("how", "first"),
    [
        (
            {"ungated": True},
            "2 jobs in a queue, suspended, which nothing resumes any more. Resume each, to run anywhere, with:",
        ),
        (
            {"ungated": False, "before": True},
            (
                "2 jobs in a queue, suspended, which nothing would resume any more. After the uninstall, resume each, "
                "to run anywhere, with:"
            ),
        ),
    ],
)
async def test_jobs_that_wait_in_a_queue_are_listed_with_the_command_that_resumes_them(how, first):
    cluster = Cluster(job("wide", suspend=True), job("counted", suspend=True, gated=False))
    assert await said(cluster, **how) == [
        first,
        """  kubectl -n team-a patch job counted --type merge -p '{"spec":{"suspend":false}}'""",
        "  kubectl -n team-a patch job wide -p '" + UNGATED + "'",
    ]


async def test_a_jobset_is_resumed_itself_and_not_its_jobs():
    """JobSet resumes its Jobs, whose pods keep the gate."""
    cluster = Cluster(job("set-workers-0", suspend=True, owner="JobSet"), jobsets=[jobset("set", suspend=True)])
    assert (await said(cluster))[1:] == [
        """  kubectl -n team-a patch jobset set --type merge -p '{"spec":{"suspend":false}}'""",
        "A JobSet then creates its pods with the gate: `topogate uninstall --ungate` lets them run.",
    ]


async def test_unfinished_jobs_that_go_on_with_gates_are_told_what_becomes_of_new_pods():
    cluster = Cluster(job("runs"), job("set-0", owner="JobSet"), jobsets=[jobset("set", suspend=False)])
    assert await said(cluster, before=True) == [
        "1 unfinished Job whose pods, if created after the uninstall, would wait for ever at the gate:",
        "  team-a/runs",
        AGAIN.format("Job"),
        "1 unfinished JobSet whose pods, if created after the uninstall, would wait for ever at the gate:",
        "  team-a/set",
        AGAIN.format("JobSet"),
    ]


@pytest.mark.parametrize(
    "left_alone",
    [
        job("done", condition="Complete"),
        job("failed", condition="Failed"),
        job("done-while-suspended", suspend=True, condition="Failed"),
        job("paused-by-its-user", suspend=True, queue="", gated=False),
        job("of-another-controller", suspend=True, gated=False, managedBy="example.com/multi"),
    ],
    ids=lambda one: one["metadata"]["name"],
)
async def test_jobs_that_are_not_ours_to_mend_are_left_out(left_alone):
    assert await said(Cluster(left_alone)) == []
