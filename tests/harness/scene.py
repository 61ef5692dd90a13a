"""A whole scene: a home, the fake `hermes`, peers, answers, daemons, and the clean-up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol

from . import judge
from .answers import Answers, Phone
from .daemon import Call, Daemon, Hermes, Home
from .peers import Peers


class Closing(Protocol):
    def close(self) -> None: ...


class Scene:
    """Use as a context manager, with a short directory (socket paths end at 107 bytes).

    On a good end no daemon has written a traceback and no `hermes` is left running.
    """

    def __init__(self, root: str, coms_dir: str | None = None) -> None:
        self.home = Home(root, coms_dir)
        self.hermes = Hermes(self.home)
        self.answers = Answers(self.home)
        self.peers = Peers(self.home)
        self.daemons: list[Daemon] = []
        self.threads: list[Closing] = []  # ended before the daemons and the peers

    def daemon(self, *flags: str, start: bool = True, **options: Any) -> Daemon:
        """A daemon with these flags; `options` as for `Daemon`. Started and ready unless told."""
        daemon = Daemon(self.home, *flags, **options)
        self.daemons.append(daemon)
        return daemon.start() if start else daemon

    def phone(self, reply: Callable[[Call], str | None], **options: Any) -> Phone:
        """A human who answers what is delivered; `options` as for `Phone`."""
        phone = Phone(self.hermes, self.answers, reply, **options)
        self.threads.append(phone)
        phone.start()
        return phone

    def verdict(self, **options: Any) -> Mapping[str, Any]:
        """What the judge says of the journals so far."""
        return judge.judge(judge.load(self.home.journals), **options)

    def close(self) -> None:
        try:
            for thread in self.threads:
                thread.close()
        finally:
            try:
                for daemon in self.daemons:
                    daemon.end()
            finally:
                self.peers.close()
                self.answers.close()

    def __enter__(self) -> Scene:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if error is None:
            for daemon in self.daemons:
                daemon.assert_no_traceback()
        elif isinstance(error, AssertionError):
            for daemon in self.daemons:
                text = daemon.all_stderr().strip()
                if text:
                    error.add_note(f"{daemon.name}@{daemon.project} said:\n{text[-3000:]}")
