"""What the webhook knows of flavors, as watches tell it."""

import asyncio

from clock import SYSTEM
from kube.informer import Event, EventKind
from kube.objects import FlavorTopology, ObjectMeta, ResourceFlavor, ResourceFlavorSpec
from webhook.levels import FlavorLevels

BLOCK, RACK = "example.com/block", "example.com/rack"


def flavor(**topology):
    spec = ResourceFlavorSpec(topology=FlavorTopology(**topology) if topology else None)
    return ResourceFlavor(metadata=ObjectMeta(name="gpu"), spec=spec)


async def test_names_that_are_added_to_a_flavor_are_a_new_offer():
    levels = FlavorLevels(None, SYSTEM)
    levels._known.set()
    assert levels.current_offer().flavors == {}

    def hears(new):
        levels._on_flavor(Event(EventKind.MODIFIED, "gpu", None, new))
        return levels.current_offer()

    plain = hears(flavor(levels=(BLOCK, RACK)))
    assert (plain.flavors, plain.names.level("rack")) == ({"gpu": (BLOCK, RACK)}, "rack")
    named = hears(flavor(levels=(BLOCK, RACK), names={"rack": RACK}))
    assert named is not plain
    assert named.names.level("rack") == RACK
    assert hears(flavor(levels=(BLOCK, RACK), names={"rack": RACK})) is named
    gone = hears(flavor())
    assert (gone.flavors, gone.names.level("rack")) == ({}, "rack")
    assert hears(None) is gone
    await asyncio.sleep(0)
