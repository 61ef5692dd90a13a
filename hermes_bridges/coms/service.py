"""The coms daemon, put together; there is no logic here (contract sections 2 to 6)."""

import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from queue import SimpleQueue

from hermes_bridges import __version__
from hermes_bridges.coms import settings as coms_settings
from hermes_bridges.coms.admission import Admission
from hermes_bridges.coms.book import Book
from hermes_bridges.coms.courier import Courier, Job
from hermes_bridges.coms.desk import Desk
from hermes_bridges.coms.dispatch import Dispatch
from hermes_bridges.coms.envelope import new_ulid
from hermes_bridges.coms.inbox import Inbox
from hermes_bridges.coms.neighbours import foreign_bridges
from hermes_bridges.coms.peer import BACKLOG, Listener
from hermes_bridges.coms.presence import Presence
from hermes_bridges.coms.records import Owner, Records
from hermes_bridges.coms.registry import Registry, valid_name
from hermes_bridges.coms.replier import Replier
from hermes_bridges.coms.settings import Settings
from hermes_bridges.coms.verbs import VERBS
from hermes_bridges.core import files, logs
from hermes_bridges.core.eventlog import EventLog
from hermes_bridges.core.hermes_cli import HermesCli
from hermes_bridges.core.lifesigns import Lifesigns
from hermes_bridges.core.service import Service
from hermes_bridges.core.status import Status
from hermes_bridges.core.waker import Waker
from hermes_bridges.errors import BridgeError, ConfigError

PROGRAM = "coms-hermes-bridge"
# Seconds beyond the limit of a send until a courier counts as hung.
SEND_SLACK = 5.0

