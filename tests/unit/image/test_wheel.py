"""The wheel, installed where there is no checkout and nothing but what it requires."""

import subprocess
import tarfile
import tomllib
import zipfile
from importlib import metadata

import pytest
import yaml
from support import wheel
from support.packages import ROOT

from manifests import render

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WHEEL = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
EVERY_MODULE = """
import importlib, pkgutil, sys
for top in sys.argv[1:]:
    for found in pkgutil.walk_packages(importlib.import_module(top).__path__, top + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
print(*sys.path, sep="\\n")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return wheel.build("wheel", tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def typed(built, tmp_path_factory):
    """Runs a program of a clean environment, in a folder of somebody's."""
    programs = wheel.install(built, tmp_path_factory.mktemp("environment"))
    folder, home = wheel.elsewhere(tmp_path_factory.mktemp("elsewhere")), tmp_path_factory.mktemp("home")

    def run(program, *arguments):
        command = [programs / program, *arguments]
        environment = wheel.person(home, programs)
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def content(file):
    """Path -> bytes of all files of our packages in a wheel."""
    with zipfile.ZipFile(file) as opened:
        names = [name for name in opened.namelist() if ".dist-info/" not in name]
        return {name: opened.read(name) for name in names}


def test_every_file_of_the_packages_is_in_the_wheel_and_nothing_else(built):
    there = {
        str(path.relative_to(ROOT)): path.read_bytes()
        for package in WHEEL["packages"]
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted = {name: data for name, data in there.items() if not name.startswith(tuple(WHEEL["exclude"]))}
    assert wanted.keys() >= {"localcluster/stages.yaml", "web/static/page.js", "manifests/base/webhook.yaml"}
    assert content(built) == wanted


def test_a_wheel_made_of_the_source_archive_is_the_same(built, tmp_path):
    archive = wheel.build("sdist", tmp_path)
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    assert content(wheel.build("wheel", tmp_path / "dist", source)) == content(built)


def test_every_module_can_be_imported_without_a_checkout_or_what_tests_need(typed):
    path = typed("python", "-P", "-c", EVERY_MODULE, *WHEEL["packages"]).splitlines()
    assert not [folder for folder in path if folder.startswith(str(ROOT))]


@pytest.mark.parametrize("program", PROJECT["project"]["scripts"])
def test_its_commands_say_their_version(typed, program):
    assert typed(program, "--version") == f"topogate {metadata.version('topogate')}\n"


def test_it_installs_what_the_checkout_installs(typed):
    documents = yaml.load_all(typed("topogate", "install", "-o", "yaml"), yaml.CSafeLoader)
    assert [made for document in documents for made in document.get("items", [document])] == render.objects()


def test_it_simulates(typed):
    command = "simulate run --jobs 20 --blocks 1 --racks 2 --hosts 2 -o json"
    assert '"topology"' in typed("topogate", *command.split())
