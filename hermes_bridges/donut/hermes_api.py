"""One turn at the Hermes API server, with all its tries (contract sections 3.6, 3.7 and 9)."""

import json
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from hermes_bridges.core.backoff import Backoff, retry_after
from hermes_bridges.core.httpclient import CallFailed, Clients, HttpClient, Reply
from hermes_bridges.donut.outcome import BUSY, classify
from hermes_bridges.donut.outcome import Answered as Answered
from hermes_bridges.donut.outcome import Failed as Failed
from hermes_bridges.donut.outcome import Outcome as Outcome
from hermes_bridges.donut.outcome import Rejected as Rejected
from hermes_bridges.donut.outcome import TimedOut as TimedOut
from hermes_bridges.donut.outcome import Unsettled as Unsettled

CONNECT_WITHIN = 10.0
"""Seconds for which a connection is tried again and again."""
_PID_LIMIT = 3.0  # seconds for asking which process answers
_SOONEST = 0.2  # seconds before a busy Hermes is asked again, whatever it says
_ANOTHER = "Hermes is not surely the process that had the run"

_log = logging.getLogger("hermes_bridges.donut.hermes")


class Hermes:
    """Makes the calls; may be used by any number of threads, each with a message of its own.

    ``base`` is ``HERMES_BASE_URL`` without ``/v1``. ``stopping`` ends every wait between two tries,
    but not a request in progress, whose answer is still wanted then.
    """

    def __init__(
        self,
        base: str,
        key: str,
        clients: Clients,
        stopping: threading.Event,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self._url = f"{base}/v1/chat/completions"
        self._health = f"{base}/health/detailed"
        self._auth = {"Authorization": f"Bearer {key}"}
        self._clients = clients
        self._stopping = stopping
        self._clock = clock
        self._wall = wall
        self._rand = rand
        # The process that answers, None when it does not say, and whether that is still sure.
        # Written by any worker: a late word of an old process only prevents a join.
        self._pid: int | None = None
        self._pid_known = False
        # By run key, the process in which a run was begun whose answer did not come in time.
        # Bounded by the workers: each takes its own entry out again.
        self._begun: dict[str, int | None] = {}

    def turn(
        self, body: bytes, session: str, session_key: str, run_key: str, limit: float
    ) -> Outcome:
        """Ask Hermes, for at most ``limit`` seconds. One call to the breaker, whatever it took.

        A connection that cannot be made is tried again for a while, a busy Hermes is waited for,
        and one that broke is made once again, to the same process only: the key then joins the
        run, where a second run would do again what the agent does. After ``TimedOut`` the caller
        may ``join`` the run with the same arguments.
        """
        call = _Call(body, self._headers(session, session_key, run_key), self._clock() + limit)
        tries = _Tries(self._rand, doubtful=not self._pid_known, pid=self._pid, sent=False)
        outcome = self._run(call, tries)
        if isinstance(outcome, TimedOut):
            self._begun[run_key] = tries.pid
        return outcome

    def join(
        self, body: bytes, session: str, session_key: str, run_key: str, limit: float
    ) -> Outcome:
        """Wait on, after a ``TimedOut``, for at most ``limit`` seconds; never begins a run."""
        call = _Call(body, self._headers(session, session_key, run_key), self._clock() + limit)
        pid = self._begun.pop(run_key, None)
        return self._run(call, _Tries(self._rand, doubtful=True, pid=pid, sent=True))

    def _headers(self, session: str, session_key: str, run_key: str) -> dict[str, str]:
        return {
            **self._auth,
            "Content-Type": "application/json",
            "X-Hermes-Session-Id": session,
            "X-Hermes-Session-Key": session_key,
            "Idempotency-Key": run_key,
        }

    def _run(self, call: "_Call", tries: "_Tries") -> Outcome:
        while not self._stopping.is_set():
            try:
                with self._clients.borrow() as client:
                    # Asked on the connection that the run goes to: a new one may lead to another
                    # process than the last.
                    if tries.doubtful or not client.connected:
                        if not tries.settle_pid(self._ask_pid(client, call.due)):
                            return Failed("restarted", _ANOTHER)
                    left = call.due - self._clock()
                    reply = client.post(self._url, call.body, call.headers, left)
            except CallFailed as failure:
                self._pid_known = False
                if self._stopping.is_set() and failure.kind != "timeout":
                    # Perhaps ended by the stop itself. The next start joins the run.
                    return Unsettled()
                outcome, delay = tries.after(failure, self._clock(), call.due)
            else:
                outcome, delay = self._judge(reply, tries)
            if delay is None or self._clock() + delay >= call.due:
                return outcome
            self._stopping.wait(delay)
        return Unsettled()

    def _judge(self, reply: Reply, tries: "_Tries") -> tuple[Outcome, float | None]:
        """The outcome, and for a busy Hermes the seconds after which to ask again."""
        tries.connected()
        if reply.status >= 500:
            # Such as that of a process which is about to end.
            self._pid_known = False
            tries.doubtful = True
        outcome = classify(reply.status, reply.headers, reply.body)
        if isinstance(outcome, Failed) and outcome.kind in ("auth", "address"):
            _log.error("%s", outcome.told)
        if reply.status not in BUSY:
            return outcome, None
        asked = retry_after(reply.headers.get("Retry-After"), self._wall())
        return outcome, tries.busy.next_delay() if asked is None else max(asked, _SOONEST)

    def _ask_pid(self, client: HttpClient, due: float) -> int | None:
        """The process that answers, None if it does not say; CallFailed without a connection."""
        limit = min(_PID_LIMIT, due - self._clock())
        try:
            reply = client.get(self._health, self._auth, limit)
        except CallFailed as failure:
            if failure.kind == "connect":
                raise
            return None
        self._pid = _pid(reply)
        self._pid_known = True
        return self._pid


class _Call(NamedTuple):
    body: bytes
    headers: dict[str, str]
    due: float


class _Tries:
    """How far the tries of one call have come. Owned by the worker that makes it.

    ``pid`` is the process that has the run, or is to get it; ``doubtful``: it may be another one
    by now; ``sent``: it may have begun the run.
    """

    def __init__(
        self, rand: Callable[[], float], *, doubtful: bool, pid: int | None, sent: bool
    ) -> None:
        self.doubtful = doubtful
        self.pid = pid
        self.busy = Backoff(1.0, 10.0, floor=_SOONEST, rand=rand)
        self._sent = sent
        self._connect = Backoff(0.25, 2.0, floor=0.05, rand=rand)
        self._connect_due: float | None = None
        self._may_break = True

    def settle_pid(self, pid: int | None) -> bool:
        """Take note of who answers; False: it surely is, or may be, another than had the run."""
        if self._sent:
            return pid is not None and pid == self.pid
        self.pid = pid
        self.doubtful = False
        return True

    def connected(self) -> None:
        self._connect_due = None
        self._connect.reset()

    def after(self, failure: CallFailed, now: float, due: float) -> tuple[Outcome, float | None]:
        """The outcome if this was the last try, and seconds until the next, None for none."""
        self.doubtful = True
        if failure.kind == "timeout":
            return TimedOut(), None
        outcome = Failed(failure.kind, str(failure))
        if failure.kind == "broken" and self._may_break:
            self._may_break = False
            self._sent = True
            return outcome, 0.0
        if failure.kind != "connect":
            return outcome, None
        if self._connect_due is None:
            self._connect_due = min(due, now + CONNECT_WITHIN)
        delay = self._connect.next_delay()
        return outcome, delay if now + delay < self._connect_due else None


def _pid(reply: Reply) -> int | None:
    try:
        found = json.loads(reply.body) if reply.status == 200 else None
    except (ValueError, RecursionError):
        return None
    pid = found.get("pid") if isinstance(found, dict) else None
    return pid if isinstance(pid, int) and not isinstance(pid, bool) else None
