"""Objects nested as deeply as the API server stores them."""

import msgspec
import pytest

from crds import admitted_quota, numa_placement
from kube.connection.answers import Page, decode
from kube.connection.nesting import DEEPEST, deep
from kube.errors import BadAnswer
from kube.links import LinkError, parse_matrix
from kube.objects import Object, key
from kube.parents import ControllerRevision, JobSet, revised
from kube.replicas import ReplicatedObject, replicas_of
from kube.resources import JOB_SETS
from kube.watch import Feed, WatchEvent, _decode_partial
from kube.workloads import WholeWorkload


def nested(opening, closing, depth=DEEPEST - 10):
    return opening * depth + "1" + closing * depth


DEEP = [nested("[", "]"), nested('{"a":', "}")]


@pytest.mark.parametrize("value", DEEP)
def test_one_object_that_is_nested_deeply_costs_no_other_one_anything(value):
    meta = '{"name":"m","resourceVersion":"7"}'
    whole = f'{{"metadata":{meta},"spec":{{"replicatedJobs":[{{"x":{value}}}]}}}}'
    page = decode(Page, f'{{"items":[{whole},{{"metadata":{{"name":"honest"}}}}]}}'.encode(), JOB_SETS)
    feed = Feed(None, JOB_SETS, JobSet)
    assert [(name, obj is None) for name, obj in feed._objects(page).items()] == [("m", True), ("honest", False)]
    line = f'{{"type":"DELETED","object":{whole}}}'.encode()
    changes = []
    feed._read([line], changes)
    assert changes == [("m", None, None)]
    assert key(_decode_partial(line, WatchEvent[Object]).object) == "m"


def test_beyond_what_is_ever_stored_it_is_no_answer():
    with pytest.raises(BadAnswer):
        decode(WholeWorkload, f'{{"x":{nested("[", "]", 10 * DEEPEST)}}}'.encode(), "x")
    with pytest.raises(RecursionError):
        deep(msgspec.json.decode, nested("[", "]", 10 * DEEPEST).encode())


@pytest.mark.parametrize("value", DEEP)
def test_annotations_that_are_nested_deeply_are_none(value):
    assert admitted_quota.decode(f'{{"clusterQueue":"q","x":{value}}}') is None
    assert numa_placement.decode(f'[{{"zone":"node-0","amount":{{}},"x":{value}}}]') is None
    with pytest.raises(LinkError):
        parse_matrix(f"[[{value}]]")


@pytest.mark.parametrize("value", DEEP)
def test_what_is_nested_deeply_in_an_object_that_others_made_tells_nothing(value):
    spec = f'{{"pytorchReplicaSpecs":{{"Worker":{{"replicas":1,"template":{value}}}}}}}'
    one = decode(ReplicatedObject, f'{{"metadata":{{"name":"m"}},"spec":{spec}}}'.encode(), "x")
    assert replicas_of(one, "kubeflow.org/v1") is None
    data = f'{{"spec":{{"leaderWorkerTemplate":{{"x":{value}}}}}}}'
    revision = decode(ControllerRevision, f'{{"metadata":{{"name":"m"}},"data":{data}}}'.encode(), "x")
    assert revised(revision) is None
