"""The parts of a local cluster that need no cluster: ports, certificates, processes, command lines, nodes, names."""

import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from cli import local
from cli.output import Failure
from clock import SYSTEM
from localcluster import commands, pki, process, supervisor
from localcluster.nodes import Fleet, is_ready, make_node
from localcluster.options import API_SERVER, COMPONENTS, ETCD, KWOK, Options
from localcluster.ports import Reservation


def test_reserved_port_is_taken_for_others_and_free_for_who_listens():
    first = Reservation(3)
    second = Reservation(3, first.ports)
    try:
        assert not set(first.ports) & set(second.ports)
        with socket.socket() as component:  # as Go's net.Listen does it
            component.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            component.bind(("127.0.0.1", first.ports[0]))
            component.listen()
    finally:
        first.close()
        second.close()


def test_port_with_a_foreign_listener_is_passed_over():
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        reservation = Reservation(1, [port])
        assert reservation.ports != [port]
        reservation.close()


def test_port_whose_connections_linger_is_taken_again():
    first = Reservation(1)
    with socket.create_server(("127.0.0.1", first.ports[0])) as server:
        with socket.create_connection(server.getsockname()) as client:
            accepted, _ = server.accept()
            accepted.close()  # the side that closes first waits in TIME_WAIT
            assert client.recv(1) == b""
        ports = first.ports
    first.close()
    again = Reservation(1, ports)
    assert again.ports == ports
    again.close()


def test_free_preferred_ports_are_taken_again():
    first = Reservation(2)
    ports = first.ports
    first.close()
    again = Reservation(2, ports)
    assert again.ports == ports
    again.close()


def test_certificates_verify_and_files_are_private(tmp_path):
    pki.write_all(tmp_path / "pki", "https://127.0.0.1:1", SYSTEM.utc())
    for path in (tmp_path / "pki").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    cluster = x509.load_pem_x509_certificate((tmp_path / "pki" / "ca.crt").read_bytes())
    etcd = x509.load_pem_x509_certificate((tmp_path / "pki" / "etcd-ca.crt").read_bytes())
    admin = x509.load_pem_x509_certificate((tmp_path / "pki" / "admin.crt").read_bytes())
    admin.verify_directly_issued_by(cluster)
    with pytest.raises(ValueError, match=r"(?i)issuer"):  # nobody's client certificate opens etcd
        admin.verify_directly_issued_by(etcd)
    assert admin.subject.rfc4514_string() == "O=system:masters,CN=topogate-local-admin"
    config = yaml.safe_load((tmp_path / "pki" / "kwok.kubeconfig").read_text())
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"


def test_serving_certificate_is_accepted_for_loopback(tmp_path):
    pki.write_all(tmp_path, "https://127.0.0.1:1", SYSTEM.utc())
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "apiserver.crt", tmp_path / "apiserver.key")
    client = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with server.wrap_socket(connection, server_side=True) as tls:
                tls.sendall(b"hello")

        thread = threading.Thread(target=serve)
        thread.start()
        with (
            socket.create_connection(listener.getsockname()) as raw,
            client.wrap_socket(raw, server_hostname="127.0.0.1") as tls,
        ):
            assert tls.recv(5) == b"hello"
        thread.join()


def test_kubeconfig_follows_the_port(tmp_path):
    pki.write_all(tmp_path, "https://127.0.0.1:1", SYSTEM.utc())
    pki.rewrite_server(tmp_path / "admin.kubeconfig", "https://127.0.0.1:2")
    config = yaml.safe_load((tmp_path / "admin.kubeconfig").read_text())
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:2"


def make_component(tmp_path: Path, code: str) -> process.ControlPlaneProcess:
    command = [sys.executable, "-c", code]
    return process.ControlPlaneProcess(
        "test", command, directory=tmp_path, log=tmp_path / "log", env={"PATH": "/usr/bin"}
    )


def test_component_runs_once_and_dies_at_command(tmp_path):
    component = make_component(tmp_path, "import time; time.sleep(600)")
    component.start()
    pid = component.pid
    component.start()
    assert component.pid == pid
    component.kill()
    assert component.pid is None
    assert component.exit_status == -9
    assert process.start_time(pid) is None


def test_component_that_ended_is_reported_with_its_log(tmp_path):
    component = make_component(tmp_path, "import sys; sys.exit('the disk is full')")
    component.start()
    component._process.wait()
    with pytest.raises(process.ComponentFailed, match=r"(?s)test ended with status 1.*the disk is full"):
        component.check()


def test_component_that_ignores_the_gentle_way_is_killed(tmp_path):
    code = "import signal,time; signal.signal(15, signal.SIG_IGN); print('on', flush=True); time.sleep(600)"
    component = make_component(tmp_path, code)
    component.start()
    while not component.log.read_text():
        pass
    component.stop(0.1)
    assert component.exit_status == -9


def test_component_started_from_a_thread_that_ended_lives_on(tmp_path):
    component = make_component(tmp_path, "import time; time.sleep(600)")
    thread = threading.Thread(target=component.start)
    thread.start()
    thread.join()
    with pytest.raises(subprocess.TimeoutExpired):
        component._process.wait(0.3)
    component.kill()


def test_start_time_tells_processes_apart():
    assert process.start_time(os.getpid()) == process.start_time(os.getpid())
    assert process.start_time(2**22 + 1) is None
    memory, _ = process.usage(os.getpid())
    assert memory > 2**20
    assert process.usage(2**22 + 1) == (0, 0.0)


