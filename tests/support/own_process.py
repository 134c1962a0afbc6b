"""A component's own process, run for a moment with nobody there: what it has imported by then."""

import json
import subprocess
import sys

import msgspec

# It is stopped once it would stop in order, and then says which modules there are.
AROUND = """
import atexit, os, signal, sys, threading, time
atexit.register(lambda: print(sorted(name for name, module in sys.modules.items() if module is not None)))

def stop():
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        time.sleep(0.02)
    time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=stop, daemon=True).start()
"""


def start(code, task):
    """The end of a process that runs ``code`` and is told ``task``."""
    text = msgspec.json.encode(task).decode()
    return subprocess.run([sys.executable, "-c", code, text], capture_output=True, text=True, check=False)


def modules(code, task):
    """The modules that it had at its end."""
    done = start(AROUND + code, task)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1].replace("'", '"')))


def kubeconfig(folder):
    """The path of a kubeconfig whose API server does not answer."""
    path = folder / "kubeconfig"
    made = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "c", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "current-context": "c",
    }
    path.write_text(json.dumps(made))
    return str(path)
