"""docs/install.md, typed as written: every block marked ``sh``, section by section, on a fresh local cluster."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.packages import ROOT, tools

from localcluster.programs.binaries import Binaries

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
PAGE = (ROOT / "docs" / "install.md").read_text()


def scripts():
    """Section -> what a reader types there."""
    found = {}
    for section in re.split(r"^#+ ", PAGE, flags=re.MULTILINE)[1:]:
        if blocks := re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
            found[section.splitlines()[0]] = "".join(blocks)
    return found


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """Runs a script as a person in the repository does; a section that fails leaves nothing running behind."""
    home = tmp_path_factory.mktemp("home")
    links = home / "bin"
    links.mkdir()
    for name, path in {**Binaries.find().paths, **tools().paths}.items():
        (links / name).symlink_to(path)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    env = {
        **os.environ,
        "PATH": f"{links}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "XDG_CACHE_HOME": str(cache),
        "XDG_STATE_HOME": str(home / "state"),
    }
    env.pop("KUBECONFIG", None)
    log = home / "log"

    def run(script):
        known = "export KUBECONFIG=$(topogate local kubeconfig 2>/dev/null || true)\nPS4='+ $SECONDS '\nset -mx\n"
        with log.open("w") as out:  # a file: what the script leaves in the background would hold a pipe open
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", known + script],
                env=env,
                cwd=ROOT,
                stdout=out,
                stderr=out,
                check=False,
            )
        assert done.returncode == 0, f"{script}\n--- printed:\n{log.read_text()}"
        return log.read_text()

    yield run
    subprocess.run(["topogate", "local", "down"], env=env, cwd=ROOT, check=False, capture_output=True)


def test_the_page_is_as_it_is_expected():
    assert list(scripts()) == [
        "Install",
        "With Helm",
        "With kustomize",
        "With the command",
        "Components beside the cluster",
    ]


def test_what_is_typed_works(shell):
    typed = scripts()
    shell(typed["Install"])
    printed = shell(typed["With Helm"])
    assert "STATUS: deployed" in printed
    assert "topogate-agent-" in printed
    printed = shell(typed["With kustomize"])
    assert "deployment.apps/topogate-webhook serverside-applied" in printed
    printed = shell(typed["With the command"])
    assert "daemonset/topogate-agent in topogate-system-agent created" in printed
    printed = shell(typed["Components beside the cluster"])
    assert "condition met" in printed
