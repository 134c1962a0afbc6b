"""Pages of the documentation whose commands a test types, as written: every block marked ``sh``."""

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from support.packages import ROOT, tools

from localcluster.programs.binaries import Binaries

# A comment in the page, which no reader sees, says that a block ends with another status than 0.
BLOCK = re.compile(r"^(?:<!-- ends with (\d+) -->\n)?```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def scripts(name):
    """Section -> what a reader types there."""
    found = {}
    for section in re.split(r"^#+ ", (ROOT / "docs" / name).read_text(), flags=re.MULTILINE)[1:]:
        if blocks := BLOCK.findall(section):
            found[section.splitlines()[0]] = "".join(_typed(block, status) for status, block in blocks)
    return found


def _typed(block, status):
    return f"if (\n{block}); then false; else test $? = {status}; fi\n" if status else block


@contextmanager
def shell(home):
    """Runs a script as a person in the repository does; what fails leaves nothing running behind."""
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

    try:
        yield run
    finally:
        subprocess.run(["topogate", "local", "down"], env=env, cwd=ROOT, check=False, capture_output=True)
