"""Nothing is offered that does nothing: every field of the API, every annotation and every setting has a reader.

`support.readers` says what counts. Specs of Workload and FlexTopo are copies that Topogate makes, as statuses are, for
people and for itself: somebody has to write each field.
"""

import textwrap

import msgspec
import pytest
from support.imports import modules
from support.readers import unread, unused_names, unwritten, uses

from crds import constants
from crds.generate import KINDS, schema
from crds.kinds.cluster_queue import ClusterQueue
from crds.kinds.cohort import Cohort
from crds.kinds.local_queue import LocalQueue
from crds.kinds.resource_flavor import ResourceFlavor
from crds.kinds.workload import Workload
from crds.kinds.workload_priority_class import WorkloadPriorityClass
from crds.settings import Settings
from kube import objects, queues
from kube.workloads import WorkloadObject

PACKAGES = (
    *("engine", "queueing", "simulator", "crds", "kube", "webhook", "ungater", "agent", "serving", "certs", "cli"),
    *("manifests", "web"),
)
READ_AS = {
    ResourceFlavor: objects.ResourceFlavor,
    Cohort: queues.Cohort,
    ClusterQueue: queues.ClusterQueue,
    LocalQueue: queues.LocalQueue,
}
CLASSES = (WorkloadPriorityClass,)  # whose fields stand beside the metadata
FOR_PEOPLE = ["description"]  # in words, which decide nothing
HANDED_ON = (objects.Toleration,)  # into pod templates
DECLARED = ("crds.kinds.", "crds.reference", "crds.generate")


@pytest.fixture(scope="module")
def product():
    return {name: text for name, text in modules(*PACKAGES).items() if not name.startswith(DECLARED)}


@pytest.fixture(scope="module")
def used(product):
    return uses(product)


def part_of(struct, name):
    return next(one.type for one in msgspec.structs.fields(struct) if one.name == name)


def properties(kind, part):
    return schema(kind)["properties"][part]


@pytest.mark.parametrize("kind", READ_AS, ids=lambda kind: kind.__name__)
def test_every_field_of_a_spec_is_read(kind, used):
    found = unread(properties(kind, "spec"), [part_of(READ_AS[kind], "spec")], used, HANDED_ON)
    assert list(found) == []


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_field_of_a_class_is_read_but_its_words_for_people(kind, used):
    found = unread(schema(kind), [objects.PriorityClass], used, HANDED_ON, "class")
    assert [one.removeprefix("class.") for one in found] == FOR_PEOPLE


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (kind, part)
        for kind in KINDS
        if kind not in CLASSES
        for part in ("spec", "status")
        if part == "status" or kind not in READ_AS
    ],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_every_field_of_what_topogate_makes_is_written(kind, part, used):
    shapes = [part_of(WorkloadObject, part)] if kind is Workload else []
    assert list(unwritten(properties(kind, part), used, shapes, HANDED_ON, part)) == []


def test_every_annotation_and_label_is_read(product):
    used = uses({name: text for name, text in product.items() if name != "crds.constants"})
    unused = unused_names(product["crds.constants"], used)
    assert [name for name in unused if not isinstance(getattr(constants, name, None), int)] == []


def test_every_setting_is_read(product):
    outside = {name: text for name, text in product.items() if name != "crds.settings"}
    assert sorted(Settings.model_fields.keys() - uses(outside).attributes) == []


# --- made-up offenders ---------------------------------------------------------------------------------------------


class _Weight(objects.Struct, frozen=True):
    weight: int = 1


class _Queue(objects.Struct, frozen=True):
    strategy: str = ""
    fair_sharing: _Weight | None = None
    rules: tuple[_Weight, ...] = ()
    kept: dict[str, object] | None = None


def fields(*names, **inner):
    return {"properties": {**{name: {"type": "string"} for name in names}, **inner}}


def code(text):
    return uses({"m": textwrap.dedent(text)})


WEIGHTED = "def f(spec): return spec.fair_sharing.weight, spec.rules"


def test_a_field_that_is_dropped_while_it_is_decoded_is_found_though_others_have_its_name():
    below = fields(fairSharing=fields("weight", "alpha"), rules={"items": fields("weight", "since")})
    used = code(f"{WEIGHTED}\ndef g(other): return other.alpha, other.since, other.delayed")
    assert list(unread({**below}, [_Queue], used)) == ["spec.fairSharing.alpha", "spec.rules.since"]
    assert list(unread(fields("delayed"), [_Queue], used)) == ["spec.delayed"]


def test_a_field_that_is_decoded_and_never_looked_at_is_found():
    asked = fields("strategy")
    assert list(unread(asked, [_Queue], code("def f(spec): spec.strategy = 1"))) == ["spec.strategy"]
    assert list(unread(asked, [_Queue], code("class A:\n    strategy: str = 'strategy'"))) == ["spec.strategy"]
    assert list(unread(asked, [_Queue], code("def f(spec): return spec.strategy"))) == []
    assert list(unread(fields("weight"), [_Weight], code(""))) == ["spec.weight"]
    assert list(unread(fields("weight"), [_Weight], code(""), [_Weight])) == []
    assert list(unread(fields("seconds"), [_Weight], code(""), [_Weight])) == ["spec.seconds"]


def test_below_what_is_kept_as_it_came_the_key_has_to_be_named():
    asked = fields(kept=fields("left", "right"))
    used = code('def f(spec):\n    """right"""\n    return spec.kept["left"]')
    assert list(unread(asked, [_Queue], used)) == ["spec.kept.right"]


def test_a_field_of_a_status_that_nobody_writes_is_found():
    asked = fields("weightedShare", conditions={"items": fields("reason", "delayedRequest")})
    used = code('def f(): return {"conditions": [g(reason="x")], "weightedShare": 1}')
    assert list(unwritten(asked, used)) == ["status.conditions.delayedRequest"]
    assert list(unwritten(fields("strategy", "delayed"), code(""), [_Queue], [_Queue])) == ["status.delayed"]


def test_an_annotation_that_is_only_checked_and_listed_is_found():
    names = """
        QOS = "a/qos"
        LINK = "a/link"
        ONE, OTHER = "a/one", "a/other"
        EACH = "a/each"
        ALL = (EACH,)

        class Keys:
            @property
            def gate(self): return "gate"
            @property
            def queue(self): return "queue"
            @property
            def both(self): return (self.queue,)
    """
    used = """
        from names import ALL, LINK, QOS, Keys
        CHOICES = {QOS: ("guaranteed",)}
        WISHES = (*CHOICES, LINK)
        def f(pod, keys): return pod.get(LINK), [key in pod for key in ALL], keys.both
    """
    assert unused_names(textwrap.dedent(names), code(used)) == ["QOS", "ONE", "OTHER", "gate"]
