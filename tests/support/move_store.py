"""An API server in memory, with what moves between Kueue and Topogate ask of it, as `kube.client.Client` has it.

Objects have versions and uids; a precondition that does not hold is a conflict, a patch that changes nothing is no
write. Finalizers hold an object up, a CustomResourceDefinition that goes takes its objects along, the status of
Workloads and Jobs is a subresource, an apply gives up what it applied before. Only Kueue's kinds are discovered.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import msgspec
from support.history.loop import EPOCH
from support.history.server import merge_patch

from kube.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from kube.patches import PatchType
from kube.resources import CUSTOM_RESOURCE_DEFINITIONS, JOBS, Resource
from ungater.model.kueue_objects import GROUP

Json = dict[str, Any]
Key = tuple[str, str, str, str]  # group, plural, namespace, name
_OF_STATUS = {"workloads", "jobs"}
_LIMITS = ("borrowingLimit", "lendingLimit")
LARGEST = 1 << 20  # bytes of a ConfigMap's data


class Killed(Exception):  # noqa: N818 -- it is what happened
    """Whoever writes dies right after a write of his."""


class MoveStore:
    """The objects. ``judge(key, old, new)`` is called with each change; ``now``: seconds since the beginning."""

    def __init__(self) -> None:
        self.objects: dict[Key, Json] = {}
        self.applied: dict[tuple[Key, str], Json] = {}
        self.version = 100
        self.now = 0.0
        self.made: Counter[Key] = Counter()
        self.judge: Callable[[Key, Json | None, Json | None], None] = lambda *_: None

    def copy(self) -> "MoveStore":
        """The same objects at the same time; nobody judges."""
        found = MoveStore()
        found.objects, found.applied = deepcopy(self.objects), deepcopy(self.applied)
        found.version, found.now, found.made = self.version, self.now, Counter(self.made)
        return found

    def time(self) -> str:
        """The time as objects have it."""
        return datetime.fromtimestamp(EPOCH + self.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def within(self, resource: Resource, namespace: str | None = None) -> list[Json]:
        """The objects of a kind by name. Raises NotFound where the kind is not served."""
        if resource.group == GROUP and resource.kind not in {one["kind"] for one in self.kinds()}:
            raise NotFound(404, "NotFound", f"{resource.plural} are not served")
        head = (resource.group, resource.plural)
        keys = sorted(key for key in self.objects if key[:2] == head and (not namespace or key[2] == namespace))
        return [self.objects[key] for key in keys]

    def find(self, resource: Resource, name: str, namespace: str = "") -> Json | None:
        """One object; None where there is none."""
        return self.objects.get(_key(resource, name, namespace))

    def kinds(self) -> Iterator[Json]:
        """Kueue's kinds, as they are discovered."""
        for key, body in self.objects.items():
            if key[1] == CUSTOM_RESOURCE_DEFINITIONS.plural:
                names = body["spec"]["names"]
                namespaced = body["spec"]["scope"] == "Namespaced"
                yield {"name": names["plural"], "kind": names["kind"], "verbs": ["list"], "namespaced": namespaced}

    def create(self, resource: Resource, body: Json, namespace: str = "", *, status: bool = False) -> Json:
        """A new object, with the status that it has where ``status``. Raises AlreadyExists."""
        meta = body["metadata"]
        key = _key(resource, meta["name"], (namespace or meta.get("namespace", "")) if resource.namespaced else "")
        if key in self.objects:
            raise AlreadyExists(409, "AlreadyExists", str(key))
        self.made[key] += 1
        more = {"uid": f"{'-'.join(key[1:])}-{self.made[key]}", "creationTimestamp": self.time()}
        kept = {name: value for name, value in body.items() if status or name != "status"}
        there = {"namespace": key[2]} if key[2] else {}
        head = {"apiVersion": resource.api_version, "kind": resource.kind}
        return self._commit(key, None, {**head, **kept, "metadata": {**meta, **there, **more}})

    def patch(self, resource: Resource, name: str, namespace: str, body: Json, sub: str = "") -> Json:
        """A merge patch. Raises NotFound, Conflict, Invalid."""
        key = _key(resource, name, namespace)
        old = self._there(key)
        for field in ("uid", "resourceVersion"):
            if (wanted := (body.get("metadata") or {}).get(field)) and wanted != old["metadata"][field]:
                raise Conflict(409, "Conflict", f"{field} is {old['metadata'][field]}, not {wanted}")
        new = merge_patch(deepcopy(old), deepcopy(body))
        if key[1] in _OF_STATUS:
            kept, changed = (old, new) if sub == "status" else (new, old)
            new = {**kept, "status": changed.get("status", {})}
        return self._store(key, old, new)

    def apply(self, resource: Resource, body: Json, manager: str, *, dry_run: bool = False) -> Json:
        """Server-side apply; lists are replaced as a whole. Raises Invalid."""
        meta = body["metadata"]
        key = _key(resource, meta["name"], meta.get("namespace", "") if resource.namespaced else "")
        old = self.objects.get(key)
        base = deepcopy(old) if old is not None else {}
        _give_up(base, self.applied.get((key, manager), {}), body)
        new = _with_defaults(key, merge_patch(base, deepcopy(body)))
        if dry_run:
            _validate(key, new)
            return new
        self.applied[key, manager] = deepcopy(body)
        return self.create(resource, new) if old is None else self._store(key, old, new)

    def delete(self, resource: Resource, name: str, namespace: str = "") -> None:
        """Delete; finalizers hold it up. Raises NotFound."""
        key = _key(resource, name, namespace)
        old = self._there(key)
        if old["metadata"].get("finalizers"):
            self._store(key, old, {**old, "metadata": {**old["metadata"], "deletionTimestamp": self.time()}})
            return
        self._commit(key, old, None)
        if key[1] == CUSTOM_RESOURCE_DEFINITIONS.plural:
            plural = old["spec"]["names"]["plural"]
            for other in [one for one in self.objects if one[:2] == (GROUP, plural)]:
                self._commit(other, self.objects[other], None)

    def _there(self, key: Key) -> Json:
        if (found := self.objects.get(key)) is None:
            raise NotFound(404, "NotFound", str(key))
        return found

    def _store(self, key: Key, old: Json, new: Json) -> Json:
        new = _with_defaults(key, new)
        if new == old:
            return old
        _validate(key, new)
        # A job that starts gets its template in the same write.
        runs = key[1] == JOBS.plural and not old["spec"].get("suspend")
        if runs and old["spec"]["template"] != new["spec"]["template"]:
            raise Invalid(422, "Invalid", "spec.template: field is immutable")
        gone = new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers")
        return self._commit(key, old, None if gone else new)

    def _commit(self, key: Key, old: Json | None, new: Json | None) -> Json:
        self.version += 1
        if new is None:
            self.objects.pop(key)
            self.applied = {one: body for one, body in self.applied.items() if one[0] != key}
        else:
            new = _with_defaults(key, new)
            _validate(key, new)
            new = {**new, "metadata": {**new["metadata"], "resourceVersion": str(self.version)}}
            self.objects[key] = new
        self.judge(key, old, new)
        return new or {}


