"""A console on which no text of a tenant moves the cursor, changes the window or hides what stands beside it."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment

from cli.output import CONTROL, show_control

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType


class Screen(Console):
    """Whatever is printed here goes through `render`: a line, a cell of a table, a spinner."""

    def render(self, renderable: "RenderableType", options: "ConsoleOptions | None" = None) -> "Iterable[Segment]":
        """The segments of something; only those of rich itself move the cursor."""
        return _without_control(super().render(renderable, options))


def _without_control(segments: Iterable[Segment]) -> Iterator[Segment]:
    for segment in segments:
        if segment.control is None and CONTROL.search(segment.text):
            yield Segment(show_control(segment.text), segment.style)
        else:
            yield segment
