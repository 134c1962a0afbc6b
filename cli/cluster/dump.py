"""Objects of a cluster from files: what ``kubectl get nodes,pods,... -o yaml`` and ``topogate snapshot`` write.

YAML of one or several documents, or JSON; objects alone or in Lists; gzip is unpacked. Kinds that nobody here reads are
counted and left out. What is wrong is told with file, line, object and field.
"""

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from cli.output import Failure, in_one_line, progress
from cli.whatif.cases import opened
from kube import objects
from kube.objects import Object
from kube.type_words import in_words
from ungater import kinds
from ungater.kinds import AnyKind

LARGE: Final = 1 << 22  # bytes: from here on reading takes seconds
One = TypeVar("One", bound=Object)
Read = TypeVar("Read")


KINDS: Final[Mapping[tuple[str, str], AnyKind[Any]]] = {  # by API group and kind
    (kind.resource.group, kind.resource.kind): kind for kind in kinds.KINDS
}


class Dump:
    """The objects of a cluster, from files or from its API server.

    ``version``: of the API server; "" for files. ``ignored``: kinds that are not read, and how many objects there were.
    ``unread``: kinds that the cluster does not serve, or that may not be read; of files nobody knows.
    """

    def __init__(
        self,
        found: Mapping[AnyKind[Any], Iterable[Object]] | None = None,
        *,
        version: str = "",
        unread: Collection[AnyKind[Any]] = (),
    ) -> None:
        self._objects: dict[AnyKind[Any], list[Any]] = {kind: [*each] for kind, each in (found or {}).items()}
        self.version = version
        self.unread = frozenset(unread)
        self.ignored: Counter[str] = Counter()

    def of(self, kind: AnyKind[One]) -> list[One]:
        """All objects of a kind, in the order in which they were read."""
        return self._objects.setdefault(kind, [])

    def by_key(self, kind: AnyKind[One]) -> dict[str, One]:
        """The same by ``namespace/name``, or ``name`` where the kind is cluster-scoped; the last of a key holds."""
        return {objects.key(one): one for one in self.of(kind)}

    def add(self, one: "FoundObject") -> None:
        """Take in one object. Failure where it is malformed."""
        kind = KINDS.get((one.api_group, one.kind))
        if kind is None or (kind in kinds.REPLICATED and one.version not in {each.version for each in kind.versions}):
            self.ignored[one.kind] += 1
            return
        self.of(kind).append(one.read(kind.type))


