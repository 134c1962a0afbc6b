"""Literals of CEL: what their texts stand for."""

import re
from typing import Final

from engine.claims.cel.errors import CompileError
from engine.claims.cel.values import LARGEST_INT, LARGEST_UINT, UInt

_SIMPLE: Final = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    '"': '"',
    "'": "'",
    "\\": "\\",
    "?": "?",
    "`": "`",
}
_ESCAPE: Final = re.compile(
    r"\\(?:([abfnrtv\"'\\?`])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|([\s\S]?))"
)


class LiteralError(CompileError):
    """A literal that stands for nothing."""


def integer(text: str) -> int:
    """A whole number; one beyond 2^63 is none (-2^63 is written as the negative of 2^63)."""
    # The length first: Python takes quadratic time for digits, and refuses more than 4,300 of them with another error.
    value = int(text, 0 if text.startswith("0x") else 10) if len(text) < 32 else LARGEST_INT + 2
    if value > LARGEST_INT + 1:
        raise LiteralError(f"{text[:32]} is no integer of 64 bits")
    return value


def unsigned(text: str) -> UInt:
    """A whole number without sign."""
    number = text[:-1]
    value = int(number, 0 if number.startswith("0x") else 10) if len(number) < 32 else LARGEST_UINT + 1
    if value > LARGEST_UINT:
        raise LiteralError(f"{text[:32]} is no unsigned integer of 64 bits")
    return UInt(value)


def text_of(token: str) -> str:
    """What stands between the quotes of a string, its escapes resolved."""
    raw = token[0] in "rR"
    body = token[1:] if raw else token
    quotes = 3 if body[:3] in {'"""', "'''"} and len(body) >= 6 else 1
    inside = body[quotes:-quotes]
    return inside if raw else _ESCAPE.sub(_unescaped, inside)


def _unescaped(match: re.Match[str]) -> str:
    simple, byte, short, long, octal, _ = match.groups()
    if simple is not None:
        return _SIMPLE[simple]
    if octal is not None:
        return chr(int(octal, 8))
    code = byte or short or long
    if code is None:
        raise LiteralError(f"{match[0]!r} is no escape")
    point = int(code, 16)
    # Surrogates are no characters in Go, and later break every encoding of the text here.
    if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
        raise LiteralError(f"{match[0]!r} is no character")
    return chr(point)
