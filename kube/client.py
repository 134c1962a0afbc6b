"""A client of the API server: verbs on resources, objects as msgspec structs or plain dicts.

``type`` is a msgspec struct (see ``kube.objects``) or ``dict``. Objects sent are anything msgspec encodes. Every call
has a deadline (``timeout`` seconds, by default the client's) and the retries that ``kube.transport`` describes, and
raises the errors of ``kube.errors``.
"""
# ruff: noqa: A002 -- `type` is the word that reads right at the call
# ruff: noqa: ASYNC109 -- a deadline that passes becomes an error that says what was called

import os
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import msgspec

from kube import config, resources
from kube.errors import BadAnswer, Gone
from kube.nesting import deep
from kube.patches import IDEMPOTENT, PatchType, encode
from kube.resources import Resource
from kube.transport import JSON, POOL_SIZE, TIMEOUT_SECONDS, USER_AGENT, Fence, Params, Transport, behind

Json = dict[str, Any]
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Json)  # what a call returns where no type is given
else:
    from typing import TypeVar

    T = TypeVar("T")

PAGE = 500
_OPEN = nullcontext()
Propagation = Literal["Background", "Foreground", "Orphan"]


class ListMeta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Metadata of a list: its resourceVersion, and where the next page begins."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct, frozen=True, gc=False):
    """One page of a list; its items are not decoded yet."""

    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}  # as many as there are types in the program


def decode(type: type[T], body: bytes | msgspec.Raw, what: Resource | str) -> T:
    """An answer's body as ``type``.

    Raises:
        BadAnswer: it is not JSON of that type.
    """
    if (decoder := _decoders.get(type)) is None:
        decoder = _decoders[type] = msgspec.json.Decoder(type)
    try:
        return deep(decoder.decode, body)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadAnswer(f"{what}: the answer is not a {type.__name__}: {error}: {bytes(body)[:100]!r}") from error