class FoundObject(msgspec.Struct, frozen=True):
    """One object as it stands in a file: in document ``document`` (from 0), as item ``item`` of its List."""

    file: str
    text: bytes
    document: int
    item: int | None
    body: dict[str, Any]
    kind: str

    @property
    def api_group(self) -> str:
        """The API group; "" for the core."""
        return str(self.body.get("apiVersion", "")).rpartition("/")[0]

    @property
    def version(self) -> str:
        """The version of the API group."""
        return str(self.body.get("apiVersion", "")).rpartition("/")[2]

    @property
    def name(self) -> str:
        """Its name, or what it is to be made of."""
        meta = self.body.get("metadata")
        return str(meta.get("name") or meta.get("generateName") or "") if isinstance(meta, dict) else ""

    @property
    def place(self) -> str:
        """``file.yaml:12``; of a large file, which takes seconds to look through for lines, the file alone."""
        lines = start_lines(self.text) if len(self.text) <= LARGE else {}
        line = lines.get((self.document, self.item))
        return f"{self.file}:{line}" if line else self.file

    def __str__(self) -> str:
        meta = self.body.get("metadata")
        namespace = meta.get("namespace") if isinstance(meta, dict) else None
        return f"{self.kind} {f'{namespace}/' if namespace else ''}{self.name}".rstrip()

    def read(self, kind: type[One]) -> One:
        """Decode it. Failure where a field is not what it has to be, or the name is missing."""
        if not self.name:
            raise self.fail("metadata.name", "is missing: every object needs a name")
        return self.read_body(self.body, kind)

    def read_body(self, body: Any, kind: type[Read]) -> Read:
        """Decode what was made of it. Failure where a field is not what it has to be."""
        try:
            # Through JSON, so that a file is checked as strictly as an answer of the API server.
            return msgspec.json.decode(msgspec.json.encode(body), type=kind)
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
_REPEATED: Final = 1_000_000  # values to which aliases may bring a document that says less itself


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads dates as the text that they are, and keys as text, as Kubernetes does.

    An unquoted ``on``, ``off``, ``yes`` or ``no`` is a truth value in YAML 1.1: as a key, kubectl reads it as ``true``
    or ``false`` (sigs.k8s.io/yaml 1.6).
    """

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self._may_repeat = b"&" in stream and b"*" in stream

    def construct_document(self, node: yaml.Node) -> Any:
        """One document. Raises yaml.MarkedYAMLError where aliases have it contain itself, or come to too much."""
        # Merge keys copy what they name, so this comes before anything is made of it. Most files have no alias.
        if self._may_repeat and not is_bounded(node):
            raise yaml.MarkedYAMLError(None, None, "aliases (*name) repeat too much", node.start_mark)
        return super().construct_document(node)

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


def is_bounded(document: yaml.Node) -> bool:
    """Whether a document ends, and is of a size in proportion to its text, with what each alias names written out."""
    sizes: dict[int, int] = {}
    above: set[int] = set()
    # Without recursion: a file is nested as deep as its author likes. Each node with parts is met twice.
    stack = [document]
    while stack:
        node = stack[-1]
        parts = _parts_of(node)
        if id(node) in sizes:
            stack.pop()
        elif id(node) in above or not parts:
            stack.pop()
            above.discard(id(node))
            sizes[id(node)] = 1 + sum(sizes[id(part)] for part in parts)
        else:
            above.add(id(node))
            missing = [part for part in parts if id(part) not in sizes]
            if any(id(part) in above for part in missing):
                return False
            stack.extend(missing)
    return sizes[id(document)] <= max(_REPEATED, 10 * len(sizes))


def _parts_of(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def read(files: Sequence[str]) -> Dump:
    """All objects of these files; - is stdin.

    Raises:
        Failure: a file cannot be read, or something in it is no object.
    """
    return taken(objects_of(files))


def taken(found: Iterable[FoundObject]) -> Dump:
    """The same of these objects."""
    dump = Dump()
    for one in found:
        dump.add(one)
    return dump


def objects_of(files: Sequence[str]) -> Iterator[FoundObject]:
    """The objects of files; says that it reads them where they are large. Raises Failure."""
    for file in files:
        # A pipe has no size before it is read.
        large = file != "-" and Path(file).is_file() and Path(file).stat().st_size > LARGE
        with progress(f"reading {file}") if large else nullcontext():
            yield from objects_in(file)


def live_objects(bodies: Iterable[dict[str, Any]]) -> Iterator[FoundObject]:
    """Objects that came from the API server, as if they stood in a file."""
    return (FoundObject("the cluster", b"", 0, None, body, body["kind"]) for body in bodies)


def objects_in(file: str) -> Iterator[FoundObject]:
    """Every object of a file, those in Lists one by one."""
    name = "stdin" if file == "-" else file
    with opened(file) as stream:
        try:
            text = stream.read()
        except (OSError, EOFError) as error:
            raise Failure(f"{name}: {error}") from error
    yield from objects_in_text(name, text)


def objects_in_text(name: str, text: bytes) -> Iterator[FoundObject]:
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
            yield FoundObject(name, text, number, None, document, kind)
            continue
        version = document.get("apiVersion")
        for index, item in enumerate(document["items"]):
            if not isinstance(item, dict) or not isinstance(item.get("kind", ""), str):
                line, _ = _position(text, number, index, "")
                raise Failure(f"{name}: line {line or 1}: item {index} of the {kind} is no object")
            if "kind" not in item and kind != "List":  # as the API server lists them
                item = {"apiVersion": version, "kind": kind.removesuffix("List"), **item}  # noqa: PLW2901
            yield FoundObject(name, text, number, index, item, item.get("kind", ""))


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
                    # A field that is missing has no place; the nearest one above it is reported.
                    node = _node_below(node, step) or node  # noqa: PLW2901
                return node.start_mark.line + 1, node.start_mark.column + 1
    except yaml.YAMLError:
        pass
    return 0, 0


@lru_cache(maxsize=8)
def start_lines(text: bytes) -> Mapping[tuple[int, int | None], int]:
    """The line in which each object of a file begins, by its document and its item; {} where nobody can tell."""
    lines: dict[tuple[int, int | None], int] = {}
    try:
        for number, node in enumerate(yaml.compose_all(text, Loader=_Loader)):
            lines[number, None] = node.start_mark.line + 1
            items = _node_below(node, "items")
            for index, item in enumerate(items.value if isinstance(items, yaml.SequenceNode) else ()):
                lines[number, index] = item.start_mark.line + 1
    except (yaml.YAMLError, RecursionError):
        pass
    return lines


def _node_below(node: yaml.Node, step: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        return node.value[step] if step < len(node.value) else None
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == step), None)
    return None


def say_ignored(dump: Dump) -> None:
    """Tell on stderr which kinds were left out."""
    if dump.ignored:
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(dump.ignored.items()))
        sys.stderr.write(f"not read: {in_one_line(listed)}\n")
