"""What the API server answers: bodies as the types that are asked for, and the pages of a list."""
# ruff: noqa: A002 -- `type` is the word that reads right at the call

from typing import Any, TypeVar

import msgspec

from kube.connection.nesting import deep
from kube.errors import BadAnswer
from kube.resources import Resource

T = TypeVar("T")


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
