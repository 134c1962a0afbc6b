"""Makes crds/bases/*.yaml and docs/api.md from the models: ``python -m crds.generate`` writes, ``--check`` compares.

pydantic speaks JSON Schema, Kubernetes a structural subset of it: references are inlined, absent stands for null,
titles and null defaults go, exclusive bounds and unions other than int-or-string do not occur. A file leaves out what
the API server holds without it (`_slim`), for people apply and read these files.
"""

import re
import sys
from pathlib import Path
from typing import Any

import yaml

from crds import reference
from crds.constants import GROUP, VERSION
from crds.kinds.cluster_queue import ClusterQueue
from crds.kinds.cohort import Cohort
from crds.kinds.common import CEL, LIST_TYPE, ApiObject, Column, Schema
from crds.kinds.flex_topo import FlexTopo
from crds.kinds.local_queue import LocalQueue
from crds.kinds.resource_flavor import ResourceFlavor
from crds.kinds.workload import Workload
from crds.kinds.workload_priority_class import WorkloadPriorityClass

BASES = Path(__file__).parent / "bases"
REFERENCE = Path(__file__).parent.parent / "docs" / "api.md"
KINDS: tuple[type[ApiObject], ...] = (
    ResourceFlavor,
    Cohort,
    ClusterQueue,
    LocalQueue,
    Workload,
    WorkloadPriorityClass,
    FlexTopo,
)
CATEGORY = "topogate"

_HEADER = "# Generated from the models in crds/ by `make generate`. Do not edit.\n"


def definition(kind: type[ApiObject]) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind, as a plain object."""
    names = kind.definition
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.plural}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "topogate"}},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.__name__,
                "listKind": f"{kind.__name__}List",
                "plural": names.plural,
                "singular": names.singular,
                "shortNames": list(names.short_names),
                "categories": [CATEGORY],
            },
            "scope": "Namespaced" if names.namespaced else "Cluster",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [_column(column) for column in names.columns],
                    "schema": {"openAPIV3Schema": _slim(schema(kind))},
                    **({"subresources": {"status": {}}} if names.status else {}),
                }
            ],
        },
    }


def schema(kind: type[ApiObject]) -> Schema:
    """The structural schema of a kind. ``metadata`` is checked by the API server itself."""
    # The schema of what is sent: in the other mode every field with a default is required.
    raw = kind.model_json_schema(by_alias=True, mode="validation")
    whole = _structural(raw, raw.get("$defs", {}))
    for known in ("apiVersion", "kind", "metadata"):  # the API server has its own schema and texts for them
        del whole["properties"][known]
    return whole


def files() -> dict[Path, str]:
    """Path and text of every generated file."""
    made = {BASES / f"{GROUP}_{kind.definition.plural}.yaml": _HEADER + dump(definition(kind)) for kind in KINDS}
    return made | {REFERENCE: reference.text(KINDS, [schema(kind) for kind in KINDS])}


def dump(value: object) -> str:
    """YAML in the order of the object's keys."""
    return yaml.safe_dump(value, sort_keys=False, width=120, allow_unicode=True)


def main(arguments: list[str]) -> int:
    """Write the files, or with ``--check`` say which differ; 1 where any does."""
    stale = [path for path, text in files().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in arguments:
        for path in stale:
            sys.stderr.write(f"{path}: differs from the models in crds/; run `make generate`\n")
        return 1 if stale else 0
    BASES.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
    return 0


def _slim(node: Schema) -> Schema:
    """The node without what the API server holds anyway, all the way down.

    Lists are atomic where nothing else is said, an int-or-string is either of both, a pattern that refuses the empty
    text needs no least length, and what a list or map is says what its entries are.
    """
    slim = {key: value for key, value in node.items() if (key, value) != (LIST_TYPE, "atomic")}
    if "x-kubernetes-int-or-string" in slim:
        del slim["anyOf"]
    if slim.get("minLength") == 1 and not re.search(slim.get("pattern", ""), ""):
        del slim["minLength"]
    if "properties" in slim:
        slim["properties"] = {name: _slim(child) for name, child in slim["properties"].items()}
    for word in ("items", "additionalProperties"):
        if isinstance(slim.get(word), dict):
            child = _slim(slim[word])
            slim[word] = {key: value for key, value in child.items() if key != "description" or key not in slim}
    if "description" in slim:
        slim["description"] = " ".join(slim["description"].split())
    return slim


def _column(column: Column) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.path}
    if column.priority:
        entry["priority"] = column.priority
    return entry


def _structural(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """One schema node as Kubernetes takes it: references inlined, ``X | None`` as X, nothing it cannot parse."""
    node = _inlined(node, definitions)
    cleaned = {key: value for key, value in node.items() if key not in {"title", "$defs", "anyOf", "const"}}
    if node.get("default", ...) is None:
        del cleaned["default"]
    # A structural schema knows no const: a field with one value is an enum of one.
    if "const" in node:
        cleaned["enum"] = [node["const"]]
    if "x-kubernetes-int-or-string" in node:
        cleaned["anyOf"] = node["anyOf"]
    for key, walk in _CHILDREN.items():
        if key in cleaned:
            cleaned[key] = walk(cleaned[key], definitions)
    # Description and type first, where a person looks for them.
    return dict(sorted(cleaned.items(), key=lambda item: _ORDER.get(item[0], len(_ORDER))))


def _inlined(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """The node with what it refers to and its one arm that is not null; marks of both are kept."""
    if "$ref" in node:
        inner = definitions[node["$ref"].rsplit("/", 1)[1]]
    elif "anyOf" in node and "x-kubernetes-int-or-string" not in node:
        arms = [arm for arm in node["anyOf"] if arm.get("type") != "null"]
        if len(arms) != 1:
            raise TypeError(f"a union cannot be a structural schema: {node}")
        inner = arms[0]
    else:
        return node
    outer = {key: value for key, value in node.items() if key not in {"$ref", "anyOf"}}
    # The field's own marks win over those of its type. Rules are not replaced: both hold.
    merged = _inlined(inner, definitions) | outer
    if CEL in inner and CEL in outer:
        merged[CEL] = [*inner[CEL], *outer[CEL]]
    return merged


def _properties(value: dict[str, Schema], definitions: dict[str, Schema]) -> dict[str, Schema]:
    return {name: _structural(child, definitions) for name, child in value.items()}


def _child(value: Schema | bool, definitions: dict[str, Schema]) -> Schema | bool:
    return value if isinstance(value, bool) else _structural(value, definitions)


_CHILDREN: dict[str, Any] = {"properties": _properties, "items": _child, "additionalProperties": _child}
_ORDER = {key: place for place, key in enumerate(("description", "type", "format", "default", "enum", "properties"))}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
