"""Text of a tenant on a screen: it moves no cursor, changes no window, and hides nothing that stands beside it."""

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

# C0 without tab and line feed, DEL, C1, and what changes the direction of a line or has no width.
CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
MOST_SHOWN = 200  # characters of a key or a path that a tenant wrote


def show_control(text: str) -> str:
    """A text whose control characters are seen, and do nothing: as escapes of Python."""
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def escape_control(json: str) -> str:
    """The same JSON, with the control characters as escapes that an encoder leaves as they are."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", json)


def in_one_line(text: str, most: int = MOST_SHOWN) -> str:
    """The beginning of a text of a tenant, such as a key: it may have any length, and lines of its own."""
    shown = text if len(text) <= most else f"{text[:most]}..."
    return show_control(shown.replace("\t", "\\t").replace("\n", "\\n"))


def open_screen(file: TextIO, **options: Any) -> "Console":
    """A console whose every line, cell of a table and spinner shows control characters; ``options``: of the console."""
    return _screen()(file=file, **options)


@cache
def _screen() -> "type[Console]":
    # Late, as all that draws: --help and errors of usage need none of it.
    from rich.console import Console
    from rich.segment import Segment

    class Screen(Console):
        def render(self, renderable: "RenderableType", options: "ConsoleOptions | None" = None) -> "Iterable[Segment]":
            return without_control(super().render(renderable, options))

    def without_control(segments: "Iterable[Segment]") -> "Iterator[Segment]":
        for segment in segments:
            # What rich itself makes to move the cursor is marked as such.
            if segment.control is None and CONTROL.search(segment.text):
                yield Segment(show_control(segment.text), segment.style)
            else:
                yield segment

    return Screen
