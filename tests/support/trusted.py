"""What the webhook would do once it is called, where its pods are simulated and run nothing: it writes its caBundle."""

import contextlib
import json
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor


@contextlib.contextmanager
def trusted(kubectl, kubeconfig):
    names = ("job", "jobset", "pod", "owner", "settings")
    hooks = [{"name": f"{name}.topogate.dev", "clientConfig": {"caBundle": "Cg=="}} for name in names]
    line = [kubectl, "--kubeconfig", kubeconfig, "patch", "mutatingwebhookconfiguration", "topogate-webhook"]
    line += ["--type", "strategic", "-p", json.dumps({"webhooks": hooks})]
    over = threading.Event()

    def write():
        while not over.wait(0.2):
            subprocess.run(line, capture_output=True, check=False)

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        try:
            yield
        finally:
            over.set()
        written.result()
