"""Names say what a thing does in the field's words; docs/develop.md has the words."""

import ast

import pytest
from support.imports import PACKAGES, modules, parsed

# Verbs that stand alone, and what they were called that have a word of the field by now.
BANNED = frozenset({
    "again", "ask", "back", "enter", "hold", "leave", "look", "park", "parked", "stir", "take", "taking", "told",
    "undo", "unpark", "Known", "Inside", "Look", "Neighbours", "Outlook", "Take", "Told",
})  # fmt: skip


def banned(text):
    """Functions, methods and classes of a module whose names are banned, private and nested ones too."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    found = [node.name for node in ast.walk(parsed(text)) if isinstance(node, kinds)]
    return [name for name in found if name.lstrip("_") in BANNED]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_function_or_class_is_named_by_a_verb_alone(package):
    found = {name: names for name, text in modules(package).items() if (names := banned(text))}
    assert found == {}


def test_banned_names_are_found_wherever_they_stand():
    text = "def told(): pass\nclass A:\n    async def _look(self):\n        def undo(): pass\nclass _Told: pass\n"
    assert sorted(banned(text)) == ["_Told", "_look", "told", "undo"]
