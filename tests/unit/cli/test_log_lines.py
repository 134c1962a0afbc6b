"""Log lines are JSON; of an error they tell where, and never what the variables were."""

import json
import subprocess
import sys

import pytest

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


LOST = """
import os, sys
import structlog
from cli import logs
from crds.settings import Settings

logs.configure(Settings(log_format={form!r}))
{broken}
structlog.get_logger().warning("nobody reads this", number=1)
import logging
logging.getLogger("asyncio").warning("nor this")
print("goes on")
"""
BROKEN = {
    "its stream is closed": "sys.stderr.close()",
    "its reader is gone": "read, write = os.pipe(); os.close(read); os.dup2(write, 2)",
    "its disk is full": "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
}


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_line_that_cannot_be_written_is_lost_and_nothing_else(broken, form):
    program = LOST.format(form=form, broken=BROKEN[broken])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "goes on\n"


def test_half_of_a_surrogate_pair_is_written_as_an_escape():
    program = PROGRAM.split("def fail", maxsplit=1)[0] + 'structlog.get_logger().warning("odd", pod="a\\ud800")'
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stderr)["pod"] == "a\ud800"


UNREAD = """
import os, sys
import structlog
from cli import logs
from crds.settings import Settings

read, write = os.pipe()
os.dup2(write, 2)
logs.configure(Settings(log_format="json"))
log = structlog.get_logger()
for number in range(20_000):
    log.warning("nobody reads this", number=number, long="x" * 200)
print("goes on")
sys.stdout.flush()
seen = b""
os.set_blocking(read, False)
for _ in range(1_000):
    try:
        seen += os.read(read, 1 << 16)
    except BlockingIOError:
        break
    log.warning("now somebody does")
lines = seen.decode().splitlines()
print(lines[0].count('"number":0'), any("lines of the log were lost" in line for line in lines))
print(all(line.startswith("{") or "were lost" in line for line in lines[:-1]))
"""


def test_a_pipe_that_nobody_reads_stops_nothing_and_says_later_what_was_lost():
    """A full pipe takes no byte more, and a write to it waits for ever."""
    done = subprocess.run([sys.executable, "-c", UNREAD], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "goes on\n1 True\nTrue\n", done.stderr
