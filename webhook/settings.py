"""What the webhook says to settings before they are stored: ConfigMap ``topogate-config``, key ``config.yaml``.

Only a text that changes is judged, so whoever changes anything else of the object is not held up by it.
"""

import msgspec

from webhook.checks import INVALID, Problem

KEY = "config.yaml"


class ConfigMap(msgspec.Struct):
    """A ConfigMap."""

    data: dict[str, str] | None = None


def judged(new: ConfigMap, old: ConfigMap | None, domain: str) -> Problem | None:
    """What is wrong with the settings; ``domain``: of the installation. It may be slow, so call it in a thread."""
    text = _text(new)
    if old is not None and _text(old) == text:
        return None
    # What checks settings takes 10 MiB of libraries, and most webhooks never see any.
    from crds.settings import SettingsError, parse

    try:
        settings = parse(text, source=f"data[{KEY}]")
    except SettingsError as error:
        return Problem(INVALID, str(error))
    if settings.domain != domain:
        return Problem(
            INVALID,
            f"data[{KEY}]: domain: expected {domain}, with which Topogate is installed, found {settings.domain}: pods "
            "that are gated under the old one would wait for ever; run `topogate uninstall` first",
        )
    return None


def _text(config: ConfigMap) -> str:
    return (config.data or {}).get(KEY, "")
