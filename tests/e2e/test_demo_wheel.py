"""``topogate demo`` as somebody runs it who has the wheel and no checkout, in a folder of their own."""

import re
import subprocess

import pytest
from support import wheel

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_the_demo_runs_from_the_wheel_alone(tmp_path):
    programs = wheel.install(wheel.build("wheel", tmp_path / "dist"), tmp_path / "environment")
    folder, home = wheel.elsewhere(tmp_path / "elsewhere"), tmp_path / "home"
    home.mkdir()
    environment = wheel.person(home, programs)
    command = [programs / "topogate", "demo", "--no-open"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [int(act) for act in re.findall(r"^(\d)\. .* ─+$", done.stdout, re.MULTILINE)] == [1, 2, 3, 4, 5, 6, 7]
    assert re.search(r"^Watch it in a browser on this machine: http://127\.0\.0\.1:", done.stdout, re.MULTILINE)
    assert re.search(
        r"^Done in \d+ s\. All \d+ pods run, each on the host that its Workload names\.$", done.stdout, re.MULTILINE
    )
    assert {path.name for path in home.iterdir()} <= {".config"}, "nothing is left but what Go keeps for itself"
