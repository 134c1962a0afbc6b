"""The name of ``--flavor`` is checked before anything is applied."""

import pytest

from cli.install.flavor import named
from cli.output import Failure


@pytest.mark.parametrize("name", ["", "h100", "h100-east", "a.b"])
def test_a_name_that_the_cluster_takes_is_kept(name):
    assert named(name) == name


@pytest.mark.parametrize("name", ["Bad_Name", "-a", "a-", "a..b", "a b", "a\n", "a" * 254])
def test_a_name_that_the_cluster_would_refuse_is_refused_before_the_install(name):
    with pytest.raises(Failure, match="expected lower-case letters"):
        named(name)
