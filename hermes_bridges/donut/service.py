"""The Donut daemon, put together; there is no logic here (contract, whole)."""

import contextlib
import itertools
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

from hermes_bridges import __version__
from hermes_bridges.core import files, logs
from hermes_bridges.core.breaker import Breaker
from hermes_bridges.core.chats import Chats
from hermes_bridges.core.deadlines import Deadlines
from hermes_bridges.core.eventlog import iso_now
from hermes_bridges.core.httpclient import Clients, HttpClient
from hermes_bridges.core.lifesigns import Lifesigns
from hermes_bridges.core.service import Service
from hermes_bridges.core.slots import Slots
from hermes_bridges.core.status import Status
from hermes_bridges.core.stream import Stream
from hermes_bridges.donut import settings as donut_settings
from hermes_bridges.donut.hermes_api import Hermes
from hermes_bridges.donut.intake import Intake
from hermes_bridges.donut.ledger import Ledger
from hermes_bridges.donut.link import Link
from hermes_bridges.donut.poster import AT_ONCE, Poster
from hermes_bridges.donut.settings import Settings
from hermes_bridges.donut.store import StateUnusable, Store, reset_state
from hermes_bridges.donut.turns import Ask, Policy, Turns
from hermes_bridges.donut.typing_signal import Board, TypingSignal
from hermes_bridges.donut.upkeep import Upkeep
from hermes_bridges.errors import BridgeError, ConfigError

PROGRAM = "donut-hermes-bridge"
EXIT_FAULT = 1
EXIT_CONFIG = 78
"""A fault that a restart cannot mend."""
TYPISTS = 4
COUNTERS = (
    *("received", "dropped", "lost", "answered", "fallback", "silent", "refused", "unknown"),
    *(
        f"ignored.{reason}"
        for reason in ("no_text", "bot", "self", "duplicate", "type", "malformed", "oversized")
    ),
    *(
        f"call_failures.{kind}"
        for kind in (
            *("connect", "timeout", "broken", "too_large", "restarted", "busy"),
            *("auth", "address", "status", "answer", "rejected"),
        )
    ),
    "reconnects",
)
"""What the status file counts from the start; other counters appear with their first event."""
_PROBE_SLACK = 5.0  # seconds from a permit to the end of its call, beyond the request timeout
_STEP_LIMIT = 10.0  # seconds for a step that touches the disk

_log = logging.getLogger("hermes_bridges.donut")


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run the daemon; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    environ = os.environ if environ is None else environ
    try:
        settings = donut_settings.parse(argv, environ)
    except ConfigError as error:
        for fault in error.faults:
            print(f"{PROGRAM}: {fault}", file=sys.stderr)
        return EXIT_CONFIG
    if settings.help:
        print(donut_settings.usage())
        return 0
    if settings.version:
        print(f"hermes-bridges {__version__}")
        return 0
    secrets = (settings.bot_token, settings.hermes_key)
    redactor = logs.Redactor(environ, secrets)
    # A check says itself what it finds.
    level = "error" if settings.check else settings.log_level
    logs.configure(PROGRAM, fmt=settings.log_format, level=level, redact=redactor)
    for warning in settings.warnings:
        _log.warning("%s", warning)
    try:
        if settings.check:
            from hermes_bridges.donut import check

            return check.run(settings)
        if settings.reset_state:
            return _reset(settings)
        return _Daemon(settings, environ, redactor).run()
    except KeyboardInterrupt:
        # Before the handlers stand.
        return 130
    except StateUnusable as error:
        _log.error("%s", error)
        return EXIT_FAULT if error.transient else EXIT_CONFIG
    except ConfigError as error:
        _log.error("%s", error)
        return EXIT_CONFIG
    except (BridgeError, OSError) as error:
        _log.error("%s", error)
        return EXIT_FAULT


def _reset(settings: Settings) -> int:
    aside = reset_state(settings.state_dir)
    print("there is no state" if aside is None else f"the state was moved to {aside}")
    return 0


