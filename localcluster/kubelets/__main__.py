"""``python -m localcluster.kubelets KUBECONFIG READY_FILE OPTIONS``: the kubelets of all simulated machines.

OPTIONS is JSON (``fleet.Publishing``). READY_FILE appears once everything that is there has been taken over.
"""

import asyncio
import signal
import sys
from pathlib import Path

import msgspec

from kube.client import Client
from localcluster.kubelets.fleet import Machines, Publishing


async def _run(kubeconfig: str, ready: Path, publishing: Publishing) -> None:
    task = asyncio.current_task()
    if task is not None:
        # SIGTERM cancels the task, so that the client closes its connections and the exit status is 0.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with await Client.connect(kubeconfig) as client:
        await Machines(client, publishing).run(ready.touch)


def main() -> None:
    """Exit status 0 after SIGTERM."""
    kubeconfig, ready, options = sys.argv[1:4]
    # Before anything else: a mark of the process before must not count for this one.
    Path(ready).unlink(missing_ok=True)
    try:
        asyncio.run(_run(kubeconfig, Path(ready), msgspec.json.decode(options, type=Publishing)))
    except asyncio.CancelledError:
        return
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