@pytest.fixture
def layout(tmp_path):
    names = [*COMPONENTS, "kubectl"]
    ports = {name: 20000 + i for i, name in enumerate([*COMPONENTS, "etcd-peer"])}
    return commands.ClusterLayout(tmp_path, {name: Path("/bin") / name for name in names}, ports)


@pytest.mark.parametrize("component", COMPONENTS)
def test_commands_listen_on_loopback_only(component, layout):
    command = commands.command(component, layout, Options())
    text = " ".join(command) + "".join(path.read_text() for path in layout.root.glob("*.yaml"))
    assert command[0] == f"/bin/{component}"
    assert "127.0.0.1" in text
    assert "0.0.0.0" not in text.replace("10.0.0.0", "")


def test_options_reach_the_command_lines(layout):
    plain = commands.command(API_SERVER, layout, Options())
    assert "--enable-priority-and-fairness=false" in plain
    options = Options(
        priority_and_fairness=True,
        uncached=["configmaps"],
        feature_gates={"GangScheduling": True},
        extra_args={API_SERVER: ["--v=4"]},
    )
    command = commands.command(API_SERVER, layout, options)
    assert command[-1] == "--v=4"
    assert {"--watch-cache-sizes=configmaps#0", "--feature-gates=GangScheduling=true"} <= set(command)
    assert not [argument for argument in command if "inflight" in argument or "fairness" in argument]
    assert commands.command(ETCD, layout, options)[1:] == commands.command(ETCD, layout, Options())[1:]


def test_stages_know_every_annotation_that_the_documentation_names():
    stages = list(yaml.safe_load_all(Path(commands.__file__).with_name("stages.yaml").read_text()))
    assert {stage["spec"]["resourceRef"]["kind"] for stage in stages} == {"Node", "Pod"}
    text = Path(commands.__file__).with_name("stages.yaml").read_text()
    documented = (Path(commands.__file__).parents[1] / "docs" / "localcluster.md").read_text()
    for name in ("run-seconds", "fail-after-seconds", "exit-code", "stop-seconds", "not-ready"):
        assert f'annotations["topogate.dev/{name}"]' in text or f'annotations "topogate.dev/{name}"' in text
        assert f"topogate.dev/{name}" in documented


def test_fleet_names_and_labels():
    fleet = Fleet(blocks=2, racks=2, hosts=2, prefix="x-", labels={"zone": "a", "kubernetes.io/arch": None})
    nodes = list(fleet.objects())
    assert len(nodes) == len(fleet) == 8
    assert fleet.node_names()[0] == "x-b1-r1-h1"
    last = nodes[-1]["metadata"]["labels"]
    assert last["cloud-provider.com/topology-block"] == "b2"
    assert last["cloud-provider.com/topology-rack"] == "r2"
    assert last["kubernetes.io/hostname"] == "x-b2-r2-h2"
    assert last["cloud-provider.com/node-group"] == "tas"
    assert last["zone"] == "a"
    assert "kubernetes.io/arch" not in last


def test_fleet_resources():
    (node,) = Fleet(blocks=1, racks=1, hosts=1, gpus=0, resources={"rdma/hca": "8"}).objects()
    assert node["status"]["allocatable"] == {"cpu": "96", "memory": "768Gi", "pods": "110", "rdma/hca": "8"}
    assert is_ready(node)


def test_tainted_or_silent_node_is_not_ready():
    taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    assert not is_ready(make_node("n", labels={}, resources={}, taints=[taint]))
    node = make_node("n", labels={}, resources={})
    node["status"]["conditions"][0]["status"] = "Unknown"
    assert not is_ready(node)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a/b", "..", "a" * 43])
def test_bad_cluster_names_are_refused(name):
    with pytest.raises(ValueError, match="expected lower-case letters"):
        supervisor.directory(name)


def test_folder_of_a_cluster(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert supervisor.directory("one") == Path("/state/topogate/local/one")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert supervisor.directory("one") == Path("/home/me/.local/share/topogate/local/one")


@pytest.mark.parametrize("content", [None, "", "{}", '{"pid": 4194305, "started": 1}'])
def test_remains_of_a_supervisor_are_no_supervisor(content, tmp_path):
    if content is not None:
        (tmp_path / supervisor.STATE).write_text(content)
    assert supervisor.running(tmp_path) is None


def test_process_that_took_a_dead_supervisors_id_is_not_taken_for_it(tmp_path):
    (tmp_path / supervisor.STATE).write_text(f'{{"pid": {os.getpid()}, "started": 1}}')
    assert supervisor.running(tmp_path) is None
    assert supervisor.stop(tmp_path) is False


def test_taints_and_labels_from_the_command_line():
    assert local._taint("gpu=yes:NoSchedule") == {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    assert local._taint("gpu:NoExecute") == {"key": "gpu", "effect": "NoExecute"}
    assert local._pair("a=b=c", "--label") == ("a", "b=c")
    assert local._gate("GangScheduling=True") == ("GangScheduling", True)
    for wrong in (
        lambda: local._taint("gpu"),
        lambda: local._taint("gpu=1:Never"),
        lambda: local._pair("a", "--label"),
    ):
        with pytest.raises(Failure, match="expected"):
            wrong()
    with pytest.raises(Failure, match="expected NAME=true"):
        local._gate("GangScheduling=maybe")


def test_kwok_is_told_its_stages(layout):
    command = commands.command(KWOK, layout, Options())
    config, stages = [argument.partition("=")[2] for argument in command[-2:]]
    assert (
        yaml.safe_load(Path(config).read_text())["options"]["manageNodesWithAnnotationSelector"]
        == "kwok.x-k8s.io/node=fake"
    )
    assert Path(stages).exists()
