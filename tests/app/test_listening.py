"""Ports: who has one has it alone, from the moment that it was given."""

from __future__ import annotations

import socket

import pytest

from interlingua.server.http_server import CannotListen, listen


def test_a_port_that_was_given_is_taken_for_everybody_else_before_anything_answers_on_it() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(CannotListen, match=f"port {port} of 127.0.0.1 is taken"):
            listen("127.0.0.1", port)
        with listen("127.0.0.1", [port, 0]) as second:
            assert second.getsockname()[1] != port


def test_a_port_that_another_process_is_bound_to_and_listens_on_is_told_as_taken() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        with listen("127.0.0.1", other.getsockname()[1]), pytest.raises(OSError, match="in use"):
            other.listen()
