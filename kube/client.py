"""A client of the API server: verbs on resources, objects as msgspec structs or plain dicts.

``type`` is a msgspec struct (see ``kube.objects``) or ``dict``. Objects sent are anything msgspec encodes. Every call
has a deadline (``timeout`` seconds, by default the client's) and the retries that ``kube.connection.transport``
describes, and raises the errors of ``kube.errors``.
"""
# ruff: noqa: A002 -- `type` is the word that reads right at the call
# ruff: noqa: ASYNC109 -- a deadline that passes becomes an error that says what was called

from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, Literal, overload

from kube import resources
from kube.connection.answers import Page, decode
from kube.connection.session import Session
from kube.errors import AnswerTooLarge, Gone
from kube.patches import IDEMPOTENT, PatchType, encode
from kube.resources import Resource

Json = dict[str, Any]
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Json)  # what a call returns where no type is given
else:
    from typing import TypeVar

    T = TypeVar("T")

# As the pager of client-go asks for.
PAGE = 500
PAGE_BYTES = 8 * 1024 * 1024  # of a page that may be smaller; one of 500 pods has 5 MB
Propagation = Literal["Background", "Foreground", "Orphan"]


class Client(Session):
    """Calls to one API server: ``async with await Client.connect() as client``. Make it inside a running loop."""

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
    ) -> AsyncGenerator[tuple[Page, bool], None]:
        """The pages of a consistent list, each with whether it is the first one. Close it where not all are read.

        Where the continue token expires on the way the list starts again, unpaged: a second first page comes, and
        what came before it is void. Where objects are so large that a page has more than `PAGE_BYTES`, there are fewer
        on it. The resourceVersion is left unset: the newest state, which API servers since 1.31 answer from their watch
        cache.
        """
        params: dict[str, Any] = {"labelSelector": label_selector, "fieldSelector": field_selector, "limit": limit}
        fresh, large = True, False
        while True:
            # One object is taken whatever its size: no page is smaller. So is a list that is unpaged for a lost token.
            most = PAGE_BYTES if params["limit"] > 1 else None
            try:
                answer = await self._send("GET", resource, namespace, params=params, timeout=timeout, most=most)
                page = decode(Page, answer, resource)
            except Gone:
                # Without a token the 410 means something else, and a fresh start would ask for the same again.
                if "continue" not in params:
                    raise
                # Unpaged, the list has no token that can expire again. Lists of large objects stay in pages.
                params["limit"], fresh = limit if large else 0, True
                del params["continue"]
                continue
            except AnswerTooLarge:
                # The same token goes with the smaller limit: the server counts from the last object that it sent.
                params["limit"], large = max(1, params["limit"] // 4), True
                continue
            yield page, fresh
            fresh = False
            # The limit grows back by twos: a few large objects make a few small pages, and not a whole list of them.
            if len(answer) < PAGE_BYTES // 4:
                params["limit"] = min(limit, params["limit"] * 2)
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
        warned: Callable[[str], None] | None = None,
    ) -> T:
        """Create ``obj``; its namespace is taken from its metadata where none is given.

        ``warned`` is called with each warning of the API server, also where it refuses the object.

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
            warned=warned,
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

    # --- subresources ----------------------------------------------------------------------------------------------

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
        # The uid keeps a pod that was made again under this name from being evicted for the one before it.
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
