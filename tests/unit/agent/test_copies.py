"""The copies of the kubelet's files: real files, replaced, missing, unreadable, and traps."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from support.tree import DATA

from agent import copies
from agent.copies import CONFIG, CPU_STATE, DEVICE_STATE, MEMORY_STATE, NAMES, Copies
from agent.kubelet import checkpoints
from agent.kubelet.checkpoints import Unreadable
from agent.kubelet.reader import Reader
from clock import SYSTEM
from crds.settings import Settings

SECRET = "private key"


@pytest.fixture
def kubelet(tmp_path):
    """A kubelet's directory with its files and its credentials."""
    folder = shutil.copytree(DATA / "kubelet", tmp_path / "kubelet")
    (folder / CONFIG).write_text("topologyManagerPolicy: restricted\n")
    for name in ("pki/kubelet-client-current.pem", "plugins/x/config", "config.json", "bootstrap-kubeconfig"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(SECRET)
    return folder


@pytest.fixture
def target(tmp_path):
    (tmp_path / "copies").mkdir()
    return tmp_path / "copies"


@pytest.fixture
def kept(kubelet, target):
    made = Copies(str(kubelet), str(target))
    made.update_copies()
    return made


def names(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def replaced(path, text):
    """As the kubelet writes its files."""
    new = path.with_name(".tmp")
    new.write_text(text)
    new.replace(path)


def test_what_the_agent_reads_is_copied_and_nothing_else(kept, kubelet, target):
    assert names(target) == set(NAMES)
    for name in NAMES:
        assert (target / name).read_bytes() == (kubelet / name).read_bytes()
        assert (target / name).stat().st_mode & 0o777 == 0o600
    assert kept.problems == {}


def test_a_file_that_is_replaced_is_copied_again_and_others_are_not(kept, kubelet, target):
    before = {name: (target / name).stat().st_ino for name in NAMES}
    replaced(kubelet / CPU_STATE, '{"policyName":"none"}')
    kept.update_copies()
    assert (target / CPU_STATE).read_text() == '{"policyName":"none"}'
    after = {name: (target / name).stat().st_ino for name in NAMES}
    assert {name for name in NAMES if before[name] != after[name]} == {CPU_STATE}


def test_a_file_that_is_edited_in_place_is_copied_again(kept, kubelet, target):
    (kubelet / CONFIG).write_text("topologyManagerPolicy: none\n")
    kept.update_copies()
    assert "none" in (target / CONFIG).read_text()


def test_what_reads_a_copy_meets_whole_files_only(kept, kubelet, target):
    held = (target / CPU_STATE).open()
    replaced(kubelet / CPU_STATE, "new")
    kept.update_copies()
    assert held.read() == (DATA / "kubelet" / CPU_STATE).read_text()  # the old one, whole
    held.close()


def test_what_is_gone_is_gone_in_the_copies_too(kept, kubelet, target):
    (kubelet / MEMORY_STATE).unlink()
    (kubelet / DEVICE_STATE).unlink()
    kept.update_copies()
    assert names(target) == {CONFIG, CPU_STATE}
    assert (target / "device-plugins").is_dir()  # that the kubelet met no device plugin is known by it
    shutil.rmtree(kubelet / "device-plugins")
    kept.update_copies()
    assert not (target / "device-plugins").exists()
    shutil.copytree(DATA / "kubelet" / "device-plugins", kubelet / "device-plugins")
    kept.update_copies()
    assert (target / DEVICE_STATE).exists()
    assert kept.problems == {}


@pytest.mark.parametrize("name", NAMES)
def test_links_are_not_followed(kept, kubelet, target, name):
    (kubelet / name).unlink()
    (kubelet / name).symlink_to(kubelet / "pki" / "kubelet-client-current.pem")
    kept.update_copies()
    assert not (target / name).exists()
    assert kept.problems == {name: "it is a link, and none is followed"}
    assert SECRET not in "".join(path.read_text() for path in target.rglob("*") if path.is_file())


def test_a_folder_that_is_a_link_is_not_followed(kept, kubelet, target):
    shutil.rmtree(kubelet / "device-plugins")
    (kubelet / "pki" / "kubelet_internal_checkpoint").write_text(SECRET)
    (kubelet / "device-plugins").symlink_to(kubelet / "pki")
    kept.update_copies()
    assert not (target / DEVICE_STATE).exists()
    assert kept.problems == {DEVICE_STATE: "device-plugins is a link, and none is followed"}


@pytest.mark.parametrize(
    ("trap", "why"),
    [
        (lambda path: path.mkdir(), "no regular file"),
        (os.mkfifo, "no regular file"),
        (lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40), "more than 4194304"),
    ],
    ids=["folder", "pipe", "huge"],
)
def test_what_is_no_file_of_a_sensible_size_is_refused_at_once(kept, kubelet, target, trap, why):
    (kubelet / CPU_STATE).unlink()
    trap(kubelet / CPU_STATE)
    kept.update_copies()
    assert why in kept.problems[CPU_STATE]
    with pytest.raises(Unreadable, match=why):
        checkpoints.read_cpu(target)
    assert (target / MEMORY_STATE).exists()


def test_what_cannot_be_read_is_told_to_the_agent(kept, kubelet, target, monkeypatch):
    real = os.open

    def denied(path, *args, **more):
        if path == CPU_STATE:
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **more)

    monkeypatch.setattr(os, "open", denied)  # the tests may run as root, to whom nothing is denied
    kept.update_copies()
    monkeypatch.undo()
    with pytest.raises(Unreadable, match=r"cpu_manager_state: Permission denied"):
        checkpoints.read_cpu(target)
    kept.update_copies()
    assert checkpoints.read_cpu(target).policy == "static"
    assert names(target) == set(NAMES)


