"""The settings of a component that runs: the ConfigMap, looked at every few seconds.

Rules
- What is wrong is told, and nothing changes. What is right is taken, but for what counts from a start on
  (`crds.settings.AT_START`).
- Whoever keeps the last good settings writes the text in use beside the one in force, under a key of its own: by it a
  component starts that finds a wrong one.
- What reads and checks settings takes 10 MiB of libraries: it is brought in once somebody has changed them.
"""

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import structlog

from kube.client import Client
from kube.errors import KubeError, NotFound
from kube.patches import guard
from kube.resources import CONFIG_MAPS

if TYPE_CHECKING:
    from crds.settings import Settings

CONFIG_MAP, KEY, LAST_GOOD = "topogate-config", "config.yaml", "last-good.yaml"  # as `crds.settings` has them
LOOK_SECONDS = 10.0

log = structlog.get_logger(__name__)


class SettingsSource(msgspec.Struct, frozen=True):
    """What the settings of a process were made of: the text in the ConfigMap, and what the command line says."""

    text: str
    given: dict[str, Any]


class SettingsChange(NamedTuple):
    """Settings to go by from now on, and which are new: those that are taken, and those that wait for a restart."""

    settings: "Settings"
    taken: tuple[str, ...]
    at_start: tuple[str, ...]


class SettingsUser(Protocol):
    """Whoever goes by the settings."""

    def take_settings(self, change: SettingsChange, uid: str) -> None:
        """They changed. ``uid``: of the ConfigMap."""

    def settings_refused(self, problem: str, uid: str) -> None:
        """They are wrong, and those in use go on."""

    def keeps_settings(self) -> bool:
        """Whether it keeps the last good ones: one process of all."""


class SettingsWatch:
    """Looks at the ConfigMap for one process."""

    def __init__(self, client: Client, namespace: str, source: SettingsSource, user: SettingsUser) -> None:
        self._client, self._namespace, self._user = client, namespace, user
        self._given = source.given
        self._started = self._used = self._seen = source.text

    async def run(self) -> None:
        """Look until cancelled; failures of the API server only delay."""
        while True:
            try:
                await self.look_once()
            except KubeError as error:
                log.warning("settings cannot be read", error=str(error))
            await asyncio.sleep(LOOK_SECONDS)

    async def look_once(self) -> None:
        """Compare the ConfigMap with what is in use. Raises KubeError."""
        try:
            found = await self._client.get(CONFIG_MAPS, CONFIG_MAP, self._namespace)
        except NotFound:
            return
        data, uid = found.get("data") or {}, found["metadata"].get("uid", "")
        text = data.get(KEY, "")
        if text != self._seen:
            # Remembered before it is checked: a wrong text is reported once, not at each look.
            self._seen = text
            # In a thread: the first change imports the libraries that read settings, which would hold up the loop.
            change = await asyncio.to_thread(changed, self._used, text, self._given, os.environ, started=self._started)
            if isinstance(change, str):
                self._user.settings_refused(change, uid)
            else:
                self._used = text
                self._user.take_settings(change, uid)
        if self._user.keeps_settings() and data.get(LAST_GOOD) != self._used:
            # With the version that was read: an edit in between makes this write fail, and the next look sees the edit.
            body = guard({"data": {LAST_GOOD: self._used}}, resource_version=found["metadata"]["resourceVersion"])
            await self._client.patch(CONFIG_MAPS, CONFIG_MAP, self._namespace, body=body)


def changed(
    before: str, after: str, given: Mapping[str, Any], env: Mapping[str, str], *, started: str
) -> SettingsChange | str:
    """What another text changes; the problem where it is wrong.

    ``started``: the text that the process started with. What counts from a start on (`AT_START`) stays as it has it.
    """
    from crds.settings import AT_START, CONFIG_KEY, SettingsError, from_mapping, parse

    def settings(text: str, *, in_use: bool = False) -> "Settings":
        found = parse(text, source=f"ConfigMap {CONFIG_MAP}, key {CONFIG_KEY}", env=env, twice=in_use)
        # The command line comes last, so it wins over the ConfigMap.
        return from_mapping({**found.model_dump(), **given}, source="command line")

    try:
        old, new = settings(before, in_use=True), settings(after)
        # The text before may have changed such a setting already, and the process goes by the older one still.
        first = settings(started, in_use=True)
    except SettingsError as error:
        return str(error)
    kept = {name: getattr(first, name) for name in type(new).model_fields if name in AT_START}
    names = [name for name in type(new).model_fields if getattr(old, name) != getattr(new, name)]
    shown = {name: type(new).model_fields[name].alias or name for name in names}
    taken = tuple(shown[name] for name in names if name not in AT_START)
    # One that is as it was at the start again waits for nothing.
    later = tuple(shown[name] for name in names if name in kept and kept[name] != getattr(new, name))
    return SettingsChange(new.model_copy(update=kept), taken, later)
