"""What is in the image of Topogate's own: a bill of materials (CycloneDX) of the lock file.

``python -m image.sbom FILE`` writes it. The same lock file gives the same bytes: there is no time in it and no random
number. What the base image brings is told by that image's own.

Of a distribution it says name, version, hashes of the files that may be installed, on which platforms (`marker`), and
which others of the lock file it requires, as the one that is installed here says.
"""

import hashlib
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import InvalidRequirement, Requirement

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
HASH = "--hash=sha256:"


class LockError(Exception):
    """A line of the lock file that is none; the text names it."""


@dataclass(frozen=True)
class Pinned:
    """One entry of the lock file."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]


def pinned(text: str) -> Iterator[Pinned]:
    """The entries of a lock file. Raises LockError."""
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        hashes = tuple(word.removeprefix(HASH) for word in words if word.startswith(HASH))
        rest = " ".join(word for word in words if not word.startswith("--"))
        try:
            found = Requirement(rest)
        except InvalidRequirement as error:
            raise LockError(f"{LOCK.name}: {rest}: {error}") from error
        versions = [each.version for each in found.specifier if each.operator == "=="]
        if len(versions) != 1 or not hashes:
            raise LockError(f"{LOCK.name}: {rest}: expected NAME==VERSION with {HASH}...")
        yield Pinned(plain(found.name), versions[0], str(found.marker or ""), hashes)


def plain(name: str) -> str:
    """A distribution's name in its one form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def bill(lock: str, project: Mapping[str, object]) -> Bom:
    """The bill of the lock file's text for the ``project`` table of pyproject.toml. Raises LockError."""
    entries = list(pinned(lock))
    root = Component(
        type=ComponentType.APPLICATION,
        name=str(project["name"]),
        version=str(project["version"]),
        description=str(project["description"]),
        bom_ref=str(project["name"]),
    )
    parts = {
        (one.name, one.version): Component(
            type=ComponentType.LIBRARY,
            name=one.name,
            version=one.version,
            bom_ref=f"{one.name}@{one.version}",
            purl=PackageURL("pypi", name=one.name, version=one.version),
            properties=[Property(name="marker", value=one.marker)] if one.marker else [],
            external_references=[
                ExternalReference(
                    type=ExternalReferenceType.DISTRIBUTION,
                    url=XsUri(f"pkg:pypi/{one.name}@{one.version}"),
                    comment="any one of these files",
                    hashes=[HashType(alg=HashAlgorithm.SHA_256, content=each) for each in one.hashes],
                )
            ],
        )
        for one in entries
    }
    made = Bom(components=parts.values(), serial_number=uuid5(NAMESPACE_OID, hashlib.sha256(lock.encode()).hexdigest()))
    made.metadata.component = root
    made.metadata.timestamp = None  # type: ignore[assignment] # the schema has it optional
    by_name: dict[str, list[Component]] = {}
    for (name, _), part in parts.items():
        by_name.setdefault(name, []).append(part)
    direct = project["dependencies"]
    if not isinstance(direct, list):
        raise LockError("pyproject.toml: project.dependencies: expected a list")
    made.register_dependency(root, _named(direct, by_name))
    for (name, _), part in parts.items():
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            # It is for another platform, and not installed here.
            required = []
        made.register_dependency(part, _named(required, by_name))
    return made


def _named(requirements: list[str], by_name: Mapping[str, list[Component]]) -> list[Component]:
    """The components that they mean, without what is required for an extra alone."""
    found = [Requirement(each) for each in requirements]
    names = sorted({plain(each.name) for each in found if "extra ==" not in str(each.marker or "")})
    return [part for name in names for part in by_name.get(name, ())]


def text(lock: str, project: Mapping[str, object]) -> str:
    """The bill as JSON. Raises LockError."""
    return JsonV1Dot6(bill(lock, project)).output_as_string(indent=1) + "\n"


def main(file: str) -> None:
    """Write the bill of this repository's lock file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(LOCK.read_text(encoding="utf-8"), project), encoding="utf-8")
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except LockError as failed:
        sys.exit(str(failed))