_log = logging.getLogger("hermes_bridges.coms")


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run the daemon, or the client when the first word is one of its verbs."""
    argv = sys.argv[1:] if argv is None else argv
    environ = os.environ if environ is None else environ
    if argv and argv[0] in VERBS:
        from hermes_bridges.coms import client

        return client.main(argv, environ)
    try:
        settings = coms_settings.parse(argv, environ)
    except ConfigError as error:
        for fault in error.faults:
            print(f"{PROGRAM}: {fault}", file=sys.stderr)
        return 1
    if settings.help:
        print(coms_settings.usage())
        return 0
    if settings.version:
        print(f"hermes-bridges {__version__}")
        return 0
    redactor = logs.Redactor(environ)
    logs.configure(PROGRAM, fmt=settings.log_format, redact=redactor)
    if settings.check:
        from hermes_bridges.coms import check

        return check.run(settings, environ)
    try:
        return _Daemon(settings, environ, redactor).run()
    except KeyboardInterrupt:
        # Before the handlers stand.
        return 130
    except (BridgeError, OSError) as error:
        _log.error("%s", error)
        return 1


class _Daemon:
    """Everything that lives as long as the process; made and run by the main thread."""

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], redactor: logs.Redactor
    ) -> None:
        self._settings = settings
        self._redactor = redactor
        self._environ = environ
        self._hermes = HermesCli(environ, settings.hermes_profile)
        self._registry = Registry(settings.coms_dir, settings.project)
        self._session = new_ulid(int(time.time() * 1000), os.urandom(10))
        self._endpoint = self._registry.endpoint(self._session)

    def run(self) -> int:
        """Start, serve until the end; BridgeError or OSError for a fault at the start."""
        self._make_directories()
        with contextlib.ExitStack() as cleanup, contextlib.ExitStack() as naming:
            # Held until the entry stands: no other start can take the name, or the questions.
            naming.enter_context(self._registry.lock())
            name = self._name()
            status = Status(self._settings.status_path(name))
            signs = Lifesigns(self._environ, status, self._redactor)
            cleanup.callback(signs.close)
            self._introduce(status, name)
            records = self._open_records(name, status)
            cleanup.callback(records.close)
            event_log = EventLog(self._settings.log_path, on_fault=_log.error)
            cleanup.callback(event_log.close)
            presence = Presence(self._registry, name, self._session, self._endpoint)
            service = self._assemble(presence, records, event_log, status, signs)

            def publish() -> None:
                presence.publish()
                naming.close()
                _log.info("%s@%s listening (%s)", name, self._settings.project, self._settings.to)

            code = service.run(publish)
            if code == 0:
                status.remove()
            else:
                signs.stopped(code)
        if service.hung:
            # A thread that does not end must not keep the process.
            sys.stderr.flush()
            os._exit(code)
        return code

    def _introduce(self, status: Status, name: str) -> None:
        """What tells those who find the status file where to look further."""
        settings = self._settings
        status.set("name", name)
        status.set("project", settings.project)
        status.set("session", self._session)
        status.set("coms_dir", settings.coms_dir)
        status.set("questions_dir", settings.questions_dir)
        status.set("event_log", settings.log_path)

    def _make_directories(self) -> None:
        self._registry.prepare()
        self._registry.sweep()
        for directory in (
            # Not the parent of the questions directory, which may be anybody's: a flag can name it.
            os.path.dirname(self._settings.status_dir),
            self._settings.questions_dir,
            self._settings.status_dir,
        ):
            files.private_dir(directory)
        files.remove_stale_temps(self._settings.status_dir)

    def _name(self) -> str:
        wanted = self._settings.name
        name = self._registry.free_name(wanted)
        if not valid_name(name):
            raise ConfigError(f"the name {wanted} is taken, and {name} is too long to be one")
        return name

    def _open_records(self, name: str, status: Status) -> Records:
        owner = Owner(self._settings.project, name, self._session)
        records = Records(self._settings.pending_dir, owner, status.count)
        records.open()
        for session in records.dead_sessions():
            with contextlib.suppress(OSError):
                files.remove(self._registry.endpoint(session))
            records.forget(session)
        strangers = foreign_bridges(self._settings.coms_dirs, records)
        if strangers:
            status.set("foreign_bridges", strangers)
            _log.warning(
                "another implementation of the bridge runs (%s) and deletes answers that are not"
                " its own: stop it",
                ", ".join(strangers),
            )
        return records

    def _assemble(
        self,
        presence: Presence,
        records: Records,
        event_log: EventLog,
        status: Status,
        signs: Lifesigns,
    ) -> Service:
        settings = self._settings
        admission, inbox = Admission(), Inbox()
        stopping, stop_waker = threading.Event(), Waker()
        # As many as there are couriers.
        jobs: SimpleQueue[Job | None] = SimpleQueue()

        def reachable(endpoint: str) -> bool:
            return os.path.lexists(endpoint) or self._registry.has_endpoint(endpoint)

        replier = Replier(inbox.put, admission.is_cancelled, reachable)
        book = Book(records, admission, replier.put, status, self._endpoint)
        dispatch = Dispatch(settings, book, event_log, status, jobs, stopping, self._redactor)
        desk = Desk(settings, inbox, book, dispatch, event_log, status, presence.beat)
        desk.adopt(time.monotonic())
        listener = Listener(
            self._listen(),
            self._endpoint,
            admission,
            presence.card(),
            inbox,
            presence.withdraw,
        )

        def tick(now: float) -> float | None:
            status.set("peers", dict(listener.counts))
            status.set("log_lost", event_log.lost)
            signs.beat(now)
            return status.write_if_due(now)

        service = Service(
            PROGRAM,
            signs,
            tick=tick,
            describe=lambda: f"{presence.name}@{settings.project}: {len(book.open)} open",
            exits=True,
        )
        service.add("coms.listen", listener, stop_rank=0)
        send_limit = settings.send_timeout_ms / 1000
        for number in range(1, settings.max_sends + 1):
            courier = Courier(
                self._hermes, settings.to, send_limit, jobs, inbox.put, stopping, stop_waker
            )
            service.add(f"coms.courier-{number}", courier, 1, limit=send_limit + SEND_SLACK)
        service.add("coms.replier", replier, stop_rank=2)
        service.add("coms.desk", desk, stop_rank=3)
        return service

    def _listen(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listening.bind(self._endpoint)
            os.chmod(self._endpoint, 0o600)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
        return listening