class Client:
    """Calls to one API server: ``async with await Client.connect() as client``. Make it inside a running loop."""

    def __init__(
        self,
        connection: config.Connection,
        *,
        pool_size: int = POOL_SIZE,
        timeout: float = TIMEOUT_SECONDS,
        user_agent: str = USER_AGENT,
    ) -> None:
        self.connection = connection
        self.timeout = timeout
        self._fence: Fence | None = None
        self.transport = Transport(connection, pool_size=pool_size, user_agent=user_agent)

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
        *,
        pool_size: int = POOL_SIZE,
        timeout: float = TIMEOUT_SECONDS,
        user_agent: str = USER_AGENT,
    ) -> Self:
        """A client by kubeconfig and context, or in-cluster; nothing is sent yet.

        Raises:
            ConfigError: no usable configuration.
        """
        connection = await config.load(kubeconfig, context)
        return cls(connection, pool_size=pool_size, timeout=timeout, user_agent=user_agent)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def fenced(self, fence: Fence) -> Self:
        """The same client and connections; its writes raise Fenced unless ``fence()`` holds right before they are sent.

        So a leader that was stopped for a while, and is not one any more, writes nothing.
        """
        made = copy(self)
        made._fence = fence  # noqa: SLF001 -- its own copy
        return made

    async def close(self) -> None:
        """Close every connection."""
        await self.transport.close()

    def server_time(self) -> datetime:
        """The API server's time at its last answer, to the second; this machine's where it said none."""
        try:
            return parsedate_to_datetime(self.transport.date)
        except ValueError:
            return datetime.now(UTC)

    # --- reading ---------------------------------------------------------------------------------------------------

    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        type: type[T] = dict,  # type: ignore[assignment] # T's default is Json
        timeout: float | None = None,
    ) -> T:
        """One object."""
        body = await self._send("GET", resource, namespace, name, timeout=timeout)
        return decode(type, body, resource)

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        type: type[T] = dict,  # type: ignore[assignment] # T's default is Json
        limit: int = PAGE,
        timeout: float | None = None,
    ) -> list[T]:
        """All objects of a namespace, or of all (None), read in pages of ``limit`` (0: at once)."""
        items: list[T] = []
        pages = self.pages(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            limit=limit,
            timeout=timeout,
        )
        async for page, fresh in pages:
            if fresh:
                items.clear()
            items.extend(decode(type, item, resource) for item in page.items or ())
        return items

    async def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = PAGE,
        timeout: float | None = None,
    ) -> AsyncIterator[tuple[Page, bool]]:
        """The pages of a consistent list, each with whether it is the first one.

        Where the continue token expires on the way the list starts again, unpaged: a second first page comes, and
        what came before it is void. The resourceVersion is left unset: the newest state, which API servers since 1.31
        answer from their watch cache.
        """
        params: dict[str, Any] = {"labelSelector": label_selector, "fieldSelector": field_selector, "limit": limit}
        fresh = True
        while True:
            try:
                page = decode(
                    Page, await self._send("GET", resource, namespace, params=params, timeout=timeout), resource
                )
            except Gone:
                if "continue" not in params:
                    raise
                params["limit"], fresh = 0, True
                del params["continue"]
                continue
            yield page, fresh
            fresh = False
            if not page.metadata.continue_:
                return
            params["continue"] = page.metadata.continue_

    # --- writing ---------------------------------------------------------------------------------------------------

    async def create(
        self,
        resource: Resource,
        obj: Any,
        namespace: str | None = None,
        *,
        dry_run: bool = False,
        field_manager: str | None = None,
        type: type[T] = dict,  # type: ignore[assignment] # T's default is Json
        timeout: float | None = None,
    ) -> T:
        """Create ``obj``; its namespace is taken from its metadata where none is given.

        Raises:
            AlreadyExists: an object of that name is there.
        """
        body = await self._send(
            "POST",
            resource,
            namespace or _metadata(obj)[0],
            params={"dryRun": _all_if(dry_run), "fieldManager": field_manager},
            body=encode(obj),
            timeout=timeout,
        )
        return decode(type, body, resource)

    async def replace(
        self,
        resource: Resource,
        obj: Any,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
        type: type[T] = dict,  # type: ignore[assignment] # T's default is Json
        timeout: float | None = None,
    ) -> T:
        """Replace the object of that name; a resourceVersion in its metadata is a precondition.

        Raises:
            Conflict: the object has another resourceVersion by now.
        """
        own_namespace, name = _metadata(obj)
        body = await self._send(
            "PUT",
            resource,
            namespace or own_namespace,
            name,
            subresource,
            params={"dryRun": _all_if(dry_run), "fieldManager": field_manager},
            body=encode(obj),
            timeout=timeout,
        )
        return decode(type, body, resource)

    @overload
    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        body: Any,
        content_type: PatchType = PatchType.MERGE,
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
        dry_run: bool = False,
        type: None = None,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        body: Any,
        content_type: PatchType = PatchType.MERGE,
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
        dry_run: bool = False,
        type: type[T],
        timeout: float | None = None,
    ) -> T: ...
    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        body: Any,
        content_type: PatchType = PatchType.MERGE,
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
        dry_run: bool = False,
        type: type[T] | None = None,
        timeout: float | None = None,
    ) -> T | None:
        """Patch an object; the answer's body is decoded only where ``type`` is given.

        ``body`` may be bytes that are encoded already. A JSON patch is not sent again after a broken connection, the
        others are: they set values. ``kube.patches.guard`` adds preconditions.

        Raises:
            Conflict: a precondition does not hold, or (apply, not forced) another manager owns a field.
            Invalid: a ``test`` of a JSON patch does not hold.
        """
        options = field_manager or force or dry_run
        answer = await self._send(
            "PATCH",
            resource,
            namespace,
            name,
            subresource,
            params={"fieldManager": field_manager, "force": force, "dryRun": _all_if(dry_run)} if options else None,
            body=body if isinstance(body, bytes) else encode(body),
            content_type=content_type.value,
            idempotent=content_type in IDEMPOTENT,
            timeout=timeout,
        )
        return None if type is None else decode(type, answer, resource)

    async def apply(
        self,
        resource: Resource,
        obj: Any,
        namespace: str | None = None,
        *,
        field_manager: str,
        force: bool = True,
        subresource: str | None = None,
        dry_run: bool = False,
        type: type[T] = dict,  # type: ignore[assignment] # T's default is Json
        timeout: float | None = None,
    ) -> T:
        """Server-side apply: create the object or make the fields in ``obj`` ours; it carries apiVersion and kind.

        Raises:
            Conflict: another manager owns one of the fields, and ``force`` is off.
        """
        own_namespace, name = _metadata(obj)
        return await self.patch(
            resource,
            name,
            namespace or own_namespace,
            body=obj,
            content_type=PatchType.APPLY,
            subresource=subresource,
            field_manager=field_manager,
            force=force,
            dry_run=dry_run,
            type=type,
            timeout=timeout,
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: Propagation | None = None,
        grace_period: int | None = None,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Delete an object, only if it still has that uid and resourceVersion where they are given.

        Raises:
            NotFound: it is gone already.
            Conflict: a precondition does not hold.
        """
        options = _delete_options(uid, resource_version, propagation, grace_period, dry_run=dry_run)
        body = encode(options) if options else None
        await self._send("DELETE", resource, namespace, name, body=body, timeout=timeout)

    # --- subresources and the rest ---------------------------------------------------------------------------------

    async def evict(
        self,
        name: str,
        namespace: str,
        *,
        uid: str | None = None,
        grace_period: int | None = None,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Evict a pod through the Eviction API.

        Raises:
            TooManyRequests: a PodDisruptionBudget forbids it now; ``retry_after`` is None or what the server asked.
            NotFound: the pod is gone.
            Conflict: it has another uid.
        """
        options = _delete_options(uid, None, None, grace_period, dry_run=dry_run)
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
        body = encode(eviction)
        await self._send("POST", resources.PODS, namespace, name, "eviction", body=body, timeout=timeout)

    async def request_token(
        self, service_account: str, namespace: str, seconds: int = 3600, *, audiences: tuple[str, ...] = ()
    ) -> str:
        """A token of a service account, good for ``seconds`` (at least 600)."""
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds, "audiences": list(audiences)},
        }
        body = encode(request)
        answer = await self._send("POST", resources.SERVICE_ACCOUNTS, namespace, service_account, "token", body=body)
        return str(decode(Json, answer, resources.SERVICE_ACCOUNTS)["status"]["token"])

    async def raw(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float | None = None,
    ) -> bytes:
        """Any call, by its absolute path; returns the answer's body."""
        seconds = self.timeout if timeout is None else timeout
        with self._behind_fence(method):
            return await self.transport.send(
                method, path, params=params, body=body, content_type=content_type, timeout=seconds
            )

    async def server_version(self) -> str:
        """The API server's version, e.g. ``v1.36.3``."""
        return str(decode(Json, await self.raw("GET", "/version"), "version")["gitVersion"])

    async def _send(
        self,
        method: str,
        resource: Resource,
        namespace: str | None,
        name: str | None = None,
        subresource: str | None = None,
        *,
        params: Params | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        idempotent: bool | None = None,
        timeout: float | None = None,
    ) -> bytes:
        with self._behind_fence(method):
            return await self.transport.send(
                method,
                resource.path(namespace, name, subresource),
                params=params,
                body=body,
                content_type=content_type,
                timeout=self.timeout if timeout is None else timeout,
                idempotent=idempotent,
                what=partial(resource.describe, namespace, name, subresource),
            )

    def _behind_fence(self, method: str) -> AbstractContextManager[object]:
        return _OPEN if self._fence is None or method == "GET" else behind(self._fence)


def _metadata(obj: Any) -> tuple[str | None, str]:
    """Namespace (None: the object names none) and name of a dict or struct."""
    if isinstance(obj, dict):
        metadata = obj.get("metadata", {})
        return metadata.get("namespace"), metadata.get("name", "")
    return obj.metadata.namespace or None, obj.metadata.name


def _all_if(dry_run: bool) -> str | None:
    return "All" if dry_run else None


def _delete_options(
    uid: str | None, version: str | None, propagation: str | None, grace_period: int | None, *, dry_run: bool
) -> Json:
    preconditions = {"uid": uid, "resourceVersion": version}
    options = {
        "propagationPolicy": propagation,
        "gracePeriodSeconds": grace_period,
        "preconditions": {key: value for key, value in preconditions.items() if value} or None,
        "dryRun": ["All"] if dry_run else None,
    }
    return {key: value for key, value in options.items() if value is not None}
