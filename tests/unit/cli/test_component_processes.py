"""What the processes of the controller and the webhook bring along: each does without what it does not need."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support.own_process import kubeconfig, modules, start

from cli.run.commands import program
from cli.run.component import plain_settings
from crds.settings import Settings, from_mapping

# What a command line, a settings file, its checks, a table, a kubeconfig's plugin or a picture needs, and whatever of
# Topogate is no part of these two.
NEITHER = {
    *("typer", "click", "rich", "pygments", "pydantic", "pydantic_core", "kubernetes_asyncio", "matplotlib", "pynvml"),
    "lark",  # needed from the first selector of devices on
    *("google", "crds.settings", "crds.kinds", "crds.device_settings", "cli.output", "cli.main", "manifests"),
    *("localcluster", "simulator", "agent", "web"),
}
NOT_THERE = {
    "ungater": {*NEITHER, "webhook", "certs", "cryptography"},
    "webhook": {*NEITHER, "ungater", "queueing", "numpy", "re2", "engine.cluster", "engine.placement"},
}
NEEDED = {
    "ungater": {"ungater.controller", "kube.client", "kube.connection.tls_buffers"},
    "webhook": {"webhook.server", "certs.manager", "kube.connection.tls_buffers"},
}
DEVICES = {"deviceAnnotations": [{"resource": "example.com/gpu", "key": "example.com/chosen", "value": "id"}]}
CLASSES = {
    "deviceClassMappings": [{"name": "example.com/gpus", "deviceClassNames": ["a.example.com", "b.example.com"]}]
}


def task(path, **more):
    ports = {"health_port": 0, "metrics_port": 0, "webhook_port": 0, "bind_address": "127.0.0.1", "log_level": "error"}
    return {"settings": Settings(**{**ports, **more}).model_dump(mode="json"), "kubeconfig": path}


@pytest.mark.parametrize("component", ["ungater", "webhook"])
def test_a_process_has_nothing_that_it_does_not_need(component, tmp_path):
    there = modules(program(component), task(kubeconfig(tmp_path)))
    assert there >= NEEDED[component]
    assert NOT_THERE[component] & there == set()


def test_no_command_starts_threads_of_numpy():
    """OpenBLAS starts one a core, whose start was a fifth of a command's CPU."""
    env = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    code = "import os, cli.main, numpy; print(len(os.listdir('/proc/self/task')))"
    assert (
        subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
        == "1\n"
    )


@pytest.mark.parametrize("component", ["ungater", "webhook"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kubeconfig": "/nowhere"}, "Error: kubeconfig /nowhere: no such file; pass one, or set KUBECONFIG\n"),
        ({"bind_address": "192.0.2.1"}, " cannot serve"),
    ],
)
def test_what_a_person_can_mend_is_one_line(component, change, said, tmp_path):
    path = change.get("kubeconfig") or kubeconfig(tmp_path)
    given = task(path, **{name: value for name, value in change.items() if name != "kubeconfig"})
    done = start(program(component), given)
    assert done.returncode == 1
    assert said in done.stderr.splitlines(keepends=True)[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("component", ["ungater", "webhook"])
def test_a_command_keeps_its_process_and_checks_its_settings_first(component, tmp_path):
    """Whoever started it signals it, and reads its status, by the process id that it has had all the time."""
    file = tmp_path / "config.yaml"
    ports = "healthPort: 0\nmetricsPort: 0\nwebhookPort: 0\nbindAddress: 127.0.0.1\nlogFormat: json\n"
    command = [sys.executable, "-m", "cli.main", component, "--config", str(file), "--kubeconfig", kubeconfig(tmp_path)]
    file.write_text(f"{ports}leaseSeconds: never\n")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "leaseSeconds" in done.stderr) == (1, True)
    file.write_text(ports)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        said = []
        for line in running.stderr:
            said.append(line)
            if line.startswith("{"):
                break
        words = Path(f"/proc/{running.pid}/cmdline").read_text().split("\0")
        running.terminate()
        running.stderr.read()
    assert running.returncode == 0, said
    assert f"main({component!r}" in words[words.index("-c") + 1]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {
            **DEVICES,
            **CLASSES,
            "domain": "example.com",
            "numaIgnoredResources": ["a", "b"],
            "fairUseResourceWeights": {"cpu": 2},
        },
    ],
)
def test_the_settings_that_are_told_are_those_that_were_checked(given):
    checked = from_mapping(given)
    plain = plain_settings(msgspec.json.decode(msgspec.json.encode(checked.model_dump(mode="json"))))
    for name in Settings.model_fields:
        of_one, of_other = getattr(checked, name), getattr(plain, name)
        if name in {"device_annotations", "device_class_mappings"}:
            assert isinstance(of_other, tuple)
            assert [one.model_dump() for one in of_one] == [msgspec.to_builtins(one) for one in of_other]
        else:
            assert (of_one, type(of_one)) == (of_other, type(of_other))
    assert plain.keys == checked.keys
    with pytest.raises(AttributeError):
        plain.domain = "another"
