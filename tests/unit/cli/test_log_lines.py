"""Log lines are JSON; of an error they tell where, and never what the variables were."""

import subprocess
import sys

PROGRAM = """
import structlog
from cli import logs
from crds.settings import Settings

logs.configure(Settings(log_format="json"))

def fail():
    key_pem = b"-----BEGIN PRIVATE KEY-----"
    raise RuntimeError("broken")

try:
    fail()
except RuntimeError:
    structlog.get_logger().exception("it failed")
"""


def test_an_error_shows_its_trace_and_no_variable():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    [line] = done.stderr.splitlines()
    assert '"exc_value":"broken"' in line.replace('": "', '":"')
    assert '"name":"fail"' in line.replace('": "', '":"')
    assert "PRIVATE KEY" not in line
