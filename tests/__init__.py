"""The tests of hermes_bridges; ``bin/test`` runs them."""
