from tests.kit.nats import nats_url, shared_nats

__all__ = ["nats_url", "shared_nats"]
