"""What the tests of the coms daemon stand on: a scene in a short directory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.scene import Scene


@pytest.fixture
def scene(short_tmp: Path) -> Iterator[Scene]:
    """A home, the fake `hermes`, peers and answers; at the end no daemon said a traceback."""
    with Scene(str(short_tmp)) as made:
        yield made
        for daemon in made.daemons:  # shown with a failure
            print(f"{daemon.name}@{daemon.project} said:\n{daemon.all_stderr()[-4000:]}")
