"""Objects of a cluster from files: what ``kubectl get nodes,pods,... -o yaml`` and ``topogate snapshot`` write.

YAML of one or several documents, or JSON; objects alone or in Lists; gzip is unpacked. Kinds that nobody here reads are
counted and left out. What is wrong is told with file, line, object and field.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from cli.output import Failure, progress
from cli.whatif.cases import opened
from crds.constants import GROUP
from kube import objects
from kube.budgets import PodDisruptionBudget
from kube.parents import ControllerRevision, JobSet, LeaderWorkerSet
from kube.pods.device_claims import DeviceClass
from kube.pods.devices import DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from kube.queues import ClusterQueue, LocalQueue
from kube.replicas import REPLICATED, Counted, read_as
from kube.resources import Resource
from kube.topologies import FlexTopo, NodeResourceTopology
from kube.type_words import in_words
from kube.volumes.objects import (
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from ungater.model import kueue_objects
from ungater.model.workload_object import Workload

LARGE: Final = 1 << 22  # bytes: from here on reading takes seconds
One = TypeVar("One", bound=objects.Object)


KINDS: Final[dict[tuple[str, str], tuple[str, type[objects.Object]]]] = {  # (group, kind) -> field of `Dump`, type
    ("", "Node"): ("nodes", objects.Node),
    ("", "Pod"): ("pods", objects.Pod),
    ("", "Namespace"): ("namespaces", objects.Namespace),
    ("", "LimitRange"): ("limit_ranges", objects.LimitRange),
    ("node.k8s.io", "RuntimeClass"): ("runtime_classes", objects.RuntimeClass),
    ("", "PersistentVolumeClaim"): ("claims", PersistentVolumeClaim),
    ("", "PersistentVolume"): ("volumes", PersistentVolume),
    ("storage.k8s.io", "StorageClass"): ("storage_classes", StorageClass),
    ("storage.k8s.io", "CSINode"): ("csi_nodes", CsiNode),
    ("storage.k8s.io", "CSIDriver"): ("csi_drivers", CsiDriver),
    ("storage.k8s.io", "CSIStorageCapacity"): ("capacities", CsiStorageCapacity),
    ("resource.k8s.io", "DeviceClass"): ("device_classes", DeviceClass),
    ("resource.k8s.io", "DeviceTaintRule"): ("taint_rules", DeviceTaintRule),
    ("resource.k8s.io", "ResourceSlice"): ("resource_slices", ResourceSlice),
    ("resource.k8s.io", "ResourceClaimTemplate"): ("claim_templates", ResourceClaimTemplate),
    ("resource.k8s.io", "ResourceClaim"): ("resource_claims", ResourceClaim),
    ("batch", "Job"): ("jobs", objects.Job),
    ("jobset.x-k8s.io", "JobSet"): ("job_sets", JobSet),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): ("leaders", LeaderWorkerSet),
    ("apps", "ControllerRevision"): ("revisions", ControllerRevision),
    ("scheduling.k8s.io", "PodGroup"): ("native_groups", objects.PodGroup),
    ("scheduling.k8s.io", "PriorityClass"): ("priority_classes", objects.PriorityClass),
    (kueue_objects.GROUP, "WorkloadPriorityClass"): ("workload_classes", objects.PriorityClass),
    ("policy", "PodDisruptionBudget"): ("budgets", PodDisruptionBudget),
    (GROUP, "ResourceFlavor"): ("flavors", objects.ResourceFlavor),
    (GROUP, "ClusterQueue"): ("cluster_queues", ClusterQueue),
    (GROUP, "LocalQueue"): ("local_queues", LocalQueue),
    (GROUP, "Workload"): ("workloads", Workload),
    (GROUP, "FlexTopo"): ("flexes", FlexTopo),
    ("topology.node.k8s.io", "NodeResourceTopology"): ("topologies", NodeResourceTopology),
}
COUNTED: Final = {  # (API version, kind) of those that tell how many pods of each kind they make
    (one.api_version, one.kind): one for newest, older in REPLICATED for one in (newest, *older)
}


class Dump(msgspec.Struct):
    """The objects of a cluster, from files or from its API server.

    ``topologies`` and ``flexes``: what nodes publish of their inside, by node name. ``replicated``: with the version
    that each was read in. ``version``: of the API server; "" for files. ``ignored``: kinds that are not read, and how
    many there were.
    """

    flavors: list[objects.ResourceFlavor] = msgspec.field(default_factory=list)
    jobs: list[objects.Job] = msgspec.field(default_factory=list)
    nodes: list[objects.Node] = msgspec.field(default_factory=list)
    pods: list[objects.Pod] = msgspec.field(default_factory=list)
    workloads: list[Workload] = msgspec.field(default_factory=list)
    topologies: dict[str, NodeResourceTopology] = msgspec.field(default_factory=dict)
    flexes: dict[str, FlexTopo] = msgspec.field(default_factory=dict)
    cluster_queues: list[ClusterQueue] = msgspec.field(default_factory=list)
    local_queues: list[LocalQueue] = msgspec.field(default_factory=list)
    namespaces: list[objects.Namespace] = msgspec.field(default_factory=list)
    job_sets: list[JobSet] = msgspec.field(default_factory=list)
    leaders: list[LeaderWorkerSet] = msgspec.field(default_factory=list)
    revisions: list[ControllerRevision] = msgspec.field(default_factory=list)
    replicated: list[tuple[Resource, Counted]] = msgspec.field(default_factory=list)
    priority_classes: list[objects.PriorityClass] = msgspec.field(default_factory=list)
    limit_ranges: list[objects.LimitRange] = msgspec.field(default_factory=list)
    runtime_classes: list[objects.RuntimeClass] = msgspec.field(default_factory=list)
    workload_classes: list[objects.PriorityClass] = msgspec.field(default_factory=list)
    budgets: list[PodDisruptionBudget] = msgspec.field(default_factory=list)
    claims: list[PersistentVolumeClaim] = msgspec.field(default_factory=list)
    volumes: list[PersistentVolume] = msgspec.field(default_factory=list)
    storage_classes: list[StorageClass] = msgspec.field(default_factory=list)
    csi_nodes: list[CsiNode] = msgspec.field(default_factory=list)
    csi_drivers: list[CsiDriver] = msgspec.field(default_factory=list)
    capacities: list[CsiStorageCapacity] = msgspec.field(default_factory=list)
    device_classes: list[DeviceClass] = msgspec.field(default_factory=list)
    taint_rules: list[DeviceTaintRule] = msgspec.field(default_factory=list)
    reads_devices: bool = True  # whether all is read that tells of devices, where there are any
    resource_slices: list[ResourceSlice] = msgspec.field(default_factory=list)
    claim_templates: list[ResourceClaimTemplate] = msgspec.field(default_factory=list)
    resource_claims: list[ResourceClaim] = msgspec.field(default_factory=list)
    native_groups: list[objects.PodGroup] = msgspec.field(default_factory=list)
    reads_groups: bool = True  # whether there are any, and they may be read
    version: str = ""
    ignored: Counter[str] = msgspec.field(default_factory=Counter)

    def add(self, one: "Found") -> None:
        """Take in one object. Failure where it is malformed."""
        # These are found by their version: each version tells its counts in another form.
        if (resource := COUNTED.get((str(one.body.get("apiVersion", "")), one.kind))) is not None:
            self.replicated.append((resource, one.read(read_as(resource))))
            return
        known = KINDS.get((one.group, one.kind))
        if known is None:
            self.ignored[one.kind] += 1
            return
        place, kind = getattr(self, known[0]), known[1]
        # A later object of a name wins, as the newer of two files does.
        if isinstance(place, dict):
            place[one.name] = one.read(kind)
        else:
            place.append(one.read(kind))


class Found(msgspec.Struct, frozen=True):
    """One object as it stands in a file: in document ``document`` (from 0), as item ``item`` of its List."""

    file: str
    text: bytes
    document: int
    item: int | None
    body: dict[str, Any]
    kind: str

    @property
    def group(self) -> str:
        """The API group; "" for the core."""
        return str(self.body.get("apiVersion", "")).rpartition("/")[0]

    @property
    def name(self) -> str:
        """Its name, or what it is to be made of."""
        meta = self.body.get("metadata")
        return str(meta.get("name") or meta.get("generateName") or "") if isinstance(meta, dict) else ""

    def __str__(self) -> str:
        meta = self.body.get("metadata")
        namespace = meta.get("namespace") if isinstance(meta, dict) else None
        return f"{self.kind} {f'{namespace}/' if namespace else ''}{self.name}".rstrip()

    def read(self, kind: type[One]) -> One:
        """Decode it. Failure where a field is not what it has to be, or the name is missing."""
        if not self.name:
            raise self.fail("metadata.name", "is missing: every object needs a name")
        try:
            # Through JSON, so that a file is checked as strictly as an answer of the API server.
            return msgspec.json.decode(msgspec.json.encode(self.body), type=kind)
        except msgspec.ValidationError as error:
            # msgspec appends the path to its message; the line in the file is found by that path.
            message, _, path = in_words(str(error)).partition(" - at `$")
            raise self.fail(path.rstrip("`").lstrip("."), message) from None

    def fail(self, path: str, message: str) -> Failure:
        """What is wrong at a field (``spec.taints[0].key``)."""
        line, column = _position(self.text, self.document, self.item, path)
        where = f"line {line}, column {column}: " if line else ""
        return Failure(
            f"{self.file}: {where}{self}: {path}: {message}" if path else f"{self.file}: {where}{self}: {message}"
        )


_KEYS: Final = frozenset({"str", "bool", "int", "float", "merge", "value"})  # tags of YAML that a key may have


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads dates as the text that they are, and keys as text, as Kubernetes does.

    An unquoted ``on``, ``off``, ``yes`` or ``no`` is a truth value in YAML 1.1: as a key, kubectl reads it as ``true``
    or ``false`` (sigs.k8s.io/yaml 1.6).
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        """A mapping with its keys as text. Raises yaml.MarkedYAMLError for a key that kubectl takes for none."""
        for key, _ in node.value:
            # A null or a list as a key has no counterpart in JSON; kubectl refuses it, and so does this.
            if key.tag.rpartition(":")[2] not in _KEYS:
                text = key.value if isinstance(key, yaml.ScalarNode) else key.id
                raise yaml.MarkedYAMLError(None, None, f"the key {text} is no text", key.start_mark)
        # Merge keys (<<) are resolved in there, so the keys are turned into text afterwards.
        found = super().construct_mapping(node, deep=deep)
        return {str(key).lower() if isinstance(key, bool) else str(key): value for key, value in found.items()}


_Loader.yaml_implicit_resolvers = {
    first: [(tag, expression) for tag, expression in found if tag != "tag:yaml.org,2002:timestamp"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read(files: Sequence[str]) -> Dump:
    """All objects of these files; - is stdin.

    Raises:
        Failure: a file cannot be read, or something in it is no object.
    """
    dump = Dump()
    for file in files:
        # A pipe has no size before it is read.
        large = file != "-" and Path(file).is_file() and Path(file).stat().st_size > LARGE
        with progress(f"reading {file}") if large else nullcontext():
            for found in objects_in(file):
                dump.add(found)
    return dump


def taken(bodies: Iterable[dict[str, Any]]) -> Dump:
    """The same of objects that came from the API server."""
    dump = Dump()
    for body in bodies:
        dump.add(Found("the cluster", b"", 0, None, body, body["kind"]))
    return dump


def objects_in(file: str) -> Iterator[Found]:
    """Every object of a file, those in Lists one by one."""
    name = "stdin" if file == "-" else file
    with opened(file) as stream:
        try:
            text = stream.read()
        except (OSError, EOFError) as error:
            raise Failure(f"{name}: {error}") from error
    yield from objects_in_text(name, text)


def objects_in_text(name: str, text: bytes) -> Iterator[Found]:
    """The same of a file that was read already."""
    for number, document in enumerate(_documents(name, text)):
        if document is None:
            continue
        if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
            line, _ = _position(text, number, None, "")
            raise Failure(f"{name}: line {line or 1}: expected a Kubernetes object with apiVersion and kind")
        kind = document["kind"]
        # Both are asked: a kind of somebody's may end in List and have no items.
        if not (kind.endswith("List") and isinstance(document.get("items"), list)):
            yield Found(name, text, number, None, document, kind)
            continue
        version = document.get("apiVersion")
        for index, item in enumerate(document["items"]):
            if not isinstance(item, dict) or not isinstance(item.get("kind", ""), str):
                line, _ = _position(text, number, index, "")
                raise Failure(f"{name}: line {line or 1}: item {index} of the {kind} is no object")
            if "kind" not in item and kind != "List":  # as the API server lists them
                item = {"apiVersion": version, "kind": kind.removesuffix("List"), **item}  # noqa: PLW2901
            yield Found(name, text, number, index, item, item.get("kind", ""))


def _documents(name: str, text: bytes) -> Iterator[Any]:
    # JSON is YAML too, but the YAML reader takes many times as long for a large dump.
    if text.lstrip()[:1] == b"{":
        try:
            yield msgspec.json.decode(text)
        except msgspec.DecodeError:
            pass  # several objects one after the other, or YAML: that reader tells the line
        else:
            return
    try:
        yield from yaml.load_all(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise Failure(f"{name}: {where}{error.problem or error.context}: expected YAML or JSON") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise Failure(f"{name}: expected YAML or JSON in UTF-8, found characters that are not text") from None
    except RecursionError:
        raise Failure(f"{name}: expected YAML or JSON: it is nested too deeply") from None


def _position(text: bytes, document: int, item: int | None, path: str) -> tuple[int, int]:
    """Line and column of a field, or of what is nearest to it; (0, 0) where that cannot be found."""
    steps: list[str | int] = [] if item is None else ["items", item]
    for part in filter(None, path.replace("[", ".[").split(".")):
        steps.append(int(part[1:-1]) if part[1:-1].isdigit() else part) if part[0] == "[" else steps.append(part)
    try:
        # The text is parsed again for the line: that costs only where something is wrong.
        for number, node in enumerate(yaml.compose_all(text, Loader=_Loader)):
            if number == document:
                for step in steps:
                    # A field that is missing has no place; the nearest one above it is told.
                    node = _below(node, step) or node  # noqa: PLW2901
                return node.start_mark.line + 1, node.start_mark.column + 1
    except yaml.YAMLError:
        pass
    return 0, 0


def _below(node: yaml.Node, step: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        return node.value[step] if step < len(node.value) else None
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == step), None)
    return None


def say_ignored(dump: Dump) -> None:
    """Tell on stderr which kinds were left out."""
    if dump.ignored:
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(dump.ignored.items()))
        sys.stderr.write(f"not read: {listed}\n")
