"""`topogate place` tells what the API server says to the objects in a dry run: its refusals, and all its warnings."""

import asyncio
import json

import pytest
import yaml
from multidict import CIMultiDict, CIMultiDictProxy
from support.snapshots import FLAVOR, node
from test_place_command import job

from cli.cluster import cluster_snapshot
from cli.cluster import dump as dumps
from cli.cluster.tried import Tried, _try
from cli.place import report
from crds.settings import Settings
from kube.connection.transport import warnings_of
from kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid, KubeTimeout, ServerError


def test_warnings_of_an_answer_are_read_as_the_api_server_writes_them():
    headers = CIMultiDict()
    for text in ('299 - "one"', r'299 - "a \"b\" \\c"', "no warning"):
        headers.add("Warning", text)
    assert list(warnings_of(CIMultiDictProxy(headers))) == ["one", r'a "b" \c']


class Server:
    """Says this to each object that is created in a dry run."""

    def __init__(self, *warnings, error=None):
        self.warnings, self.error = warnings, error

    async def create(self, _resource, _obj, _namespace, *, dry_run, warned, **_):
        assert dry_run
        for text in self.warnings:
            warned(text)
        if self.error is not None:
            raise self.error


@pytest.fixture
def one(tmp_path):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job("train", 1, 8)))
    (found,) = dumps.objects_in(str(path))
    return found


HINT = (
    "Validation failed for ValidatingAdmissionPolicy 'topogate-hints' with binding 'topogate-hints': labels[x] is odd"
)


def test_hints_of_our_policy_are_told_without_the_words_before_them_and_once(one):
    server = Server("of another", HINT, HINT)
    assert asyncio.run(_try(server, one, "team")) == Tried(one, "team", "", ("of another", "labels[x] is odd"))


RBAC = 'jobs.batch is forbidden: User "a" cannot create resource "jobs" in API group "batch"'
DENIED = 'admission webhook "job.topogate.dev" denied the request: no'
AWAY = 'failed calling webhook "job.topogate.dev": connection refused'


@pytest.mark.parametrize(
    ("error", "unfit"),
    [
        (Forbidden(403, "Forbidden", RBAC), True),
        (AlreadyExists(409, "AlreadyExists", "it is there"), True),
        (BadRequest(400, "BadRequest", 'admission webhook "x" does not support dry run'), True),
        (Forbidden(403, "Forbidden", DENIED), False),
        (Invalid(422, "Invalid", "spec.template: Required value"), False),
        (ServerError(500, "InternalError", AWAY), False),
        (KubeTimeout("no answer"), False),
    ],
)
def test_only_what_is_said_of_the_object_is_a_refusal(one, error, unfit):
    found = asyncio.run(_try(Server("hint", error=error), one, "team"))
    assert (found.refusal, found.unfit, found.warnings) == (str(error), unfit, ("hint",))


def answer(tmp_path, one, **said):
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump_all([FLAVOR, node("r1h1", "r1")]))
    cache = cluster_snapshot.cache_of(dumps.read([str(path)]), Settings())
    (found,) = report(cache, [one], "team", 0.0, heard=[Tried(one, "team", **said)])
    return found


def test_what_would_be_refused_is_refused_and_what_could_not_be_tried_is_placed_all_the_same(tmp_path, one):
    found = answer(tmp_path, one, refusal=AWAY, warnings=("hint",))
    assert (found.state, found.reason, found.warnings) == ("Refused", "", ("hint",))
    assert found.message == f"the API server would refuse it: {AWAY}"
    found = answer(tmp_path, one, refusal=RBAC, unfit=True, warnings=("hint",))
    assert (found.state, found.warnings) == ("Placed", ("hint",))


MISSPELT = "kueue.x-k8s.io/podset-requird-topology"
PREFIX = "nothing is refused, but "
BY_POLICY = " has no effect: did you mean the annotation kueue.x-k8s.io/require-topology?"


def written(kind):
    """An object with a misspelt annotation, and where that stands."""
    made, wrong = job("train", 1, 8), {MISSPELT: "rack"}
    if kind == "Job":
        made["metadata"]["annotations"] = wrong
        return made, "metadata.annotations"
    pods = made["spec"]["template"]["spec"] | {"restartPolicy": "Always"}
    right = {"kueue.x-k8s.io/podset-unconstrained-topology": "true"}
    template = {"metadata": {"annotations": wrong | right}, "spec": pods}
    meta = {"name": "web", "namespace": "team"}
    made = {"apiVersion": "apps/v1", "kind": kind, "metadata": meta, "spec": {"replicas": 2, "template": template}}
    return made, "spec.template.metadata.annotations"


@pytest.mark.parametrize("kind", ["Job", "Deployment", "StatefulSet"])
def test_a_hint_that_the_policy_gives_too_is_told_once_in_our_words(tmp_path, kind):
    body, place = written(kind)
    path = tmp_path / "one.json"
    path.write_text(json.dumps(body))
    (one,) = dumps.objects_in(str(path))
    other = f"{PREFIX}{place}[kueue.x-k8s.io/other]{BY_POLICY}"
    found = answer(tmp_path, one, warnings=(f"{PREFIX}{place}[{MISSPELT}]{BY_POLICY}", other, "of another"))
    right = "kueue.x-k8s.io/podset-required-topology"
    assert found.warnings == (
        f"{place}[{MISSPELT}] is unknown and has no effect: did you mean {right}?",
        other,
        "of another",
    )
