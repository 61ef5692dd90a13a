"""The bridge from a Donut bot stream to the Hermes API server."""
