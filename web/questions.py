"""What the page asks that takes the controller's own code on a whole cluster: whoever runs the page answers it.

Answers are JSON. A question may take seconds; it is asked in a thread, one at a time.
"""

from typing import Any, Protocol

from web.sight import Sight

Json = dict[str, Any]


class QuestionError(Exception):
    """A question that cannot be answered, and why, for the person who asked it."""


class Questions(Protocol):
    """See the module. Each call reads what it needs and returns the answer; it may be made in a thread."""

    def queues(self, sight: Sight) -> Json:
        """All cluster queues that may be seen, who waits in them and why. Raises QuestionError."""
        ...

    def explain(self, key: str, sight: Sight) -> Json:
        """Why a workload waits, or an admitted one does not grow: how near each domain comes, and what would free it.

        Raises QuestionError.
        """
        ...

    def place_manifest(self, text: str, namespace: str, sight: Sight) -> Json:
        """Where the pods of a manifest would go, or why not. Raises QuestionError."""
        ...
