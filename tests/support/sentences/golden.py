"""A file of sentences that people get, each made by the code that makes it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent.parent.parent / "data" / "sentences"
Make = Callable[[], Any]


class Golden:
    """The cases of one file, in sections: what each said when somebody last looked at it."""

    def __init__(self, name: str) -> None:
        self.file = FOLDER / f"{name}.txt"
        self.cases: dict[str, Make] = {}
        self._sections: dict[str, str] = {}

    def section(self, title: str) -> None:
        """What comes from here on is about this."""
        self._sections[title] = ""

    def case(self, make: Make) -> Make:
        """A function that makes one sentence is a case of its name."""
        self.add(make.__name__.replace("_", " "), make)
        return make

    def add(self, name: str, make: Make) -> None:
        """A case of this name."""
        assert name not in self.cases, name
        self.cases[name] = make
        title = next(reversed(self._sections))
        self._sections[title] = self._sections[title] or name

    def text(self, name: str) -> str:
        """What a case says."""
        return text_of(self.cases[name]())

    def said(self) -> str:
        """All of it, as the file has it."""
        first = {name: title for title, name in self._sections.items()}
        parts = []
        for name in self.cases:
            if name in first:
                parts.append(f"{'' if not parts else chr(10)}# {first[name]}\n\n")
            parts.append(f"{name}\n    {self.text(name)}\n")
        return "".join(parts)


def text_of(found: Any) -> str:
    """A sentence: with its reason, where it comes with one."""
    if isinstance(found, str):
        return found
    if type(found) is tuple:
        return f"{found[0]}: {found[1]}"
    if isinstance(found, list):
        (found,) = found
    message = getattr(found, "message", None) or str(found)
    reason = getattr(found, "reason", None)
    return f"{reason}: {message}" if reason is not None else message
