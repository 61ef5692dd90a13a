"""The Wishee connector: a plugin of the Hermes gateway."""
