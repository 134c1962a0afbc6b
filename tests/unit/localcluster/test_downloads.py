"""Official release files: taken with their sum checked, gone on with after a cut, refused in every other case."""

import hashlib
import io
import socket
import tarfile
import threading
import time
import urllib.request

import pytest
from support.release_server import release_server

from localcluster.errors import BinariesMissing
from localcluster.programs import binaries, build, download, fetch, releases
from localcluster.programs.fetch import NotFetched
from localcluster.programs.releases import SUMS, pinned, published

BODY = b"#!/bin/sh\necho v" + build.KUBERNETES_VERSION.encode() + b"\n" + b"#" * 300_000 + b"\n"


def digest(body):
    return hashlib.sha256(body).hexdigest()


def archive(member, body):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        info = tarfile.TarInfo(member)
        info.size = len(body)
        packed.addfile(info, io.BytesIO(body))
    return out.getvalue()


@pytest.fixture
def server():
    with release_server() as running:
        yield running


@pytest.fixture
def world(tmp_path, monkeypatch, server):
    """No program anywhere but on the mirror, for an amd64 machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.delenv(binaries.CHOICE, raising=False)
    monkeypatch.setenv(download.MIRROR, server.url)
    monkeypatch.setattr(releases.platform, "machine", lambda: "x86_64")
    return tmp_path


def offer(server, name, body=BODY):
    """The file of a program on the mirror; returns the sums that the repository would hold."""
    one = releases.releases()[name]
    content = archive(one.member, body) if one.member else body
    server.files["/" + one.url.partition("://")[2]] = content
    return {one.url: digest(content)}


def take(name, sums, said=None):
    return download.program(name, progress=(said if said is not None else []).append, sums=sums)


def test_a_program_is_taken_once_checked_and_runs(world, server):
    said = []
    sums = offer(server, "kubectl")
    path = take("kubectl", sums, said)
    assert path.read_bytes() == BODY
    assert binaries.version("kubectl", path) == build.KUBERNETES_VERSION
    assert said[-1].startswith(f"downloading kubectl {build.KUBERNETES_VERSION} ([####################] 0.3 of 0.3 MiB")
    assert take("kubectl", {}) == path
    assert [path for path, _ in server.asked] == [f"/dl.k8s.io/v{build.KUBERNETES_VERSION}/bin/linux/amd64/kubectl"]
    assert list(path.parent.iterdir()) == [path]


def test_a_program_in_an_archive(world, server):
    path = take("etcd", offer(server, "etcd"))
    assert path.read_bytes() == BODY
    assert list(path.parent.iterdir()) == [path]
    broken = releases.releases()["kwok"]
    assert not broken.member


def test_an_archive_without_the_program(world, server):
    one = releases.releases()["etcd"]
    content = archive("else/etcd", BODY)
    server.files["/" + one.url.partition("://")[2]] = content
    with pytest.raises(NotFetched, match="etcd"):
        take("etcd", {one.url: digest(content)})


def test_redirects_are_followed_as_github_sends_them(world, server):
    sums = offer(server, "kwok")
    (path,) = server.files
    server.files["/objects/kwok"] = server.files.pop(path)
    server.moved[path] = f"{server.url}/objects/kwok"
    assert take("kwok", sums).read_bytes() == BODY
    assert [asked for asked, _ in server.asked] == [path, "/objects/kwok"]


def test_a_redirect_from_tls_to_a_plain_address_is_refused():
    request = urllib.request.Request("https://dl.k8s.io/x")
    with pytest.raises(NotFetched, match="not encrypted"):
        fetch._Redirects().redirect_request(request, io.BytesIO(), 302, "", {}, "http://elsewhere/x")
    assert fetch._Redirects().redirect_request(request, io.BytesIO(), 302, "Found", {}, "https://elsewhere/x")


def test_a_wrong_sum_is_never_used_and_thrown_away(world, server):
    sums = {url: digest(b"other") for url in offer(server, "kubectl")}
    with pytest.raises(NotFetched, match=f"SHA-256 is {digest(BODY)}, expected {digest(b'other')}"):
        take("kubectl", sums)
    assert [path for path in world.rglob("*") if path.is_file() and path.name != "build.lock"] == []


def test_a_cut_connection_is_gone_on_with(world, server):
    server.cut_after = 100_000
    assert take("kubectl", offer(server, "kubectl")).read_bytes() == BODY
    assert [asked for _, asked in server.asked] == [None, "bytes=100000-", "bytes=200000-", "bytes=300000-"]


def test_what_arrived_before_is_gone_on_with_by_the_next_attempt(world, server, monkeypatch):
    sums = offer(server, "kubectl")
    server.cut_after = 70_000
    monkeypatch.setattr(fetch, "MOST_ATTEMPTS", 2)
    with pytest.raises(NotFetched, match="cut 2 times"):
        take("kubectl", sums)
    server.cut_after = None
    assert take("kubectl", sums).read_bytes() == BODY
    assert server.asked[-1][1] == "bytes=140000-"


def test_a_server_that_sends_no_parts_is_asked_for_all_of_it(world, server, monkeypatch):
    sums = offer(server, "kubectl")
    server.cut_after, server.ranges = 70_000, False
    with pytest.raises(NotFetched, match="5 of them without anything new"):
        take("kubectl", sums)
    server.cut_after = None
    assert take("kubectl", sums).read_bytes() == BODY


def test_a_longer_file_from_before_is_no_hindrance(world, server):
    sums = offer(server, "kubectl")
    folder = download._place(releases.releases()["kubectl"]).parent
    folder.mkdir(parents=True)
    (folder / f"kubectl.{digest(BODY)[:12]}.part").write_bytes(BODY + b"more")
    assert take("kubectl", sums).read_bytes() == BODY


def test_what_is_not_there_is_said(world, server):
    one = releases.releases()["kubectl"]
    with pytest.raises(NotFetched, match="HTTP 404") as failed:
        take("kubectl", {one.url: digest(BODY)})
    assert not failed.value.away


def test_who_does_not_answer_is_given_up_after_three_seconds(world, server):
    server.silent.set()
    began = time.monotonic()
    with pytest.raises(NotFetched) as failed:
        take("kubectl", offer(server, "kubectl"))
    assert failed.value.away
    assert 2.5 < time.monotonic() - began < 4.5
    assert fetch.ANSWER_SECONDS == 3


def test_a_name_that_nobody_resolves_is_given_up_too(monkeypatch):
    hangs = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: hangs.wait(8))
    began = time.monotonic()
    with pytest.raises(NotFetched, match="no answer within 3 s") as failed:
        fetch.text("http://nowhere.invalid/x")
    hangs.set()
    assert failed.value.away
    assert time.monotonic() - began < 4.5


def test_nobody_listens():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(NotFetched, match="refused") as failed:
        fetch.text(f"http://127.0.0.1:{port}/x")
    assert failed.value.away


# --- sums -------------------------------------------------------------------------------------------------------------


def test_without_a_sum_of_ours_that_of_the_release_server_counts_and_is_named(world, server, monkeypatch):
    offer(server, "kubectl")
    asked = []
    monkeypatch.setattr(fetch, "text", lambda url: asked.append(url) or digest(BODY) + "\n")
    said = []
    assert take("kubectl", {}, said).read_bytes() == BODY
    assert asked == [f"https://dl.k8s.io/v{build.KUBERNETES_VERSION}/bin/linux/amd64/kubectl.sha256"]
    assert "as this repository holds none" in said[0]


def test_a_mirror_does_not_vouch_for_itself(world, server, monkeypatch):
    """The sum is asked of the release server over TLS; where that is away, nothing is taken."""
    offer(server, "kubectl")
    server.files[f"/dl.k8s.io/v{build.KUBERNETES_VERSION}/bin/linux/amd64/kubectl.sha256"] = digest(BODY).encode()

    def away(url):
        assert url.startswith("https://dl.k8s.io/")
        raise NotFetched(f"{url}: away", away=True)

    monkeypatch.setattr(fetch, "text", away)
    with pytest.raises(NotFetched, match="away"):
        take("kubectl", {})
    assert server.asked == []


def test_what_has_no_sum_at_all_is_refused(world, server, monkeypatch):
    offer(server, "kwok")
    with pytest.raises(NotFetched, match="holds no sum of it, and its release publishes none"):
        take("kwok", {})
    monkeypatch.setattr(fetch, "text", lambda _: "<html>not found</html>")
    with pytest.raises(NotFetched, match="has no sum of etcd"):
        take("etcd", {})
    assert server.asked == []


def test_sums_as_release_servers_publish_them():
    one, two = digest(b"1"), digest(b"2")
    assert published(f"{one}\n", "kubectl") == one
    listed = f"{one}  etcd-linux-arm64.tar.gz\n{two} *etcd-linux-amd64.tar.gz\n"
    assert published(listed, "etcd-linux-amd64.tar.gz") == two
    assert published(listed, "etcd-linux-s390x.tar.gz") == ""
    assert published("", "x") == published("404: Not Found", "x") == ""


def test_the_list_of_the_repository_names_files_that_are_taken():
    held = pinned(SUMS.read_text())
    known = {one.url for machine in ("x86_64", "aarch64") for one in releases.releases(machine).values()}
    assert held.keys() <= known, "another version: ask for the sums anew"
    assert held
    with pytest.raises(ValueError, match="line 2"):
        pinned("# x\nabc  https://x\n")
    assert releases.releases("riscv64") == {}


# --- which way --------------------------------------------------------------------------------------------------------


@pytest.fixture
def ways(world, monkeypatch):
    """Nothing is built or taken: who was asked for what is noted."""
    asked = []

    def take(name, **_):
        asked.append(("download", name))
        if name in refused:
            raise NotFetched("refused", away=refused[name])
        return world / name

    def make(names, **_):
        asked.append(("build", tuple(names)))
        return {name: world / name for name in names}

    refused = {}
    monkeypatch.setattr(download, "program", take)
    monkeypatch.setattr(build, "programs", make)
    monkeypatch.setattr(build, "built", lambda _: {})
    return asked, refused


NAMES = tuple(binaries.PROGRAMS)


def test_releases_come_before_a_build(ways):
    asked, _ = ways
    assert set(binaries.Binaries.find().paths) == set(NAMES)
    assert asked == [("download", name) for name in NAMES]


def test_one_that_cannot_be_had_is_built_and_nobody_is_asked_twice_who_is_away(ways):
    asked, refused = ways
    refused["kwok"] = False
    said = []
    binaries.Binaries.find(progress=said.append)
    assert asked[-1] == ("build", ("kwok",))
    assert said == ["kwok is to be built, for its release file cannot be had: refused"]
    asked.clear()
    refused["etcd"] = True
    binaries.Binaries.find()
    assert asked == [("download", "etcd"), ("build", NAMES)]


def test_by_hand(ways, monkeypatch):
    asked, refused = ways
    monkeypatch.setenv(binaries.CHOICE, "build")
    binaries.Binaries.find()
    assert asked == [("build", NAMES)]
    monkeypatch.setenv(binaries.CHOICE, "download")
    refused["etcd"] = True
    with pytest.raises(BinariesMissing, match="TOPOGATE_BINARIES=download: refused"):
        binaries.Binaries.find()


def test_what_was_built_before_is_not_taken_again(ways, monkeypatch, world):
    asked, _ = ways
    monkeypatch.setattr(build, "built", lambda names: {name: world / name for name in names})
    binaries.Binaries.find()
    assert asked == []


def test_tools_have_no_release_here(ways):
    asked, _ = ways
    binaries.Binaries.find(binaries.TOOLS)
    assert asked == [("build", tuple(binaries.TOOLS))]


def test_a_folder_has_all_of_the_right_version_or_is_refused(world, monkeypatch):
    folder = world / "mine"
    folder.mkdir()
    monkeypatch.setenv(binaries.CHOICE, str(folder))
    for name, (_, version) in binaries.PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/sh\necho v{version}\n")
        (folder / name).chmod(0o755)
    assert binaries.Binaries.find().paths == {name: folder / name for name in NAMES}
    (folder / "etcd").write_text("#!/bin/sh\necho v3.5.0\n")
    (folder / "kwok").unlink()
    with pytest.raises(
        BinariesMissing,
        match=rf"lacks etcd {build.ETCD_VERSION} \(it has 3.5.0\), kwok {build.KWOK_VERSION} \(it has none that runs\)",
    ):
        binaries.Binaries.find()
    monkeypatch.setenv(binaries.CHOICE, "biuld")
    with pytest.raises(BinariesMissing, match="TOPOGATE_BINARIES=biuld: expected build, download, or a folder"):
        binaries.Binaries.find()
