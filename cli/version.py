"""``topogate version``."""

import asyncio
import platform
from importlib.metadata import version

from cli.output import Context, Kubeconfig, Output, OutputFormat, emit


def command(output: Output = OutputFormat.TABLE, kubeconfig: Kubeconfig = None, context: Context = None) -> None:
    """Print the version of this command, and of the API server where one is reachable."""
    from kube.client import Client
    from kube.errors import KubeError

    async def read_version() -> str:
        # A version that waits a minute for an unreachable server helps nobody.
        async with asyncio.timeout(5), await Client.connect(kubeconfig, context) as client:
            return await client.server_version()

    try:
        server = asyncio.run(read_version())
    except (KubeError, OSError, TimeoutError):
        server = None
    data = {
        "topogate": version("topogate"),
        "python": platform.python_version(),
        "kubernetes": server,
    }
    if output is OutputFormat.TABLE:
        for name, value in data.items():
            print(f"{name:12} {value or _unreached(kubeconfig, context)}")
        return
    emit(data, output)


def _unreached(kubeconfig: str | None, context: str | None) -> str:
    from kube.connection.config import described
    from kube.errors import ConfigError

    try:
        found = described(kubeconfig, context)
    except ConfigError as error:
        return f"no API server reachable: {error}"
    by = f" (context {found.context} in kubeconfig {found.files})" if found.context else ""
    return f"no API server reachable at {found.server}{by}"
