"""Semantic versions, as Kubernetes' expressions compare them (github.com/blang/semver/v4; semver.org 2.0.0)."""

import re
from typing import Final

import msgspec

_NUMBER: Final = re.compile(r"0|[1-9][0-9]*")
_IDENTIFIER: Final = re.compile(r"[0-9A-Za-z-]+")
_LARGEST: Final = (1 << 64) - 1

Part = tuple[int, int, str]  # of a prerelease: 0 and the number, or 1 and the text; as they are ordered


class Version(msgspec.Struct, frozen=True):
    """A version; what stands behind ``+`` does not count."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[Part, ...] = ()

    def compared(self, other: "Version") -> int:
        """-1, 0 or 1; a prerelease comes before its release."""
        left, right = _order(self), _order(other)
        return (left > right) - (left < right)


def _order(version: Version) -> tuple[int, int, int, bool, tuple[Part, ...]]:
    return version.major, version.minor, version.patch, not version.prerelease, version.prerelease


def parse(text: str) -> Version:
    """A version by its text.

    Raises:
        ValueError: the text is none.
    """
    if not text:
        raise ValueError("Version string empty")
    parts = text.split(".", 2)
    if len(parts) != 3:
        raise ValueError("No Major.Minor.Patch elements found")
    # Build data first: it may contain a dash, which starts no prerelease there.
    last, plus, build = parts[2].partition("+")
    patch, dash, prerelease = last.partition("-")
    if plus and not all(_IDENTIFIER.fullmatch(one) for one in build.split(".")):
        raise ValueError(f"Invalid build meta data {build!r}")
    return Version(
        _parse_number(parts[0]),
        _parse_number(parts[1]),
        _parse_number(patch),
        tuple(_parse_part(one) for one in prerelease.split(".")) if dash else (),
    )


def parse_tolerant(text: str) -> Version:
    """The same, for texts with a leading v, leading zeros or less than three numbers.

    Raises:
        ValueError: the text is none even so.
    """
    parts = text.removeprefix("v").split(".", 2)
    for index, part in enumerate(parts):
        if len(part) > 1:
            bare = part.lstrip("0")
            parts[index] = bare if bare[:1].isdigit() and bare[:1].isascii() else f"0{bare}"
    if len(parts) < 3 and ("+" in parts[-1] or "-" in parts[-1]):
        raise ValueError("short version cannot contain PreRelease/Build meta data")
    return parse(".".join(parts + ["0"] * (3 - len(parts))))


def _parse_number(text: str) -> int:
    # No leading zeros. ``semver("580.159.04")``, as some drivers are written, is an error that ends the pod.
    if not _NUMBER.fullmatch(text) or len(text) > 20 or int(text) > _LARGEST:
        raise ValueError(f"Invalid version number {text[:32]!r}")
    return int(text)


def _parse_part(text: str) -> Part:
    if text.isascii() and text.isdigit():
        return 0, _parse_number(text), ""
    if not _IDENTIFIER.fullmatch(text):
        raise ValueError(f"Invalid prerelease {text[:32]!r}")
    return 1, 0, text
