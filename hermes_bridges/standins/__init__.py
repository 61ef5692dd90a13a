"""Loopback peers for the demo and the tests."""
