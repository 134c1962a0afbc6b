"""The bill of materials: what is in it, by whose schema, and that it is the same each time."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from image import sbom
from image.sbom import LockError, pinned

ROOT = Path(__file__).parents[3]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ONE = "aiohttp==3.14.5 --hash=sha256:" + "0" * 64


@pytest.fixture(scope="module")
def made():
    return sbom.text(LOCK, PROJECT)


@pytest.fixture(scope="module")
def bill(made):
    return json.loads(made)


def test_it_is_what_the_schema_of_cyclonedx_says(made):
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(made) is None


def test_a_bill_that_is_none_would_be_told(made):
    broken = made.replace('"type": "library"', '"type": "nonsense"', 1)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(broken) is not None


def test_the_same_lock_file_gives_the_same_bytes(made, tmp_path):
    for number in range(2):  # other processes, with other seeds of their hashes
        command = [sys.executable, "-m", "image.sbom", str(tmp_path / str(number))]
        subprocess.run(command, cwd=ROOT, check=True, env={"PYTHONHASHSEED": str(number)}, capture_output=True)
        assert (tmp_path / str(number)).read_text() == made
    assert not re.search(r"timestamp", made)
    other = sbom.text(LOCK.replace("aiohttp==", "aiohttp2==", 1), PROJECT)
    assert json.loads(other)["serialNumber"] != json.loads(made)["serialNumber"]


def test_every_line_of_the_lock_file_is_a_component_with_all_its_hashes(bill):
    wanted = {match[0] for match in re.findall(r"^(([a-z0-9.-]+)==(\S+))", LOCK, re.MULTILINE)}
    assert {f"{one['name']}=={one['version']}" for one in bill["components"]} == wanted
    hashes = [
        found["content"]
        for one in bill["components"]
        for reference in one["externalReferences"]
        for found in reference["hashes"]
    ]
    assert sorted(hashes) == sorted(re.findall(r"sha256:([0-9a-f]{64})", LOCK))
    windows = next(one for one in bill["components"] if one["name"] == "colorama")
    assert windows["properties"] == [{"name": "marker", "value": 'sys_platform == "win32"'}]


def test_it_says_who_requires_whom(bill):
    root = bill["metadata"]["component"]
    assert (root["name"], root["version"]) == ("topogate", PROJECT["version"])
    graph = {one["ref"]: one.get("dependsOn", []) for one in bill["dependencies"]}
    names = {one["bom-ref"]: one["name"] for one in bill["components"]}
    direct = {sbom.plain(re.match(r"[\w.-]+", each)[0]) for each in PROJECT["dependencies"]}
    assert {names[ref] for ref in graph["topogate"]} == direct
    reached, left = set(), ["topogate"]
    while left:
        ref = left.pop()
        if ref not in reached:
            reached.add(ref)
            left += graph[ref]
    assert reached == {"topogate", *names}, "nothing is in the lock file that nobody requires"


@pytest.mark.parametrize("line", ["aiohttp>=3", "aiohttp==3.14.5", "aiohttp===", "-r other.txt", "http://x/y.whl"])
def test_a_line_that_pins_nothing_is_named(line):
    with pytest.raises(LockError, match=re.escape(line.split("=")[0][:6])):
        list(pinned(f"{ONE}\n{line}\n"))
