"""Which programs are taken, and how Go is found and run. Programs and Go are small scripts here."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from localcluster.errors import BinariesMissing
from localcluster.programs import binaries, build, golang

REAL = "#!/bin/sh\n"
# A Go that "builds" by writing what it was asked into the file after -o.
GO = """#!/bin/sh
case "$1" in
  env) echo go1.26.8 ;;
  list) echo a; echo b; echo c ;;
  build)
    echo "go: downloading example.com/m v1.0.0" >&2
    echo "example.com/m/p" >&2
    if [ -n "$FAKE_GO_FAILS" ]; then echo "p.go:1: does not compile" >&2; exit 1; fi
    while [ "$1" != "-o" ]; do shift; done
    echo "$3" > "$2"; chmod +x "$2" ;;
esac
"""


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Assets, PATH and cache that hold nothing but what a test puts there."""
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(binaries.CHOICE, "build")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Kubernetes v1.36.3\n", "1.36.3"),
        ("etcd Version: 3.6.16\nGit SHA: abc\n", "3.6.16"),
        ("kwok version v0.8.0 go1.26.8 (linux/amd64)", "0.8.0"),
        ("Client Version: v1.36.3\nKustomize Version: v5.8.1", "1.36.3"),
        ("Kubernetes v1.36.3-rc.1+abc", "1.36.3-rc.1+abc"),
        ("nothing", None),
    ],
)
def test_version_is_read_from_what_programs_print(text, version):
    assert binaries.parse_version(text) == version


def test_assets_come_before_path_and_the_wrong_version_is_passed_over(places):
    for name, (_, version) in binaries.PROGRAMS.items():
        script(places / "path" / name, f"#!/bin/sh\necho v{version}\n")
    script(places / "assets" / "etcd", f"#!/bin/sh\necho v{build.ETCD_VERSION}\n")
    script(places / "assets" / "kwok", "#!/bin/sh\necho v0.7.0\n")
    script(places / "assets" / "kubectl", "#!/bin/sh\nexit 1\n")
    found = binaries.Binaries.find().paths
    assert found["etcd"] == places / "assets" / "etcd"
    assert {found[name] for name in found if name != "etcd"} == {
        places / "path" / name for name in found if name != "etcd"
    }


def test_missing_programs_are_built_into_the_cache_once(places):
    script(places / "path" / "go", GO)
    said: list[str] = []
    first = binaries.Binaries.find(progress=said.append).paths
    assert first["kwok"].read_text() == "sigs.k8s.io/kwok/cmd/kwok\n"
    assert all(str(path).startswith(str(places / "cache" / "topogate" / "bin")) for path in first.values())
    assert said[0].startswith("building kube-apiserver")
    script(places / "path" / "go", GO.replace("build)", "build) exit 9;;\n  never)"))
    assert binaries.Binaries.find().paths == first
    leftovers = [path.name for path in (places / "cache" / "topogate" / "bin").iterdir()]
    assert not [name for name in leftovers if name.startswith("building-")]


def test_tools_are_found_or_built_only_where_they_are_asked_for(places):
    script(places / "path" / "go", GO)
    script(places / "path" / "helm", f"#!/bin/sh\necho v{build.HELM_VERSION}\n")
    script(places / "path" / "kustomize", "#!/bin/sh\necho v5.0.0\n")
    assert not set(binaries.TOOLS) & set(binaries.Binaries.find().paths)
    found = binaries.Binaries.find(binaries.TOOLS).paths
    assert found["helm"] == places / "path" / "helm"
    assert found["kustomize"].read_text() == "sigs.k8s.io/kustomize/kustomize/v5\n"


def test_failed_build_shows_what_go_said(places, monkeypatch):
    script(places / "path" / "go", GO)
    monkeypatch.setenv("FAKE_GO_FAILS", "1")
    with pytest.raises(BinariesMissing, match=r"(?s)go build -v failed in .*controlplane.*does not compile"):
        binaries.Binaries.find()


def test_two_builds_at_once_wait_for_each_other(places):
    script(places / "path" / "go", GO.replace("build)", "build) echo x >> $HOME/builds; sleep 0.2;"))
    code = (
        "from localcluster.programs.build import programs; programs(['kwok'], progress=lambda m: print(m, flush=True))"
    )
    environment = {
        "HOME": str(places),
        "PATH": f"{places / 'path'}:/usr/bin:/bin",
        "XDG_CACHE_HOME": str(places / "cache"),
        "PYTHONPATH": str(Path(build.__file__).parents[2]),
    }
    command = [sys.executable, "-c", code]
    runs = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    output = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert (places / "builds").read_text() == "x\n"
    assert sum("building kwok" in text for text in output) == 1


