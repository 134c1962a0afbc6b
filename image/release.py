"""What a tag may be called, and what its release says: ``python -m image.release TAG`` prints the version's changelog.

A tag is ``v`` and a version. It is refused unless the package, the chart and the newest entry of the changelog are of
that version: what is published cannot be taken back. It needs Python alone, so that it can run before everything else.
"""

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
CHART = Path("manifests/helm/topogate/Chart.yaml")
CHANGELOG = Path("CHANGELOG.md")
PROJECT = Path("pyproject.toml")
_NEWEST = re.compile(r"^## (\S+) - \S+\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


class ReleaseError(Exception):
    """What keeps a tag from being released; the text says what to do."""


def versions(root: Path = ROOT) -> Mapping[str, str]:
    """Where a version stands -> which."""
    chart = (root / CHART).read_text(encoding="utf-8")
    newest = _NEWEST.search((root / CHANGELOG).read_text(encoding="utf-8"))
    return {
        f"{PROJECT} (project.version)": tomllib.loads((root / PROJECT).read_text(encoding="utf-8"))["project"][
            "version"
        ],
        f"{CHART} (version)": _field(chart, "version"),
        f"{CHART} (appVersion)": _field(chart, "appVersion"),
        f"{CHANGELOG} (the first heading)": newest[1] if newest else "",
    }


def _field(text: str, name: str) -> str:
    found = re.search(rf"^{name}: [\"']?([^\"'\s]+)", text, re.MULTILINE)
    return found[1] if found else ""


def notes(tag: str, root: Path = ROOT) -> str:
    """What the changelog says of the version. Raises ReleaseError where the tag is of another one."""
    wrong = [f"{place}: {found or 'none'}" for place, found in versions(root).items() if f"v{found}" != tag]
    if wrong:
        raise ReleaseError(
            f"tag {tag} is not the version of {'; '.join(wrong)}. Tag the commit that says {tag.removeprefix('v')}."
        )
    newest = _NEWEST.search((root / CHANGELOG).read_text(encoding="utf-8"))
    return newest[2].strip() + "\n" if newest else ""


if __name__ == "__main__":
    try:
        sys.stdout.write(notes(sys.argv[1]))
    except ReleaseError as failed:
        sys.exit(str(failed))
