"""How the product's modules lie beside each other: no circles, no folder that is a hall, no name twice. docs/develop.md
has the rooms."""

import tomllib
from collections import Counter

import pytest
from support.imports import PACKAGES, ROOT, circle, classes, imports, modules, rooms

MOST = 20  # modules side by side


@pytest.fixture(scope="module")
def graph():
    return imports(modules(*PACKAGES))


def test_no_modules_import_each_other_in_a_circle(graph):
    assert len(graph) > 300
    assert circle(graph) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folders_import_each_other(graph, package):
    inner = {package, *(name for name in graph if name.startswith(f"{package}.") and f"{name}." in "".join(graph))}
    assert [found for one in sorted(inner) if (found := circle(rooms(graph, one)))] == []


def in_order(contracts):
    """By package, the rooms that its contract puts into an order."""
    layers = [one for one in contracts if one["type"] == "layers" and "containers" in one]
    return {
        package: {room for layer in one["layers"] for room in layer.replace("|", " ").split()}
        for one in layers
        for package in one["containers"]
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_folders_have_an_order_that_is_written_down(graph, package):
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    parts = [name.split(".") for name in graph if name.startswith(f"{package}.")]
    folders = {each[1] for each in parts if len(each) > 2}
    assert len(folders) < 2 or folders - in_order(contracts).get(package, set()) == set()


def test_a_folder_without_a_place_in_the_order_is_found():
    contract = {"type": "layers", "containers": ["a"], "layers": ["b | c", "d"]}
    assert in_order([contract, {"type": "layers", "layers": ["a"]}, {"type": "forbidden"}]) == {"a": {"b", "c", "d"}}


@pytest.mark.parametrize("package", [*PACKAGES, "benchmarks"])
def test_no_folder_is_a_hall(package):
    found = modules(package)
    folders = {name for name in found if any(other.startswith(f"{name}.") for other in found)}
    counts = Counter(name.rpartition(".")[0] for name in found if name not in folders)
    assert {folder: count for folder, count in counts.items() if count > MOST} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_class_name_is_there_twice(package):
    found = Counter(name for text in modules(package).values() for name in classes(text))
    assert [name for name, times in found.items() if times > 1] == []


def test_classes_are_found_by_their_names():
    assert classes("class A: pass\nclass _B: pass\nclass C:\n    class D: pass\n") == ["A", "C"]


def test_circles_are_found_wherever_the_import_stands():
    late = "def f():\n    from p.a import x\n"
    for_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.a\n"
    for text in (late, for_types):
        assert circle(imports({"p.a": "from p import b", "p.b": text})) == ["p.a", "p.b", "p.a"]
    assert circle(imports({"p.a": "from p.b import y", "p.b": "import p.c", "p.c": ""})) == []
    folders = imports({"p.f.a": "import p.g.b", "p.g.b": "", "p.g.c": "import p.f.d", "p.f.d": ""})
    assert circle(folders) == []
    assert circle(rooms(folders, "p")) == ["p.f", "p.g", "p.f"]
