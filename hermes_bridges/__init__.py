"""Threaded daemons that connect chat systems to the Hermes agent."""

__version__ = "0.1.0"
