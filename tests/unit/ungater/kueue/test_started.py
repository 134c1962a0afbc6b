"""Which of Kueue's Workloads is a job's, and whether it is known which there are."""

import json

import msgspec
import pytest

from clock import SYSTEM
from kube.informer import Event, EventKind
from ungater.kueue.started import StartedByKueue
from ungater.model.job_view import identity
from ungater.model.kueue_objects import WORKLOADS, KueueWorkload
from ungater.optional import Discovery

JOB = identity("ns", "u1")


class Silent:
    """An API server that answers nothing."""

    async def raw(self, *_, **_options):
        raise AssertionError


@pytest.fixture
def made():
    asked = []
    made = StartedByKueue(Discovery(Silent(), SYSTEM), SYSTEM, lambda uid, _after: asked.append(uid))
    made.asked = asked
    made.there = {}
    made._workloads.get = made.there.get
    return made


def workload(name, uid="u1", *, admitted=False, kind="Job", api="batch/v1"):
    owner = {"apiVersion": api, "kind": kind, "name": "j", "uid": uid, "controller": True}
    conditions = [{"type": "Admitted", "status": "True", "reason": "a", "message": ""}] if admitted else []
    body = {
        "metadata": {"name": name, "namespace": "ns", "uid": name, "ownerReferences": [owner] if uid else []},
        "status": {"conditions": conditions},
    }
    return msgspec.json.decode(json.dumps(body), type=KueueWorkload)


def hear(made, old, new):
    key = f"ns/{(new or old).metadata.name}"
    made.there.pop(key, None)
    if new is not None:
        made.there[key] = new
    made._on_workload(Event(EventKind.MODIFIED, key, old, new))


def test_the_workload_of_a_job_is_found_and_the_job_looked_at(made):
    one = workload("a")
    hear(made, None, one)
    assert made.workload_of_job(JOB) is one
    assert made.asked == [JOB]
    hear(made, one, None)
    assert made.workload_of_job(JOB) is None
    assert made._of_job == {}


def test_of_several_the_one_that_is_admitted_counts(made):
    """A job that grows has one for each slice (0.19.2, ElasticJobsViaWorkloadSlices)."""
    admitted = workload("b", admitted=True)
    for one in (workload("a"), admitted, workload("c")):
        hear(made, None, one)
    assert made.workload_of_job(JOB) is admitted


def test_one_that_names_another_owner_since_is_that_ones(made):
    old = workload("a")
    hear(made, None, old)
    hear(made, old, workload("a", "u2"))
    assert made.workload_of_job(JOB) is None
    assert made.workload_of_job(identity("ns", "u2")).metadata.name == "a"


@pytest.mark.parametrize("other", [{"uid": ""}, {"kind": "Pod", "api": "v1"}, {"api": "made.up/v1"}])
def test_what_is_no_jobs_is_no_jobs(made, other):
    hear(made, None, workload("a", **other))
    assert made.workload_of_job(JOB) is None


def test_before_anything_was_asked_nothing_is_known(made):
    """What is not known of a job of Kueue's must not be taken for not there."""
    assert not made.beside(print).is_known()
    assert [one._versions for one in made.informers()] == [WORKLOADS]