def test_whoever_waits_for_the_lock_says_so(places):
    places.joinpath("cache").mkdir()
    said: list[str] = []
    with build.alone(places / "cache", said.append):
        other = threading.Thread(target=lambda: build.alone(places / "cache", said.append).__enter__())
        other.start()
        while not said:
            time.sleep(0.01)
    other.join()
    assert said == ["another process is building; waiting for it"]


@pytest.mark.parametrize(
    ("module", "needs"),
    [
        ("controlplane", f"k8s.io/kubernetes v{build.KUBERNETES_VERSION}"),
        ("controlplane", f"go.etcd.io/etcd/server/v3 v{build.ETCD_VERSION}"),
        ("kubelet", f"k8s.io/kubernetes v{build.KUBERNETES_VERSION}"),
        ("kwok", f"sigs.k8s.io/kwok v{build.KWOK_VERSION}"),
    ],
)
def test_what_is_built_is_of_the_version_that_is_named(module, needs):
    written = (build.MODULES / module / "go.mod").read_text().split("\n)")[0]
    assert needs in {line.strip().removeprefix("require ") for line in written.splitlines()}


@pytest.mark.parametrize("module", ["controlplane", "kubelet"])
def test_all_staging_modules_are_of_that_version(module):
    major, minor, patch = build.KUBERNETES_VERSION.split(".")
    written = (build.MODULES / module / "go.mod").read_text()
    replaced = {line.split()[-1] for line in written.splitlines() if " => k8s.io/" in line}
    assert (major, replaced) == ("1", {f"v0.{minor}.{patch}"})


def test_kwok_is_built_from_the_modules_of_the_control_plane():
    """Else Go compiles some 650 packages twice."""
    plane, kwok = (_required(module) for module in ("controlplane", "kwok"))
    shared = [
        name for name in plane.keys() & kwok.keys() if name.startswith(("k8s.io/", "golang.org/", "google.golang."))
    ]
    assert {"k8s.io/client-go", "k8s.io/apiserver", "golang.org/x/net"} <= set(shared)
    assert {name: kwok[name] for name in shared} == {name: plane[name] for name in shared}


def _required(module):
    lines = (build.MODULES / module / "go.mod").read_text().splitlines()
    found = [line.split() for line in lines if line.startswith("\t")]
    return {words[0]: words[1] for words in found if "=>" not in words} | {
        words[0]: words[-1] for words in found if "=>" in words
    }


def test_key_depends_on_go_and_on_flags():
    kubernetes = build.TARGETS[0]
    keys = {target.key(version) for target in build.TARGETS for version in ("go1.26.8", "go1.26.9")}
    assert len(keys) == 2 * len(build.TARGETS)
    assert f"-X k8s.io/component-base/version.gitVersion=v{build.KUBERNETES_VERSION}" in kubernetes.flags[-1]


def test_go_compiles_without_what_the_linker_drops_and_does_not_optimise_what_is_thin(places):
    """A package gets the flags of the last pattern that matches it."""
    for target in build.TARGETS:
        everything, *cold = [flag for flag in target.flags if flag.startswith("-gcflags=")]
        assert everything == "-gcflags=all=-dwarf=false"
        assert {flag.rpartition("=")[2] for flag in cold} == {"false -N -l"}
    here = golang.Go(places / "go", "go1.26.8").environment()
    assert (here["GOGC"], here["GOWORK"]) == ("off", "off")
    assert 0 < int(here["GOMEMLIMIT"].removesuffix("MiB")) <= 1024


def test_whoever_limits_go_otherwise_is_heard(places, monkeypatch):
    monkeypatch.setenv("GOGC", "50")
    monkeypatch.setenv("GOMEMLIMIT", "200MiB")
    here = golang.Go(places / "go", "go1.26.8").environment()
    assert (here["GOGC"], here["GOMEMLIMIT"]) == ("50", "200MiB")


@pytest.mark.parametrize(
    ("version", "parsed"), [("go1.26.8", (1, 26)), ("go1.9", (1, 9)), ("devel go1.28-abc", (0, 0)), ("go2.0", (2, 0))]
)
def test_go_version(version, parsed):
    assert golang.parse(version) == parsed


def test_new_enough_go_on_path_is_taken(places):
    go = script(places / "path" / "go", GO)
    assert golang.find(places, progress=pytest.fail) == golang.Go(go, "go1.26.8")


def test_old_go_on_path_is_passed_over_for_the_packaged_one(places):
    script(places / "path" / "go", GO.replace("go1.26.8", "go1.25.9"))
    packaged = script(
        places / golang.PACKAGE.replace("==", "-") / "go" / "bin" / "go", GO.replace("go1.26.8", "go1.26.6")
    )
    assert golang.find(places, progress=pytest.fail) == golang.Go(packaged, "go1.26.6")
