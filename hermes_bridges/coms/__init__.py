"""The coms bridge: a peer that asks a human through Hermes."""
