"""What every bus does, whatever carries it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from interlingua.bus.local import LocalBus
from interlingua.bus.open import open_bus
from interlingua.bus.port import WORK, Bus
from interlingua.model.errors import InterlinguaError
from tests.kit.buses import FakeListener, Heard
from tests.kit.nats import opened

Pair = Callable[[], AbstractAsyncContextManager[tuple[Bus, Bus]]]


@pytest.fixture(params=["local", "nats"])
def pair(request: pytest.FixtureRequest) -> Pair:
    """Two ends of a bus: who says something, and who listens."""

    @asynccontextmanager
    async def local() -> AsyncIterator[tuple[Bus, Bus]]:
        bus = LocalBus()
        await bus.open()
        yield bus, bus
        await bus.close()

    @asynccontextmanager
    async def nats() -> AsyncIterator[tuple[Bus, Bus]]:
        url = request.getfixturevalue("nats_url")
        async with opened(url) as one, opened(url) as other:
            yield one, other

    return local if request.param == "local" else nats


async def ready(saying: Bus, listening: Bus, heard: Heard) -> None:
    """Return when what is said reaches who listens: the other end has been told that somebody does."""
    if saying is listening:
        return
    listener = FakeListener("one")
    saying.attach(listener)  # type: ignore[attr-defined]
    end = listening.subscribe("ready", heard.about("ready"))
    await listener.heard.until(lambda: ("watched", "ready") in listener.heard.items)
    saying.publish("ready")
    await heard.until(lambda: "ready" in heard.items)
    end()
    heard.items.clear()


async def test_listeners_hear_of_each_change_of_their_topics(pair: Pair) -> None:
    async with pair() as (saying, listening):
        heard = Heard()
        for topic in ("a", "b", "c"):
            listening.subscribe(topic, heard.about(topic))
        await ready(saying, listening, heard)
        for topic in ("b", "a", "other", "a"):
            saying.publish(topic)
        await heard.count(3)
        assert sorted(map(str, heard.items)) == ["a", "a", "b"]  # what is told of two topics may change places


async def test_everyone_hears_that_there_is_work(pair: Pair) -> None:
    async with pair() as (saying, listening):
        heard = Heard()
        saying.subscribe(WORK, heard.about("here"))
        listening.subscribe(WORK, heard.about("there"))
        saying.publish(WORK)
        await heard.count(2)
        assert sorted(map(str, heard.items)) == ["here", "there"]


async def test_who_has_stopped_listening_hears_nothing(pair: Pair) -> None:
    async with pair() as (saying, listening):
        heard = Heard()
        end = listening.subscribe("a", heard.about("left"))
        listening.subscribe("a", heard.about("stays"))
        await ready(saying, listening, heard)
        end()
        end()  # once more does no harm
        saying.publish("a")
        saying.publish("a")
        await heard.count(2)
        assert heard.items == ["stays", "stays"]


async def test_a_listener_may_stop_while_it_is_being_told(pair: Pair) -> None:
    async with pair() as (saying, listening):
        heard = Heard()

        def once() -> None:
            end()
            heard("once")

        end = listening.subscribe("a", once)
        await ready(saying, listening, heard)
        listening.subscribe("a", heard.about("always"))
        for _ in range(2):
            saying.publish("a")
        await heard.count(3)
        assert heard.items == ["once", "always", "always"]


async def test_when_nobody_knows_what_changed_every_listener_here_is_told(pair: Pair) -> None:
    async with pair() as (_, listening):
        heard = Heard()
        for topic in ("a", "b", WORK):
            listening.subscribe(topic, heard.about(topic))
        listening.publish_all()
        assert heard.items == ["a", "b", WORK]


async def test_each_of_thousands_of_topics_has_its_own_listeners(pair: Pair) -> None:
    async with pair() as (saying, listening):
        heard = Heard()
        for number in range(3000):
            listening.subscribe(f"run-{number}", heard.about(number))
        await ready(saying, listening, heard)
        for number in range(0, 3000, 3):
            saying.publish(f"run-{number}")
        await heard.count(1000)
        assert heard.items == list(range(0, 3000, 3)), "told of all at once, they are told in order"


def test_no_address_means_the_bus_of_this_process() -> None:
    assert isinstance(open_bus(None), LocalBus)


@pytest.mark.parametrize("url", ["http://host", "nats://", "nats://host:port", "host:4222", "nats://a,tls://b"])
def test_an_address_that_is_none_of_a_bus_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InterlinguaError) as refused:
        open_bus(f"{url.replace('://', '://me:secret@')}")
    assert "secret" not in str(refused.value)