class _Daemon:
    """Everything that lives as long as the process; made and run by the main thread."""

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], redactor: logs.Redactor
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._redactor = redactor

    def run(self) -> int:
        """Start, serve until the end; BridgeError or OSError for a fault at the start."""
        directory = self._settings.state_dir
        files.private_dir(directory)
        with contextlib.ExitStack() as cleanup:
            store = Store(directory)
            cleanup.callback(store.close)
            files.remove_stale_temps(directory)
            status = Status(os.path.join(directory, "status.json"))
            signs = Lifesigns(self._environ, status, self._redactor)
            cleanup.callback(signs.close)
            service, tell = self._assemble(store, status, signs, cleanup)
            code = service.run()
            if code == 0 and not service.hung:
                tell()
            if service.hurried and code == 0:
                code = EXIT_FAULT
            signs.stopped(code)
            if service.hung:
                # What is in flight stays unsettled, and comes again; nothing else is held.
                sys.stderr.flush()
                os._exit(code)
        return code

    def _assemble(
        self, store: Store, status: Status, signs: Lifesigns, cleanup: contextlib.ExitStack
    ) -> tuple[Service, Callable[[], None]]:
        """The daemon, and what puts its present numbers into the status."""
        settings = self._settings
        stopping, slots = threading.Event(), Slots(settings.max_concurrent)
        for name in COUNTERS:
            status.count(name, 0)

        def on_stop() -> None:
            stopping.set()
            slots.wake()

        changes = itertools.count(1)

        def on_breaker(state: str) -> None:
            # Numbered, so that the log does not take one for a repeat of another.
            _log.warning("the breaker is %s (change %d)", state.replace("_", "-"), next(changes))
            status.set("breaker", {"state": state, "since": iso_now()})

        status.set("breaker", {"state": "closed", "since": iso_now()})

        def met(bot: str | None) -> None:
            turns.meet(bot)
            upkeep.begin()

        def busy(now: float) -> bool:
            return chats.overdue(now)

        deadlines = Deadlines()
        hermes_clients = Clients(lambda: HttpClient(deadlines), settings.max_concurrent)
        hub_clients = Clients(lambda: HttpClient(deadlines, proxy=settings.proxy), AT_ONCE)
        cleanup.callback(hermes_clients.close)
        cleanup.callback(hub_clients.close)
        breaker = Breaker(
            settings.breaker_threshold,
            settings.breaker_cooldown,
            settings.request_timeout + _PROBE_SLACK,
            on_change=on_breaker,
        )
        ledger = Ledger(store.cursor())
        board = Board()
        poster = Poster(
            settings.send_url,
            settings.bot_token,
            settings.content_type,
            hub_clients,
            store,
            status,
            stopping,
            board.pause,
        )
        turns = Turns(
            Policy(
                settings.model,
                settings.request_timeout,
                settings.fallback_message,
                settings.fallback_interval,
                settings.content_type == "MD",
            ),
            slots,
            breaker,
            Hermes(settings.hermes_url, settings.hermes_key, hermes_clients, stopping),
            store,
            ledger,
            poster,
            board,
            status,
            stopping,
        )
        chats: Chats[Ask] = Chats(
            turns.handle,
            settings.queue_limit,
            settings.idle_timeout,
            on_drained=lambda chat: intake.drained(chat),
        )
        link = Link(settings.stream_url, settings.bot_token, status, self._redactor)
        stream = Stream(
            lambda: link.target(intake.resume_from()),
            lambda raw: intake.offer(raw),
            link.changed,
            proxy=settings.proxy,
        )
        intake = Intake(
            chats,
            ledger,
            store,
            status,
            settings.respond_to_bots,
            stopping,
            confirm=stream.confirm,
            resume=stream.resume,
            redial=stream.redial,
            wrong_bot=lambda: service.fail(EXIT_CONFIG),
            met=met,
        )
        upkeep = Upkeep(store, chats, status)
        link.refused_cursor = intake.without_cursor
        if settings.exit_on_auth_failure:
            link.refused_token = lambda: service.fail(EXIT_CONFIG)

        def tell() -> None:
            status.set("queued", chats.queued)
            status.set("in_flight", slots.taken)
            status.set("workers", chats.workers)
            status.set("outbox", store.outbox_size())

        def tick(now: float) -> float | None:
            tell()
            signs.beat(now)
            return status.write_if_due(now)

        service = Service(
            PROGRAM,
            signs,
            grace=settings.shutdown_grace,
            tick=tick,
            describe=link.describe,
            on_stop=on_stop,
            exits=True,
        )
        service.add("donut.stream", stream, stop_rank=0, limit=60.0)
        # Its own steps are nothing; its end takes as long as the messages in hand.
        service.add("donut.chats", chats, stop_rank=0, limit=math.inf, overdue=busy)
        service.add("donut.upkeep", upkeep, stop_rank=0, limit=_STEP_LIMIT)
        service.add("donut.intake", intake, stop_rank=1, limit=_STEP_LIMIT)
        if settings.typing_url:
            # Its own: they are hastened at the stop.
            typing_deadlines = Deadlines()
            for number in range(1, min(TYPISTS, settings.max_concurrent) + 1):
                client = HttpClient(typing_deadlines, proxy=settings.proxy)
                cleanup.callback(client.close)
                typist = TypingSignal(
                    board, settings.typing_url, settings.bot_token, client, typing_deadlines
                )
                service.add(f"donut.typing-{number}", typist, stop_rank=1, limit=30.0)
            service.add("donut.typing-deadlines", typing_deadlines, stop_rank=2)
        service.add("donut.deadlines", deadlines, stop_rank=2)
        return service, tell
