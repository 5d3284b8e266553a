"""The bus over NATS: subjects, subscriptions and work queues."""
