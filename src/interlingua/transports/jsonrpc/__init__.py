"""JSON-RPC 2.0: messages, connections, parameters, batches."""
