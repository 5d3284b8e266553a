"""The event loop of servers and workers: uvloop. Nothing else imports it.

A server writes the head and the body of a response by two calls. uvloop sends them by one system call, asyncio by two.
Short commands keep the loop of asyncio, which starts without another import.
"""

from __future__ import annotations

import asyncio

import uvloop

__all__ = ["new_event_loop"]


def new_event_loop() -> asyncio.AbstractEventLoop:
    return uvloop.new_event_loop()
