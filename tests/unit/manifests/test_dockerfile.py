"""What can be known of the image without a container engine."""

import fnmatch
import re
import tomllib
from pathlib import Path

import pytest
from support.image_root import instructions, sent
from support.wheel import required

from agent import copies
from manifests import render

ROOT = Path(__file__).parents[3]
LOCKS = ("requirements-build.lock", "requirements-dev.lock")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def of(word):
    return [rest for each, rest in instructions() if each == word]


def test_every_word_is_known():
    assert {word for word, _ in instructions()} == {
        "ARG",
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "LABEL",
        "ENV",
        "USER",
        "ENTRYPOINT",
    }


def test_the_base_is_pinned_by_a_tag_and_new_enough():
    (argument,) = of("ARG")
    base = argument.removeprefix("BASE=")
    assert {stage.split()[0] for stage in of("FROM")} == {"${BASE}"}
    tag = re.fullmatch(r"python:(\d+)\.(\d+)-slim", base)
    assert tag, "a tag with the minor version"
    least = re.fullmatch(r">=(\d+)\.(\d+)", PROJECT["project"]["requires-python"])
    assert tuple(map(int, tag.groups())) >= tuple(map(int, least.groups()))


def test_what_is_copied_is_there_and_is_sent():
    for rest in of("COPY"):
        words = [word for word in rest.split() if not word.startswith("--")]
        if "--from=build" in rest:
            assert words == ["/venv", "/venv"]
            continue
        for source in words[:-1]:
            assert (ROOT / source).exists(), source
            assert source == "." or source in sent(), source


def test_all_that_the_wheel_is_built_from_is_sent_and_nothing_else():
    packages = set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    files = {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]}
    assert sent() == packages | files | {"pyproject.toml", "requirements.lock", "requirements-build.lock"}
    assert all((ROOT / name).exists() for name in sent())
    ignored = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if fnmatch.fnmatch("x/__pycache__", line)
    ]
    assert ignored


def test_everything_is_installed_by_hash():
    commands = [command.strip() for run in of("RUN") for command in run.split("&&")]
    installs = [command for command in commands if re.search(r"pip (install|wheel)", command)]
    assert len(installs) == 4
    for command in installs:
        assert "--no-deps" in command
        assert "--require-hashes" in command or "--no-index" in command or "--no-build-isolation" in command


def locked(name):
    return {
        re.sub(r"[-_.]+", "-", line.split("==")[0]).lower()
        for line in (ROOT / name).read_text().splitlines()
        if re.match(r"[A-Za-z]", line)
    }


def test_the_build_backend_has_all_that_it_requires():
    """It is installed without dependencies, by a lock file that the Makefile reads too: the file has to be whole."""
    assert PROJECT["build-system"]["build-backend"].startswith("hatchling")
    assert locked("requirements-build.lock") == required("hatchling") | required("editables")
    for file in ("Dockerfile", "Makefile"):
        assert "-r requirements-build.lock" in (ROOT / file).read_text()


def test_what_builds_the_package_is_of_the_same_versions_where_it_is_developed():
    build, dev = (
        set(re.findall(r"^[\w.-]+==\S+|--hash=\S+", (ROOT / name).read_text(), re.MULTILINE)) for name in LOCKS
    )
    assert build <= dev


def test_the_program_has_all_that_it_requires():
    for requirement in PROJECT["project"]["dependencies"]:
        name = re.match(r"[\w.-]+", requirement)[0]
        assert required(name) <= locked("requirements.lock"), name


def test_the_entry_point_is_the_program():
    assert of("ENTRYPOINT") == ['["topogate"]']
    assert PROJECT["project"]["scripts"]["topogate"] == "cli.main:main"
    environment = " ".join(of("ENV"))
    assert "PATH=/venv/bin:$PATH" in environment
    assert "PYTHONDONTWRITEBYTECODE=1" in environment  # the root file system is read-only


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet"])
def test_manifests_run_it_as_it_was_made(kind):
    (user,) = of("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "numeric, so that runAsNonRoot can be checked"
    for obj in render.objects(render.InstallOptions(agent=True)):
        if obj["kind"] != kind:
            continue
        pod = obj["spec"]["template"]["spec"]
        context = pod["securityContext"]
        if kind == "Deployment":  # the agent reads what root alone may read
            assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"]
            if container["name"] == "kubelet-files":  # less than the program: it writes nothing but copies
                assert container["command"] == ["python", "-I", "-m", copies.__name__]
                continue
            assert "command" not in container
            assert container["args"][0] in {"webhook", "ungater", "agent"}
            assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}
