"""What the tests of the Wishee connector in real gateways share."""

from collections.abc import Iterator

import pytest

from tests.gateway.wishee_install import Installed, installed


@pytest.fixture(scope="session")
def wishee_installed() -> Iterator[Installed]:
    """The built wheel, for all versions; made when it is first asked for."""
    with installed() as made:
        yield made
