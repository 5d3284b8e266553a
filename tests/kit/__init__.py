"""What tests share: one helper for each thing, so that a test says only what it is about."""
