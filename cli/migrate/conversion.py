"""One object of Kueue on its way to one of ours: every leaf judged, what is kept put together, what we lack refused."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from cli.cluster.dump import FoundObject
from cli.migrate.leaves import FieldTable, Leaf, build_object, list_leaves
from cli.migrate.older_versions import raise_version
from cli.migrate.our_kinds import find_problems
from cli.migrate.rows import TAKEN, FieldVerdict, Json, Outcome, Row, left, refused
from crds.constants import API_VERSION, MIGRATED_FROM
from ungater.model.kueue_objects import GROUP

CONFIG_GROUP: Final = f"config.{GROUP}"
_SERVER: Final = left("the API server's own")
_INSTALLED: Final = left("it says who installed Kueue's object")
# Copied, they would have a program look after our object, or remove it, as if that were the one that it installed.
_INSTALLERS: Final = (
    *("meta.helm.sh/", "helm.sh/", "argocd.argoproj.io/", "kustomize.toolkit.fluxcd.io/", "helm.toolkit.fluxcd.io/"),
    *("app.kubernetes.io/managed-by", "app.kubernetes.io/instance", "kubectl.kubernetes.io/", "kapp.k14s.io/"),
)
_OWN_FINALIZER: Final = f"{GROUP}/resource-in-use"
PREEMPTION_CONFIG: Final = f"{GROUP}/preemption-config-name"


class KnownObjects(msgspec.Struct, frozen=True):
    """What objects refer to: Kueue's bodies at v1beta2 by kind and name, and checks that are left out on request."""

    bodies: Mapping[tuple[str, str], Json]
    without_checks: frozenset[str] = frozenset()

    def find_body(self, kind: str, name: str) -> Json | None:
        """The cluster-scoped object of this kind and name."""
        return self.bodies.get((kind, name))


class Scene(msgspec.Struct, frozen=True):
    """What a verdict may depend on beside its leaf: the whole object, and all others."""

    body: Json
    known: KnownObjects


Notes = Iterable[tuple[str, FieldVerdict]]
Finish = Callable[[Json, Scene], Notes]


class Converted(msgspec.Struct, frozen=True):
    """What became of one object: ours, None where it is refused or nothing is made; its own row comes first."""

    source: FoundObject
    made: Json | None
    rows: list[Row]


def judge_metadata_key(leaf: Leaf, _scene: Scene) -> FieldVerdict:
    """A label or annotation of an object: what installers and servers wrote stays behind."""
    key = str(leaf.path[-1])
    if key.startswith(_INSTALLERS):
        return _INSTALLED
    if key == PREEMPTION_CONFIG:
        return refused(
            "Topogate has no PreemptionConfig: its victims follow spec.preemption alone",
            "see docs/preemption.md for which workloads may be preempted",
        )
    if key.partition("/")[0].endswith(GROUP):
        return refused("nothing in Topogate reads this key here", "remove it, or keep it as a note under another key")
    return TAKEN


def judge_finalizer(leaf: Leaf, _scene: Scene) -> FieldVerdict:
    """A finalizer keeps an object for a program, which does not know ours."""
    if leaf.value == _OWN_FINALIZER:
        return _SERVER
    why = f"{str(leaf.value)[:80]} keeps Kueue's object until somebody has seen its end; ours has no such somebody"
    return refused(why, "ask the program that wrote the finalizer whether it knows Topogate's kinds")


METADATA: Final[Mapping[str, FieldVerdict | Callable[[Leaf, Scene], FieldVerdict]]] = {
    "apiVersion": left("the version of Kueue's API"),
    "kind": left("it is the kind of the row"),
    "metadata.name": TAKEN,
    "metadata.namespace": TAKEN,
    "metadata.labels.*": judge_metadata_key,
    "metadata.annotations.*": judge_metadata_key,
    "metadata.finalizers[]": judge_finalizer,
    "metadata.ownerReferences[].**": refused(
        "ours would be deleted with the owner of Kueue's object", "create it where its owner is made"
    ),
    **{
        f"metadata.{name}": _SERVER
        for name in (
            *("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "selfLink"),
            *("deletionGracePeriodSeconds", "managedFields[].**"),
        )
    },
    "status.**": left("what Kueue observed; ours has its own"),
}


def convert_object(found: FoundObject, table: FieldTable[Scene], known: KnownObjects, finish: Finish) -> Converted:
    """Convert one object by the table of its kind; ``finish`` changes what was made and says so."""
    body, notes = raise_version(found.body)
    scene = Scene(body, known)
    judged = [(leaf, table.judge_leaf(leaf, scene)) for leaf in list_leaves(body)]
    said = [*notes, *((leaf.field, verdict) for leaf, verdict in judged)]
    if not name_of(body):
        said.append(("metadata.name", refused("the object has no name", "give it one", grave=True)))
        return _told(found, None, said)
    made = build_object(leaf for leaf, verdict in judged if verdict.outcome == "taken")
    origin = f"{body.get('apiVersion')}/{found.kind}/{body['metadata']['name']}"
    metadata = made.pop("metadata")
    metadata["annotations"] = {**metadata.get("annotations", {}), MIGRATED_FROM: origin}
    # In the order in which people write a manifest: -o yaml prints it.
    made = {"apiVersion": API_VERSION, "kind": found.kind, "metadata": metadata, **made}
    # After what the kind adds: the levels of a flavor are checked too.
    said.extend(finish(made, scene))
    said.extend(find_problems(found.kind, made))
    return _told(found, made, said)


def name_of(body: Json) -> str:
    """The name of an object; "" where it has none that is a text."""
    metadata = body.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def convert_nothing(
    found: FoundObject, table: FieldTable[Scene], known: KnownObjects, whole: Callable[[Scene], FieldVerdict]
) -> Converted:
    """Judge an object of which nothing is made by itself; ``whole``: what becomes of it."""
    body, notes = raise_version(found.body)
    scene = Scene(body, known)
    said = [*notes, *((leaf.field, table.judge_leaf(leaf, scene)) for leaf in list_leaves(body))]
    verdict = next((verdict for _, verdict in said if verdict.grave), None) or whole(scene)
    return Converted(found, None, [make_row(found, "", verdict), *(make_row(found, *each) for each in said)])


def _told(found: FoundObject, made: Json | None, said: list[tuple[str, FieldVerdict]]) -> Converted:
    grave = next(((field, verdict) for field, verdict in said if verdict.grave), None)
    rows = [make_row(found, field, verdict) for field, verdict in said if field]
    if grave is not None:
        field, verdict = grave
        why = f"{field}: {verdict.why}" if field else verdict.why
        return Converted(found, None, [make_row(found, "", refused(why, verdict.instead)), *rows])
    outcome: Outcome = "left" if made is None else "taken"
    if made is not None and any(verdict.outcome in {"changed", "refused"} for _, verdict in said):
        outcome = "changed"
    ours = f"{found.kind} {made['metadata']['name']}" if made is not None else ""
    return Converted(found, made, [make_row(found, "", FieldVerdict(outcome, ours=ours)), *rows])


def make_row(found: FoundObject, field: str, verdict: FieldVerdict) -> Row:
    """The row of a field, or of the object."""
    meta = found.body.get("metadata")
    namespace = meta.get("namespace") if isinstance(meta, dict) else ""
    return Row(
        kind=found.kind,
        name=found.name,
        namespace=namespace if isinstance(namespace, str) else "",
        field=field,
        outcome=verdict.outcome,
        ours=verdict.ours,
        why=verdict.why,
        instead=verdict.instead,
        where=found.place,
    )
