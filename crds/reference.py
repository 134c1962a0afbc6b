"""Makes docs/api.md from the models and settings, so that the reference cannot fall behind them."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from crds.constants import API_VERSION, COPY_OF, DEFAULT_DOMAIN, HELD, OWNER, POD_GROUP_INDEX, Keys
from crds.descriptions import described
from crds.kinds.common import CEL, LIST_KEYS, ApiObject, Schema
from crds.settings import AT_START, ENV_PREFIX, Settings

_INTRO = f"""# API reference

Generated from the models in `crds/` by `make generate`. Do not edit.

## Keys on jobs and pods

Keys that begin with `{DEFAULT_DOMAIN}` begin with another domain if the setting `domain` names one. Topogate itself
writes the keys that are marked as written:

| key | where | meaning |
|---|---|---|
"""


def text(kinds: Sequence[type[ApiObject]], schemas: Sequence[Schema]) -> str:
    """The whole page in Markdown."""
    parts = [_INTRO, *_key_rows(), *_settings()]
    for kind, schema in zip(kinds, schemas, strict=True):
        parts += _kind(kind, schema)
    return "".join(parts)


def _key_rows() -> Iterator[str]:
    keys = Keys()
    for spellings, meaning in (
        (
            keys.required,
            "a level, by its label key or its name: all pods run in one domain of this level, or none runs",
        ),
        (keys.preferred, "a level, or `auto` (the narrowest): the pods use as few domains as possible"),
        ((keys.unconstrained,), '`"true"`: the pods can run anywhere, but they are counted'),
        ((keys.slice_level,), "a level: each slice of the pods runs in one domain of this level"),
        (
            (keys.slice_size,),
            "a whole number from 1 to 1000000: how many consecutive ranks form a slice; the last one may have fewer",
        ),
        (
            (keys.slice_layers,),
            'level and size for 1 to 3 layers of slices, the widest first: `[{"topology": LEVEL, "size": N}, ...]`',
        ),
        (
            (keys.group,),
            "a name: pod sets with the same name share one domain of the level; one of them may have slices",
        ),
        (
            (keys.spreading,),
            "beside a required level, as JSON: how large a [share](concepts.md#shares-of-domains) a domain may have",
        ),
    ):
        yield _row(" or ".join(f"`{key}`" for key in spellings), "annotation on a Job or a pod template", meaning)
    yield _row(f"`{keys.queue_name}`", "label on a Job", "the LocalQueue of the Job")
    yield _row(
        f"`{keys.pod_group}`",
        "label or annotation on a pod without a Job",
        "the name of its group: the pods of a group are one workload",
    )
    yield _row(
        f"`{keys.gated_by}`",
        "annotation on a Job, JobSet, LeaderWorkerSet or pod",
        "names such as `example.com/budget`, separated by commas: it is not admitted until all of them are removed",
    )
    total = "annotation on a pod of a group, or of a controller other than a Job"
    yield _row(f"`{keys.pod_group_total}`", total, "the total number of pods")
    index = f"`{keys.domain}/{POD_GROUP_INDEX}`"
    yield _row(
        index,
        "label on a pod of a group",
        "the rank of the pod, from 0, unless its controller sets a label with one",
    )
    yield _row(
        f"`{keys.gate}`", "scheduling gate, written", "keeps the pod from being scheduled until its place is known"
    )
    yield _row(f"`{keys.workload}`", "annotation, written", "the Workload of the pod")
    yield _row(f"`{keys.pod_set}`", "annotation, written", "the pod set of the pod in this Workload")
    yield _row(
        f"`{COPY_OF}`",
        "annotation on a Workload, written",
        "identifies the templates and requests that the Workload was copied from",
    )
    yield _row(
        f"`{OWNER}`",
        "annotation on a Workload, written",
        "a digest that identifies the owner of the Workload; its name does not",
    )
    yield _row(
        f"`{HELD}`",
        "annotation on a Workload, written",
        "the admission of a Workload that was deleted while its pods ran, until it is in the status of this Workload",
    )


def _settings() -> Iterator[str]:
    yield (
        "\n## Settings\n\nSettings are in key `config.yaml` of ConfigMap `topogate-config`. An environment variable "
        f"`{ENV_PREFIX}<NAME>` takes precedence. Times are in seconds, sizes in bytes. A running component takes a new "
        "value `at once` (within seconds), or `after a restart`.\n\n"
        "| setting | variable | default | taken | meaning |\n|---|---|---|---|---|\n"
    )
    for name, field in described(Settings).model_fields.items():
        shown = f"`{_as_text(field.default)}`"
        default = "" if field.default is None or field.default == "" else shown
        taken = "after a restart" if name in AT_START else "at once"
        yield _row(f"`{to_camel(name)}`", f"`{ENV_PREFIX}{name.upper()}`", default, taken, field.description or "")


def _kind(kind: type[ApiObject], schema: Schema) -> Iterator[str]:
    names = kind.definition
    scope = "namespaced" if names.namespaced else "cluster-scoped"
    yield f"\n## {kind.__name__}\n\n{schema['description']}\n\n"
    yield f"`{API_VERSION}`, {scope}, short name `{names.short_names[0]}`, category `topogate`.\n\n"
    yield "| field | type | meaning |\n|---|---|---|\n"
    parts = [part for part in ("spec", "status") if part in schema["properties"]]
    for part in parts:
        yield from _fields(schema["properties"][part], part)
    if not parts:  # a class: its fields stand beside its metadata
        yield from _fields(schema, "")
    rules = list(_rules(schema, ""))
    if rules:
        yield "\nRules beyond the types:\n\n"
        yield from rules


def _fields(node: Schema, path: str) -> Iterator[str]:
    required = node.get("required", [])
    for name, child in node.get("properties", {}).items():
        at = f"{path}.{name}".lstrip(".")
        marks = ["required"] if name in required else []
        yield _row(f"`{at}`", ", ".join([_type(child), *marks, *_bounds(child)]), child.get("description", ""))
        yield from _fields(child, at)
        if isinstance(child.get("items"), dict):
            yield from _fields(child["items"], f"{at}[]")


def _type(node: Schema) -> str:
    if "x-kubernetes-int-or-string" in node:
        return "quantity"
    if "enum" in node:
        return " \\| ".join(f"`{value}`" for value in node["enum"])
    if node["type"] == "array":
        keys = f" by {', '.join(node[LIST_KEYS])}" if LIST_KEYS in node else ""
        return f"list of {_type(node['items'])}{keys}"
    if isinstance(node.get("additionalProperties"), dict):
        return f"map to {_type(node['additionalProperties'])}"
    return str(node.get("format", node["type"]))


def _bounds(node: Schema) -> Iterator[str]:
    words = {"minItems": "at least", "maxItems": "at most", "minimum": "from", "maximum": "to"}
    # The bounds of a quantity are those of its integer form alone, and would mislead a reader.
    if "x-kubernetes-int-or-string" not in node:
        yield from (f"{word} {node[key]:,}" for key, word in words.items() if key in node)
    if "default" in node and node["default"] != {}:
        yield f"default `{_as_text(node['default'])}`"


def _rules(node: Schema, path: str) -> Iterator[str]:
    for rule in node.get(CEL, []):
        yield f"- `{path or '.'}`: {rule['message']}\n"
    for name, child in node.get("properties", {}).items():
        yield from _rules(child, f"{path}.{name}".lstrip("."))
    if isinstance(node.get("items"), dict):
        yield from _rules(node["items"], f"{path}[]")


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        plain = [each.model_dump(by_alias=True) if isinstance(each, BaseModel) else each for each in value]
        return json.dumps(plain)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _row(*cells: str) -> str:
    # A row of Markdown ends at a line break, and descriptions have them.
    return f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |\n"
