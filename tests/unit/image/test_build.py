"""`make image`: which base it takes, which it refuses, and what it has the engine do."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from image import build
from image.build import BuildError, base, command, engine

ROOT = Path(__file__).parents[3]
DIGEST = "sha256:" + "0123456789abcdef" * 4
PINNED = f"registry.example.com/python:3.13-slim@{DIGEST}"


@pytest.mark.parametrize("found", [PINNED, f"python@{DIGEST}", f"localhost:5000/a/b@{DIGEST}"])
def test_a_base_with_a_digest_is_taken(found, tmp_path):
    assert base(found, tmp_path / "none") == (found, DIGEST)
    (tmp_path / "base.txt").write_text(f"# as of today\n\n{found}\n")
    assert base("", tmp_path / "base.txt") == (found, DIGEST)
    assert base(f"other@{DIGEST}", tmp_path / "base.txt")[0] == f"other@{DIGEST}"  # what is asked for comes first


@pytest.mark.parametrize(
    "found", ["python:3.13-slim", "python", f"python:3.13-slim@{DIGEST[:-1]}", f"python@md5:{'0' * 64}", f"@{DIGEST}"]
)
def test_any_other_base_is_refused_with_what_to_do(found, tmp_path):
    (tmp_path / "base.txt").write_text(f"{found}\n")
    for given, file in ((found, tmp_path / "none"), ("", tmp_path / "base.txt")):
        with pytest.raises(BuildError, match=r"has no digest.*\n`docker pull \S+` prints.*make image BASE=\S+@sha256"):
            base(given, file)


def test_without_any_base_the_tag_of_the_dockerfile_is_proposed(tmp_path):
    with pytest.raises(BuildError, match=r"no base image is given.*\n`docker pull python:3\.13-slim`"):
        base("", tmp_path / "none")
    (tmp_path / "empty").write_text("# nothing yet\n")
    with pytest.raises(BuildError, match="no base image is given"):
        base("", tmp_path / "empty")


def test_nothing_has_to_be_said_for_the_tag_that_the_dockerfile_is_written_for():
    pinned, _ = base("")
    assert pinned.partition("@")[0] == build._default()


def test_the_first_engine_that_is_here_builds():
    assert engine("", {"podman": "/p", "buildah": "/b"}.get) == "podman"
    assert engine("buildah", {"podman": "/p", "buildah": "/b"}.get) == "buildah"
    with pytest.raises(BuildError, match="none of docker, podman, buildah is here"):
        engine("", {}.get)
    with pytest.raises(BuildError, match="podman is here"):
        engine("podman", {"docker": "/d"}.get)


def test_the_image_says_upon_what_it_stands():
    line = command("podman", "topogate:1", PINNED, DIGEST)
    assert line[:2] == ["podman", "build"]
    assert f"--build-arg=BASE={PINNED}" in line
    assert f"--label=org.opencontainers.image.base.digest={DIGEST}" in line
    assert line[-1] == "."


@pytest.fixture
def run(tmp_path):
    """Runs the program with an engine that writes its arguments down: exit status, what it said, what was built."""
    tool, seen = tmp_path / "bin" / "buildah", tmp_path / "seen"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\npwd > {seen}\nprintf "%s\\n" "$@" >> {seen}\nexit $STATUS\n')
    tool.chmod(0o755)

    def go(*arguments, status=0):
        done = subprocess.run(
            [sys.executable, "-m", "image.build", *arguments],
            cwd=ROOT,
            env={**os.environ, "PATH": f"{tool.parent}:/usr/bin:/bin", "STATUS": str(status)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr, seen.read_text().splitlines() if seen.exists() else []

    return go


def test_it_builds_this_repository_and_ends_as_the_engine_does(run):
    status, said, built = run("--tag", "t:1", "--base", PINNED, "--engine", "buildah")
    assert status == 0
    assert built[:2] == [str(ROOT), "build"]
    assert PINNED in said
    assert run("--tag", "t:1", "--base", PINNED, "--engine", "buildah", status=7)[0] == 7


def test_nothing_is_built_without_a_digest(run):
    status, said, built = run("--tag", "t:1", "--base", "python:3.13-slim", "--engine", "buildah")
    assert status == 1
    assert said.startswith("the image was not built: ")
    assert built == []


def test_the_file_is_read_where_the_page_says():
    page = (ROOT / "docs" / "install.md").read_text()
    assert str(build.BASE_FILE.relative_to(ROOT)) in page
    assert re.search(r"^make image TAG=", page, re.MULTILINE)
