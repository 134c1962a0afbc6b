"""`topogate doctor` finds owners whose queue does not reach their pods."""

import copy

import msgspec
import pytest
from support.owners import OWNER_OBJECTS
from support.reviews import FLAVORS, QUEUE, patched

from cli.doctor.command import list_owners
from cli.doctor.unqueued import findings
from crds.constants import Keys
from crds.owner_templates import OWNERS
from kube.errors import Forbidden, NotFound
from webhook.handed_down import decide_owner
from webhook.mutate import MutationRules

KEYS = Keys()
KINDS = {one.kind: one for one in OWNERS}


def owner(kind, queue="q"):
    body = copy.deepcopy(OWNER_OBJECTS[kind])
    body["metadata"]["labels"] = {QUEUE: queue}
    return body


def said(kind, body):
    return [(str(one.weight), one.about, one.message, one.mend) for one in findings([(KINDS[kind], body)], KEYS)]


@pytest.mark.parametrize("kind", [kind for kind in OWNER_OBJECTS if kind != "TrainJob"])
def test_an_owner_that_was_made_without_the_webhook_is_found_and_one_that_was_made_with_it_is_not(kind):
    body = owner(kind)
    ((weight, about, message, mend),) = said(kind, body)
    assert (weight, about) == ("warning", f"{kind} ns/o")
    assert message.startswith("it names queue q, and ")
    assert "run outside of that queue" in message
    where = f"{KINDS[kind].plural}.{KINDS[kind].group} -n ns o"
    assert mend.startswith(f"kubectl label {where} {QUEUE}- && kubectl label {where} {QUEUE}=q; ")
    assert ("this replaces its pods" in mend) is KINDS[kind].rolls
    decision = decide_owner(body, MutationRules(KEYS, FLAVORS))
    assert said(kind, patched(body, msgspec.to_builtins(decision.patch))) == []


def test_the_message_names_what_lacks_the_queue():
    body = owner("LeaderWorkerSet")
    body["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"]["labels"][QUEUE] = "q"
    ((_, _, message, _),) = said("LeaderWorkerSet", body)
    assert "and spec.leaderWorkerTemplate.leaderTemplate.metadata does not" in message
    other = owner("Deployment")
    other["spec"]["template"]["metadata"]["labels"][QUEUE] = "r"
    assert len(said("Deployment", other)) == 1


def test_a_trainjob_with_a_queue_is_always_found():
    ((_, _, message, mend),) = said("TrainJob", owner("TrainJob"))
    assert message == "it names queue q, and a TrainJob cannot be queued: its pods run outside of quota"
    assert mend == f"kubectl label trainjobs.trainer.kubeflow.org -n ns o {QUEUE}-, or use a JobSet"


def test_what_goes_or_cannot_be_read_is_no_finding_and_no_error():
    going = owner("Deployment")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert said("Deployment", going) == []
    assert said("RayJob", {"metadata": {"labels": {QUEUE: "q"}}, "spec": 5}) == []
    for wrong in (None, 5, [], {"labels": 5}, {"labels": None}):
        body = owner("Deployment")
        body["spec"]["template"]["metadata"] = wrong
        assert len(said("Deployment", body)) == 1


class Served:
    """An API server that has one kind, and refuses to list another."""

    async def list(self, resource, *, label_selector):
        assert label_selector == QUEUE
        if resource.kind == "Deployment":
            return [owner("Deployment")]
        if resource.kind == "StatefulSet":
            raise Forbidden(403, "statefulsets is forbidden")
        raise NotFound(404, "the server could not find the requested resource")


async def test_kinds_that_are_not_served_are_passed_over_and_those_that_may_not_be_read_are_told():
    owners, unread = await list_owners(Served(), KEYS)
    assert [(kind.kind, body["metadata"]["name"]) for kind, body in owners] == [("Deployment", "o")]
    ((weight, about),) = [(str(one.weight), one.about) for one in unread]
    assert (weight, about) == ("unknown", "statefulsets.apps")
