from pathlib import Path

import pytest
import yaml

from crds import generate
from crds.descriptions import described
from crds.kinds.common import CEL
from crds.settings import Settings

KINDS = pytest.mark.parametrize("kind", generate.KINDS, ids=lambda kind: kind.__name__)


def nodes(schema):
    yield schema
    for child in schema.get("properties", {}).values():
        yield from nodes(child)
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            yield from nodes(schema[word])


def test_the_files_are_what_the_models_say(capsys):
    assert generate.main(["--check"]) == 0, capsys.readouterr().err


def test_check_names_a_file_that_differs(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(generate, "BASES", tmp_path)
    monkeypatch.setattr(generate, "REFERENCE", tmp_path / "api.md")
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    stale = tmp_path / "topogate.dev_workloads.yaml"
    stale.write_text("old")
    assert generate.main(["--check"]) == 1
    assert str(stale) in capsys.readouterr().err


def test_kustomization_lists_exactly_the_files():
    listed = yaml.safe_load((generate.BASES.parent / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(f"bases/{path.name}" for path in generate.files() if path.suffix == ".yaml")
    assert {path.name for path in generate.BASES.iterdir()} == {Path(name).name for name in listed}


@KINDS
def test_schemas_are_structural(kind):
    for node in nodes(generate.schema(kind)):
        assert not node.keys() & {"$ref", "$defs", "title", "const", "exclusiveMinimum", "exclusiveMaximum", "oneOf"}
        assert "anyOf" not in node or "x-kubernetes-int-or-string" in node
        assert "type" in node or "x-kubernetes-int-or-string" in node
        assert node.get("default", ...) is not None
        assert not ("properties" in node and "additionalProperties" in node)


@KINDS
def test_what_people_read_is_there(kind):
    schema = generate.schema(kind)
    for node in nodes(schema):
        for field, child in node.get("properties", {}).items():
            assert child.get("description"), f"{kind.__name__}: {field} has no description"
    assert all(rule["message"] for node in nodes(schema) for rule in node.get(CEL, []))
    assert any("Reason" in column for column in kind.definition.columns) is kind.definition.status


@KINDS
def test_a_kind_without_a_status_has_no_subresource_for_one(kind):
    (version,) = generate.definition(kind)["spec"]["versions"]
    has = "status" in version["schema"]["openAPIV3Schema"]["properties"]
    assert has is ("status" in version.get("subresources", {})) is kind.definition.status


@KINDS
def test_lists_say_how_they_merge_and_are_bounded(kind):
    for node in nodes(generate.schema(kind)):
        if node.get("type") == "array":
            assert node["x-kubernetes-list-type"] in {"atomic", "set", "map"}
            assert node["maxItems"]


def test_the_reference_names_every_setting_field_and_rule():
    page = generate.files()[generate.REFERENCE]
    for name, field in described(Settings).model_fields.items():
        assert f"TOPOGATE_{name.upper()}" in page
        assert field.description, name
    for kind in generate.KINDS:
        schema = generate.schema(kind)
        for node in nodes(schema["properties"].get("spec", schema)):
            assert all(f".{name}`" in page or f"| `{name}`" in page for name in node.get("properties", {}))
            assert all(rule["message"] in page for rule in node.get(CEL, []))
