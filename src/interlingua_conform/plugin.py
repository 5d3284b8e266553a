"""Names what the command line of Interlingua finds of this package by entry points."""

from __future__ import annotations

from interlingua.protocols.base import OTHER_SERVERS, Command

conform = Command("conform", "interlingua_conform.command:add_conform", OTHER_SERVERS)
