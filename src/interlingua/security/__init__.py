"""Who may do what, and whom we call: keys, tokens, scopes, webhook signatures, Host and Origin checks, egress guard.

One check for every door. Nothing here knows a protocol, a store or the engine.
"""