class StoreClient:
    """One who calls. ``dies_after``: that many writes, and Killed is raised after the last of them; ``writes``: so far.

    ``requests``: how many there were by verb and plural; ``forbidden``: verb and plural of what he may not do.
    """

    def __init__(self, store: MoveStore, dies_after: int | None = None) -> None:
        self.store = store
        self.dies_after = dies_after
        self.writes = 0
        self.requests: Counter[tuple[str, str]] = Counter()
        self.forbidden: set[tuple[str, str]] = set()

    def _ask(self, verb: str, resource: Resource) -> None:
        self.requests[verb, resource.plural] += 1
        if (verb, resource.plural) in self.forbidden:
            raise Forbidden(403, "Forbidden", f"may not {verb} {resource.plural}")

    def _wrote(self, before: int) -> None:
        if self.store.version == before:
            return
        self.writes += 1
        if self.writes == self.dies_after:
            raise Killed

    async def get(self, resource, name, namespace=None, *, type=dict):  # noqa: A002
        self._ask("get", resource)
        found = self.store.find(resource, name, namespace or "")
        if found is None:
            raise NotFound(404, "NotFound", name)
        return msgspec.json.decode(msgspec.json.encode(found), type=type)

    async def list(self, resource, namespace=None, *, label_selector="", type=dict, **_):  # noqa: A002
        self._ask("list", resource)
        wanted = dict(one.split("=") for one in label_selector.split(",") if one)
        every = self.store.within(resource, namespace if resource.namespaced else None)
        found = [one for one in every if wanted.items() <= (one["metadata"].get("labels") or {}).items()]
        return [msgspec.json.decode(msgspec.json.encode(one), type=type) for one in found]

    async def raw(self, _method, path, **_):
        kinds = [*self.store.kinds()]
        if not kinds:
            raise NotFound(404, "NotFound", path)
        if path == f"/apis/{GROUP}":
            return json.dumps({"versions": [{"version": "v1beta2"}]}).encode()
        return json.dumps({"resources": kinds}).encode()

    async def create(self, resource, obj, namespace=None, **_):
        self._ask("create", resource)
        if resource.kind == "SelfSubjectAccessReview":
            asked = obj["spec"]["resourceAttributes"]
            plural = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
            return {"status": {"allowed": (asked["verb"], plural) not in self.forbidden}}
        before = self.store.version
        made = self.store.create(resource, deepcopy(obj), namespace or "")
        self._wrote(before)
        return deepcopy(made)

    async def patch(self, resource, name, namespace=None, *, body, subresource="", content_type=PatchType.MERGE, **_):
        assert content_type is PatchType.MERGE
        self._ask("patch", resource)
        before = self.store.version
        self.store.patch(resource, name, namespace or "", body, subresource)
        self._wrote(before)

    async def apply(self, resource, obj, *, field_manager, dry_run=False, **_):
        self._ask("patch", resource)
        before = self.store.version
        made = self.store.apply(resource, obj, field_manager, dry_run=dry_run)
        self._wrote(before)
        return deepcopy(made)

    async def delete(self, resource, name, namespace=None, **_):
        self._ask("delete", resource)
        before = self.store.version
        self.store.delete(resource, name, namespace or "")
        self._wrote(before)


