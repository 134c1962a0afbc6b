"""What msgspec says of a wrong type is told without types of Python."""

import msgspec
import pytest

from kube.objects import Job, JobSpec
from kube.type_words import in_words


@pytest.mark.parametrize(
    ("value", "type_", "said"),
    [
        ({"parallelism": "two"}, JobSpec, "expected a whole number, found text - at `$.parallelism`"),
        ({"suspend": 1}, JobSpec, "expected true or false, found a whole number - at `$.suspend`"),
        ([], JobSpec, "expected an object, found a list"),
        ({"spec": None}, Job, "expected an object, found nothing - at `$.spec`"),
        (1.5, int | str, "expected a whole number or text, found a number"),
    ],
)
def test_a_wrong_type_is_told_in_words(value, type_, said):
    with pytest.raises(msgspec.ValidationError) as wrong:
        msgspec.json.decode(msgspec.json.encode(value), type=type_)
    assert in_words(str(wrong.value)) == said


def test_what_else_is_wrong_stays_as_it_is():
    assert in_words("Object missing required field `uid`") == "Object missing required field `uid`"
