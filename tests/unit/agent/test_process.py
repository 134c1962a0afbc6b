"""What the agent's own process brings along: one runs on every node, so it does without what it does not need."""

import msgspec
import pynvml
import pytest
from support.nvml import recorded
from support.own_process import kubeconfig, modules, start

from agent.machine import gpus, nvml
from agent.machine.hardware import Hardware, MachineZone
from agent.settings import AgentSettings
from cli.run.commands import program
from crds.settings import Settings

PROGRAM = program("agent")
# What a command line, a settings file, a table, a kubeconfig's plugin or a certificate needs; the engine's arrays; and
# whatever of Topogate is no part of an agent.
NOT_THERE = {
    *("typer", "click", "rich", "pygments", "pydantic", "pydantic_core", "kubernetes_asyncio", "cryptography", "numpy"),
    *("pynvml", "lark", "re2", "matplotlib"),
    *("crds.settings", "crds.kinds", "cli.output", "cli.main", "certs", "manifests", "localcluster", "simulator"),
    *("queueing", "ungater", "webhook", "web", "engine.numa", "engine.placement", "engine.cluster", "engine.claims"),
}


def told(tmp_path, **more):
    settings = Settings(
        agent_node_name="n", agent_sysfs=str(tmp_path), agent_kubelet_directory=str(tmp_path), health_port=0, **more
    )
    return settings.model_dump(mode="json", include=set(AgentSettings.__struct_fields__))


def test_the_process_has_nothing_that_it_does_not_need(tmp_path):
    task = {"settings": told(tmp_path, log_level="error"), "kubeconfig": kubeconfig(tmp_path)}
    there = modules(PROGRAM, task)
    assert {"agent.cycle", "kube.client", "serving.server"} <= there
    assert NOT_THERE & there == set()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kubeconfig": "/nowhere"}, "Error: kubeconfig /nowhere: no such file; pass one, or set KUBECONFIG\n"),
        ({"settings": {"bind_address": "192.0.2.1"}}, "give another port with --health-port\n"),
    ],
)
def test_what_a_person_can_mend_is_one_line(tmp_path, change, said):
    task = {"settings": told(tmp_path), "kubeconfig": kubeconfig(tmp_path)}
    task = {
        name: {**value, **change.get(name, {})} if name == "settings" else change.get(name, value)
        for name, value in task.items()
    }
    done = start(PROGRAM, task)
    assert done.returncode == 1
    assert done.stderr.splitlines(keepends=True)[-1].endswith(said)
    assert "Traceback" not in done.stderr


def test_the_task_has_every_setting(tmp_path):
    given = told(tmp_path)
    assert msgspec.to_builtins(msgspec.convert(given, AgentSettings)) == given


def test_nvml_is_imported_when_its_library_is_there(monkeypatch):
    hardware, found = Hardware((MachineZone(0),)), nvml.Nvml()
    monkeypatch.setattr(nvml, "LIBRARY", "libnowhere.so.1")
    assert gpus.read(found, hardware).absent == "NVML Shared Library Not Found"
    assert gpus.read(found, hardware).gpus == ()
    replay = recorded("dgx-a100")
    monkeypatch.setattr(nvml, "_there", lambda: True)  # a driver was installed
    for name in replay.calls:
        function = name.partition("(")[0]
        monkeypatch.setattr(pynvml, function, getattr(replay, function))
    assert len(gpus.read(found, hardware).gpus) == 8
