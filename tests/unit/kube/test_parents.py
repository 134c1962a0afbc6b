"""JobSets and LeaderWorkerSets as they come, also where nobody checked them."""

import msgspec
import pytest

from kube.parents import JobSet, LeaderWorkerSet

TEMPLATE = {"spec": {"containers": [{"name": "c"}]}}
WRONG = ({"spec": {"containers": [{"name": []}]}}, {"spec": []}, "x", [], 1, None)


def jobset(template):
    return JobSet, {"spec": {"replicatedJobs": [{"name": "a", "template": {"spec": {"template": template}}}]}}


def workers(template):
    return LeaderWorkerSet, {"spec": {"leaderWorkerTemplate": {"workerTemplate": template}}}


def leader(template):
    return LeaderWorkerSet, {"spec": {"leaderWorkerTemplate": {"leaderTemplate": template or 1}}}


@pytest.mark.parametrize("make", [jobset, workers, leader])
def test_an_object_whose_pod_template_is_none_cannot_be_decoded(make):
    kind, body = make(TEMPLATE)
    assert msgspec.json.decode(msgspec.json.encode(body), type=kind)
    for template in WRONG:
        with pytest.raises(msgspec.DecodeError):
            msgspec.json.decode(msgspec.json.encode(make(template)[1]), type=kind)


def test_a_leader_without_a_template_is_as_the_workers_are():
    body = {"spec": {"leaderWorkerTemplate": {"workerTemplate": TEMPLATE, "leaderTemplate": None}}}
    found = msgspec.json.decode(msgspec.json.encode(body), type=LeaderWorkerSet)
    assert not found.spec.leader_worker_template.has_leader
