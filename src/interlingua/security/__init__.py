"""Decides who may do what and which hosts may be called: keys, tokens, scopes, webhook signatures, Host and Origin
checks, egress guard.

One check for every door. Nothing here knows a protocol, a store or the engine.
"""
