"""What a command does with the API server, from the connection to the words of an error."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from cli.reaching import failure, takes_an_administrator
from kube.client import Client
from kube.connection.transport import POOL_SIZE
from kube.errors import Forbidden, KubeError

Found = TypeVar("Found")


def connected(
    work: Callable[[Client], Awaitable[Found]],
    kubeconfig: str | None,
    context: str | None,
    *,
    connections: int = POOL_SIZE,
    administrator: str = "",
) -> Found:
    """Connect, do the work, and disconnect. Raises Failure where the API server does not do what is asked.

    ``administrator``: the command, where it takes an administrator's rights and nobody else's.
    """

    async def run() -> Found:
        async with await Client.connect(kubeconfig, context, pool_size=connections) as client:
            return await work(client)

    try:
        return asyncio.run(run())
    except KubeError as error:
        if administrator and isinstance(error, Forbidden):
            raise takes_an_administrator(error, administrator) from error
        raise failure(error, kubeconfig, context) from error
