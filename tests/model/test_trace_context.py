"""The trace context of a call: what of it is taken from others, and what goes on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.model import trace_context
from interlingua.model.errors import TooManyHops

IDS = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PARENT = f"00-{IDS}"


def test_what_is_well_formed_is_taken_as_it_came() -> None:
    came = {"traceparent": PARENT, "tracestate": "a=1,b=2", "baggage": "tenant=acme;p=1,user=eve"}
    assert trace_context.read({**came, "x": 1}) == came


@pytest.mark.parametrize("given", [None, "x", 7, [], {}, {"x": 1}, {"traceparent": 7, "tracestate": [], "baggage": {}}])
def test_what_is_none_is_none(given: Any) -> None:
    assert trace_context.read(given) is None


@pytest.mark.parametrize(
    "parent",
    [
        "", "x", IDS, PARENT.upper(), f"ff-{IDS}", f"{PARENT}-", f"{PARENT}-more", f"{PARENT}\n", f"{PARENT},{PARENT}",
        PARENT[:-1], f"00-{'0' * 32}-00f067aa0ba902b7-01", f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
        "0٠" + PARENT[2:],
    ],
)  # fmt: skip
def test_a_malformed_parent_is_ignored_and_takes_the_state_along(parent: str) -> None:
    assert trace_context.read({"traceparent": parent, "tracestate": "a=1", "baggage": "b=2"}) == {"baggage": "b=2"}


@pytest.mark.parametrize("parent", [f"01-{IDS}", f"cc-{IDS}-what-will-be", f" {PARENT}\t"])
def test_of_a_later_version_that_is_kept_which_this_one_knows(parent: str) -> None:
    assert trace_context.read({"traceparent": parent}) == {"traceparent": PARENT}


@pytest.mark.parametrize(("name", "limit"), [("tracestate", 512), ("baggage", 8192)])
def test_of_a_long_list_whole_members_are_kept_as_far_as_there_is_room(name: str, limit: int) -> None:
    member = "k=" + "v" * 97  # a hundred characters with its comma
    members = limit // 100
    read = trace_context.read({"traceparent": PARENT, name: ",".join([member] * 200)})
    assert read == {"traceparent": PARENT, name: ",".join([member] * members)}
    exact = "k=" + "v" * (limit - 2)
    assert trace_context.read({"traceparent": PARENT, name: exact}) == {"traceparent": PARENT, name: exact}
    assert trace_context.read({"traceparent": PARENT, name: exact + "v"}) == {"traceparent": PARENT}


def test_members_that_no_header_could_hold_are_dropped_and_the_others_stay() -> None:
    read = trace_context.read({"baggage": "a=1, b=\r\nx-evil: 1,c=é ,, d=4"})
    assert read == {"baggage": "a=1,d=4"}


def test_hops_are_counted_beside_the_other_members() -> None:
    first = trace_context.next_hop(None, 16)
    assert first == {"baggage": "interlingua-hops=1"}
    came = {"traceparent": PARENT, "baggage": "tenant=acme;p=1, interlingua-hops = 4 ;x,user=eve"}
    assert trace_context.hops(came) == 4
    assert trace_context.next_hop(came, 16) == {
        "traceparent": PARENT,
        "baggage": "interlingua-hops=5,tenant=acme;p=1,user=eve",
    }


@pytest.mark.parametrize("count", ["", "-1", "1.5", "x", "²", "9" * 10, "1 2"])
def test_what_is_no_count_counts_nothing(count: str) -> None:
    assert trace_context.hops({"baggage": f"interlingua-hops={count}"}) == 0


def test_of_several_counts_the_highest_holds() -> None:
    assert trace_context.hops({"baggage": "interlingua-hops=2,interlingua-hops=7,interlingua-hops=3"}) == 7
    onward = trace_context.next_hop({"baggage": "interlingua-hops=2,interlingua-hops=7"}, 16)
    assert onward == {"baggage": "interlingua-hops=8"}


def test_one_hop_too_many_is_an_error_that_says_what_to_do() -> None:
    carried = None
    for _ in range(3):
        carried = trace_context.next_hop(carried, 3)
    with pytest.raises(TooManyHops, match=r"through 3 mounts.*max_hops is 3") as raised:
        trace_context.next_hop(carried, 3)
    assert (raised.value.code, raised.value.transient) == ("too_many_hops", False)
    with pytest.raises(TooManyHops):
        trace_context.next_hop(None, 0)


def test_a_full_baggage_makes_room_for_the_count() -> None:
    """A loop ends also where the baggage was full before: the next one to read it finds the count."""
    carried = trace_context.read({"baggage": ",".join(["k=" + "v" * 97] * 81 + ["k=" + "v" * 89])})
    assert carried is not None
    assert len(carried["baggage"]) == 8191
    for count in range(1, 16):
        carried = trace_context.read(trace_context.next_hop(carried, 16))
        assert trace_context.hops(carried) == count


_texts = st.text("kv=,;% \t\r\n\0é²9-") | st.just("interlingua-hops=3") | st.just(PARENT)


@given(st.dictionaries(st.sampled_from([*trace_context.NAMES, "x"]), _texts | st.none() | st.integers()))
def test_whatever_comes_what_is_read_can_be_sent_as_headers_and_is_read_the_same_again(given: Any) -> None:
    read = trace_context.read(given)
    onward = trace_context.next_hop(read, 16) if trace_context.hops(read) < 16 else {}
    for value in [*(read or {}).values(), *onward.values()]:
        assert value.isascii()
        assert value.isprintable()
    assert trace_context.read(read) == read
    assert trace_context.read(onward) == (onward or None)