def test_the_agent_reads_copies_as_it_reads_the_kubelets_files(kept, kubelet, target):
    own = Reader(Settings(agent_kubelet_directory=str(kubelet)), SYSTEM).read()
    copied = Reader(Settings(agent_kubelet_directory=str(target)), SYSTEM).read()
    assert (own.config, own.cpu, own.memory, own.devices) == (
        copied.config,
        copied.cpu,
        copied.memory,
        copied.devices,
    )
    assert own.cpu is not None


def test_a_device_file_that_cannot_be_copied_is_not_taken_for_a_kubelet_without_devices(kept, kubelet, target):
    (kubelet / DEVICE_STATE).unlink()
    reader = Reader(Settings(agent_kubelet_directory=str(target)), SYSTEM)
    kept.update_copies()
    assert reader.read().devices is not None
    (kubelet / DEVICE_STATE).symlink_to(kubelet / "config.json")
    kept.update_copies()
    assert reader.read().devices is None


def test_copies_that_nobody_keeps_are_not_read(kept, target):
    reader = Reader(Settings(agent_kubelet_directory=str(target)), SYSTEM)
    kept.beat()
    assert reader.read().cpu is not None
    long_ago = time.time() - copies.SILENT_SECONDS - 1
    os.utime(target / copies.ALIVE, (long_ago, long_ago))
    found = reader.read()
    assert (found.config, found.cpu, found.memory, found.devices) == (None, None, None, None)
    assert any("kubelet-files does not run" in problem for problem in found.problems)
    kept.beat()
    assert reader.read().cpu is not None


# --- as a process ----------------------------------------------------------------------------------------------------


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_it_runs_until_it_is_told_to_stop(kubelet, target):
    command = [sys.executable, "-I", "-m", "agent.copies", str(kubelet), str(target)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        until((target / copies.ALIVE).exists)
        assert names(target) == {*NAMES, copies.ALIVE}
        first = (target / copies.ALIVE).stat().st_mtime
        replaced(kubelet / CPU_STATE, "new")
        until(lambda: (target / CPU_STATE).read_text() == "new")
        until(lambda: (target / copies.ALIVE).stat().st_mtime > first)
        shutil.rmtree(kubelet)
        until(lambda: names(target) == {copies.ALIVE})
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
    assert process.returncode == 0
    assert '"event": "copying"' in said


def test_without_room_it_does_not_say_that_it_lives(kubelet, tmp_path):
    (tmp_path / "full").write_text("no folder")
    command = [sys.executable, "-I", "-m", "agent.copies", str(kubelet), str(tmp_path / "full")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        lines = [process.stderr.readline() for _ in range(2)]
        process.terminate()
    assert '"level": "warning"' in lines[1]
    assert str(tmp_path / "full") in lines[1]


def test_it_imports_next_to_nothing():
    """It runs on every node: the modules of the standard library that Python loads anyway, and few more."""
    code = "import sys, agent.copies; print(*sorted(name for name in sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    tops = {name.partition(".")[0] for name in loaded}
    assert not tops & {
        "msgspec",
        "yaml",
        "aiohttp",
        "structlog",
        "pydantic",
        "asyncio",
        "grpc",
        "crds",
        "kube",
        "engine",
    }
    assert {name for name in loaded if name.startswith("agent")} == {"agent", "agent.copies"}
