"""A release: one version everywhere, and a changelog that people can read before they upgrade."""

import re
import tomllib
from datetime import date
from pathlib import Path

import pytest
import yaml

from cli.doctor.installation import OLDEST
from localcluster.programs.build import KUBERNETES_VERSION

ROOT = Path(__file__).parents[3]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
RELEASES = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
TAG = re.compile(r"\btopogate[:-](\d+\.\d+\.\d+)\b|\btag: (\d\S+?)\}|\bnewTag: (\d\S+?)\}")
NAMING = (
    *(ROOT / "Makefile", ROOT / "Dockerfile", ROOT / "README.md"),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(path for path in (ROOT / "manifests").rglob("*.yaml") if "templates" not in path.parts),
)


def named(text):
    return ["".join(found) for found in TAG.findall(text)]


def test_the_changelog_is_short_enough_to_be_read():
    assert len(CHANGELOG.splitlines()) <= 160


def test_every_version_of_the_changelog_has_a_date_and_the_newest_is_first():
    dated = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) - (\d{4}-\d\d-\d\d)", release) for release in RELEASES]
    assert all(dated), RELEASES
    order = [(tuple(map(int, found.groups()[:3])), date.fromisoformat(found[4])) for found in dated]
    assert order == sorted(order, reverse=True)


def test_the_first_version_of_the_changelog_is_that_of_the_package():
    assert RELEASES[0].split(" - ")[0] == VERSION


@pytest.mark.parametrize("path", NAMING, ids=lambda path: str(path.relative_to(ROOT)))
def test_images_and_files_of_a_release_are_named_by_its_version(path):
    assert set(named(path.read_text())) <= {VERSION}


def test_a_version_that_is_named_is_found():
    text = "image: topogate:0.1.0, dist/topogate-0.1.1.cdx.json, {repository: topogate, tag: 0.1.2}, topogate:other"
    assert named(text) == ["0.1.0", "0.1.1", "0.1.2"]


def test_the_chart_is_of_that_version():
    chart = yaml.safe_load((ROOT / "manifests" / "helm" / "topogate" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_the_page_of_supported_versions_names_those_that_tests_and_doctor_know():
    page = (ROOT / "docs" / "upgrades.md").read_text()
    oldest = ".".join(map(str, OLDEST))
    assert f"| Kubernetes | {oldest} and newer" in page
    assert f"tests run on {KUBERNETES_VERSION}" in page
    assert f"{RELEASES[1].split(' - ')[0]} to {VERSION}" in page, "the way from the version before"
