import io

import pytest
import yaml

from cli.install import printing
from manifests import render
from manifests.render import InstallOptions

LIMIT = 134_000  # bytes: what one still reads through before it is applied, and keeps in a repository


def printed(objects):
    stream = io.StringIO()
    printing.write(objects, stream)
    return stream.getvalue()


def read(text):
    return [obj for one in yaml.safe_load_all(text) for obj in one.get("items", [one])]


def of_schema(properties):
    schema = {"openAPIV3Schema": {"type": "object", "properties": properties}}
    return {"kind": "CustomResourceDefinition", "spec": {"versions": [{"name": "v1", "schema": schema}]}}


def test_an_installation_is_short():
    assert len(printed(render.objects()).encode()) < LIMIT


@pytest.mark.parametrize(
    "options",
    [
        InstallOptions(),
        InstallOptions(agent=True, kueue=True, metrics_authentication=True),
        InstallOptions(config="# ü\n\nlogLevel: debug\n"),
    ],
    ids=["base", "all", "settings"],
)
def test_what_is_read_is_what_was_printed(options):
    assert read(printed(render.objects(options))) == render.objects(options)


def test_kinds_are_one_list_and_rights_have_documents_of_their_own():
    documents = list(yaml.safe_load_all(printed(render.objects())))
    assert [len(one["items"]) for one in documents if one["kind"] == "List"] == [7]
    rights = printed(obj for obj in render.objects() if obj["kind"] != "CustomResourceDefinition")
    assert not {"*", "&"} & {line.strip("- ")[0] for line in rights.splitlines() if line.strip("- ")}


def test_a_field_begins_a_line_and_comes_again_by_its_alias():
    limits = {"type": "object", "properties": {"cpu": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}}}
    text = printed([of_schema({"first": limits, "second": limits, "other": {"type": "integer"}})])
    (line,) = [line for line in text.splitlines() if "second" in line]
    assert line.strip() == "second: *1,"
    assert "first: &1 {type: object, properties: {\n" in text
    assert text.count("pattern") == 1
    assert read(text) == [of_schema({"first": limits, "second": limits, "other": {"type": "integer"}})]


def test_what_differs_by_its_description_alone_is_written_once():
    amount = {"type": "integer", "maximum": 2147483647, "minimum": 0}
    one = {"one": {"description": "One.", **amount}, "two": {"description": "Two.", **amount}, "plain": amount}
    pods = {"pods": {"description": "Pods.", "type": "object", "properties": one}}
    more = {"more": {"description": "More.", "type": "object", "properties": one}}
    text = printed([of_schema(pods | more)])
    assert text.count("2147483647") == 1
    assert "two: {description: Two., <<: *2}," in text
    assert "plain: *2" in text
    assert "more: {description: More., <<: *1}" in text
    assert read(text) == [of_schema(pods | more)]


def test_a_key_that_reads_like_a_merge_is_a_key():
    twice = {"description": "a", "<<": {"type": "integer", "maximum": 2147483647}}
    objects = [of_schema({"first": twice, "second": {**twice, "description": "b"}})]
    assert read(printed(objects)) == objects


WORDS = """yes None null ~ 1 1e3 0x1f *a &a !a %a @a `a` {a,b} [a] it's "b" a\\\\b = << 2026-11-23 a,b --- ... ü 🦄 :"""
VALUES = [
    *WORDS.split(),
    *(
        "",
        " ",
        "a: b",
        "a #b",
        "- a",
        "? a",
        "a\nb",
        "a\n",
        "\na",
        " a\nb ",
        "a\tb",
        "\u0007",
        "\u2028",
        "\x85",
        "x" * 200,
    ),
    *(True, False, None, 0, -1, 0.5, {}, [], {"a": {}}, {"a": []}, [[]], [{"a": "b\nc"}], {"b c": [1, {"d": "e: f"}]}),
    *(["x" * 200, {"y": "z" * 200}], {"a": {"b": "#" * 200}, "c": None}),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_every_value_comes_back(value):
    objects = [{"kind": "A", "value": value, "list": [value, {"in": value}]}, of_schema({"a": {"default": value}})]
    assert read(printed(objects)) == objects