def _key(resource: Resource, name: str, namespace: str | None) -> Key:
    return resource.group, resource.plural, namespace or "", name


def _give_up(base: Json, before: Json, now: Json) -> None:
    """Remove from ``base`` what was applied before and is not any more."""
    for name, value in before.items():
        if name not in now:
            base.pop(name, None)
        elif isinstance(value, dict) and isinstance(now[name], dict) and isinstance(base.get(name), dict):
            _give_up(base[name], value, now[name])


def _with_defaults(key: Key, body: Json) -> Json:
    """Both kinds of ClusterQueues say how they are stopped, as their schemas have it."""
    if key[1] != "clusterqueues":
        return body
    return {**body, "spec": {"stopPolicy": "None", **body["spec"]}}


def _validate(key: Key, body: Json) -> None:
    """Raises Invalid, as the API server does by schema and limits."""
    if key[1] == "configmaps" and len(json.dumps(body.get("data") or {})) > LARGEST:
        raise Invalid(422, "Invalid", f"Too long: must have at most {LARGEST} bytes")
    if key[1] == "clusterqueues" and not body["spec"].get("cohortName"):
        amounts = (
            amount
            for group in body["spec"].get("resourceGroups") or ()
            for flavor in group["flavors"]
            for amount in flavor["resources"]
        )
        if any(limit in amount for amount in amounts for limit in _LIMITS):
            raise Invalid(422, "Invalid", "borrowingLimit must be nil when cohort is empty")
