"""What the webhook says to settings before they are stored: ConfigMap ``topogate-config``, key ``config.yaml``.

Only what changes is judged, so whoever changes anything else of the object is not held up by it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from webhook import advice
from webhook.checks import INVALID, Problem
from webhook.mutate import UNTOUCHED, Decision

if TYPE_CHECKING:
    from crds.settings import Settings

KEY = "config.yaml"
INSTALLERS = frozenset({"topogate-install", "helm"})  # field managers of those who change its objects too


class _Metadata(msgspec.Struct):
    namespace: str = ""


class ConfigMap(msgspec.Struct, rename="camel"):
    """A ConfigMap."""

    metadata: _Metadata | None = None
    data: dict[str, str] | None = None
    binary_data: dict[str, str] | None = None


def judged(new: ConfigMap, old: ConfigMap | None, domain: str, manager: str = "") -> Decision:
    """What is wrong with the settings; ``domain``: of the installation; ``manager``: which field manager writes them.

    It may be slow, so call it in a thread.
    """
    if old is not None and (old.data, old.binary_data) == (new.data, new.binary_data):
        return UNTOUCHED
    # What checks settings takes 10 MiB of libraries, and most webhooks never see any.
    from crds.settings import SettingsError, parse, unread_keys

    before = set(unread_keys(old.data, old.binary_data)) if old is not None else set()
    for problem in unread_keys(new.data, new.binary_data):
        if problem not in before:
            return Decision(denied=Problem(INVALID, problem))
    text = _text(new)
    # Settings that were wrong before hold nobody up who changes something else beside them.
    if old is not None and _text(old) == text:
        return UNTOUCHED
    try:
        settings = parse(text, source=f"data[{KEY}]")
    except SettingsError as error:
        return Decision(denied=Problem(INVALID, str(error)))
    try:
        # Settings that are in use may name one twice: up to Topogate 0.2.0 the last one counted.
        stored = parse(_text(old), source="", twice=True) if old is not None else None
    except SettingsError:
        stored = None
    for problem in _misplaced(settings, stored, new, domain, manager):
        return Decision(denied=Problem(INVALID, f"data[{KEY}]: {problem}"))
    return Decision(warnings=advice.trim(_moved_settings(settings, stored, manager)))


def _misplaced(
    settings: "Settings", stored: "Settings | None", config_map: ConfigMap, domain: str, manager: str
) -> Iterator[str]:
    """Why components would not find each other any more, or their pods."""
    if settings.domain != domain:
        yield (
            f"domain: expected {domain}, with which Topogate is installed, found {settings.domain}: pods "
            "that are gated under the old one would wait for ever; run `topogate uninstall` first"
        )
    namespace = config_map.metadata.namespace if config_map.metadata is not None else ""
    if namespace and settings.namespace != namespace:
        yield f"namespace: expected {namespace}, in which Topogate is installed, found {settings.namespace}"
    beside = stored.beside_kueue if stored is not None else settings.beside_kueue
    if settings.beside_kueue != beside and manager not in INSTALLERS:
        option = "--beside-kueue" if settings.beside_kueue else "--no-beside-kueue"
        yield (
            f"besideKueue: expected {str(beside).lower()}, as Topogate is installed, found "
            f"{str(settings.beside_kueue).lower()}: webhooks and policies go by it too, and jobs that Kueue runs might "
            f"be suspended; `topogate install {option}` changes all of it"
        )
    url = stored.webhook_url if stored is not None else ""
    if url and settings.webhook_url != url and manager not in INSTALLERS:
        yield (
            f"webhookUrl: expected {url}, at which the API server calls the webhook, found "
            f"{settings.webhook_url or 'nothing'}: after a restart it would not be trusted there, and objects with a "
            "request would be refused; `topogate install` moves the components"
        )


def _moved_settings(settings: "Settings", stored: "Settings | None", manager: str) -> Iterator[str]:
    """Warnings of settings that other objects of the installation go by."""
    from crds.settings import DECIDED

    if stored is None or manager in INSTALLERS:
        return
    for name, about in type(settings).model_fields.items():
        before, after = getattr(stored, name), getattr(settings, name)
        if about.alias in DECIDED and before != after and name != "webhook_url":
            yield (
                f'data[{KEY}]: {about.alias}: objects of the installation go by "{before}": unless you change them '
                f'too, "{after}" does not work after a restart'
            )


def _text(config: ConfigMap) -> str:
    return (config.data or {}).get(KEY, "")
