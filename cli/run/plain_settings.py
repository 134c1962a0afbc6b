"""Settings as a component's own process has them: read and checked by whoever started it, and told as plain values.

What reads and checks them (`crds.settings`) takes 10 MiB of libraries.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from crds.constants import Keys

if TYPE_CHECKING:
    from crds.settings import Settings


class _PlainSettings(msgspec.Struct, frozen=True):
    """What is derived of settings; fields come with what is told."""

    domain: str

    @property
    def keys(self) -> Keys:
        """Labels, annotations and gate under the configured domain."""
        return Keys(self.domain)


def settings(values: Mapping[str, Any]) -> "Settings":
    """The settings whose plain values are told, as ``Settings.model_dump(mode="json")`` gives them."""
    plain = {name: _as_plain_value(value) for name, value in values.items()}
    names = [name for name in plain if name != "domain"]
    return cast(
        "Settings", msgspec.defstruct("Settings", names, bases=(_PlainSettings,), frozen=True, kw_only=True)(**plain)
    )


def _as_plain_value(value: Any) -> Any:
    """Lists are tuples, and what has fields is read by their names, as in the settings themselves."""
    if isinstance(value, list):
        # A list could be changed by whoever has it, and not be hashed.
        return tuple(map(_as_plain_value, value))
    if isinstance(value, dict):
        made = msgspec.defstruct("Setting", list(value), frozen=True)
        return made(**{name: _as_plain_value(inner) for name, inner in value.items()})
    return value
