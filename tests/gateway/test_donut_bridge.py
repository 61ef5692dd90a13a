"""The Donut bridge between the stand-in hub and real API servers of Hermes .

Nothing is a stand-in but the hub and the model: sessions, idempotency, refusals and failures are
those of the real server, and where the versions differ the test says how.
"""

import tempfile
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from hermes_bridges.donut.settings import FALLBACK
from hermes_bridges.standins.donut_hub import DonutHub
from tests import hermes_versions
from tests.gateway import delivered
from tests.gateway.donut_relay import Relay
from tests.gateway.donut_site import ANSWERED_WITHIN, CAP, KEY, RealHermes, prose
from tests.harness.daemon import wait
from tests.harness.donut_bridge import TOKEN, Bridge

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(240)]

OLDEST = "0.14.0"
_bots = count(1001)  # an id of its own for each; people have small ones


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(version, marks=pytest.mark.xdist_group(f"hermes-{version}"))
        for version in hermes_versions.REQUIREMENTS
    ],
)
def hermes(request: pytest.FixtureRequest) -> Iterator[RealHermes]:
    """One server for all tests; each test is another bot there."""
    with tempfile.TemporaryDirectory(prefix="hb-", ignore_cleanup_errors=True) as root:
        with RealHermes(request.param, Path(root)) as started:
            yield started


class Site:
    """A hub, a bridge, and a relay between the bridge and Hermes."""

    def __init__(self, hermes: RealHermes, root: Path, **more: str) -> None:
        self.hermes = hermes
        self.answered = 0
        self.hub = DonutHub(token=TOKEN, bot_id=next(_bots))
        for chat in (1, 2, 3):
            self.hub.add_chat(chat, "all")
        self.relay = Relay(hermes.port)
        self.bridge = Bridge(root, self.hub, self.relay.base_url, KEY, **more)

    def posts(self, asked: object) -> list[dict[str, Any]]:
        """What the chat got in reply to that message."""
        return [post for post in self.hub.posted() if post["reply_to"] == asked]

    def reply(self, asked: object, within: float = ANSWERED_WITHIN) -> str:
        """The first thing that the chat got in reply to that message."""
        self.hub.wait(lambda: self.posts(asked), within)
        found = self.posts(asked)
        assert found, self.bridge.said()
        text: str = found[0]["content"]
        self.answered += text != FALLBACK
        return text

    def ask(self, chat: int, text: str) -> str:
        return self.reply(self.hub.say(chat, text))

    def close(self) -> None:
        self.bridge.close()
        self.hub.close()
        self.relay.close()


MakeSite = Callable[..., Site]


@pytest.fixture
def make(
    hermes: RealHermes, short_tmp: Path, record_property: Callable[[str, object], None]
) -> Iterator[MakeSite]:
    made: list[Site] = []

    def make_site(**more: str) -> Site:
        root = short_tmp / str(len(made))
        root.mkdir()
        made.append(Site(hermes, root, **more))
        made[-1].bridge.start()
        return made[-1]

    yield make_site
    hermes.agent.release()
    for site in made:
        site.close()
    turns = sum(site.answered for site in made)
    record_property(delivered.ANSWERED, f"{hermes.version}={turns}")


def test_each_chat_has_its_own_history_that_survives_a_restart(make: MakeSite) -> None:
    site = make()
    assert site.ask(1, "one") == "heard: one"
    assert site.ask(2, "alpha") == "heard: alpha"
    two, beta = site.hub.say(1, "@helper, two"), site.hub.say(2, "beta")
    assert site.reply(two) == "heard: one | two"
    assert site.reply(beta) == "heard: alpha | beta"
    assert site.bridge.stop() == 0
    site.bridge.start()
    assert site.ask(1, "three") == "heard: one | two | three"
    assert {passed.status for passed in site.relay.passed} == {200}
    assert len({passed.session for passed in site.relay.passed}) == 2


def test_a_new_conversation_begins_on_demand(make: MakeSite) -> None:
    site = make()
    assert site.ask(1, "one") == "heard: one"
    turns = len(site.relay.passed)
    assert "heard" not in site.ask(1, "/new") and len(site.relay.passed) == turns
    assert site.ask(1, "two") == "heard: two"


def test_two_people_are_told_apart(make: MakeSite) -> None:
    site = make()
    assert site.ask(1, "one") == "heard: one"
    two = site.hub.say(1, "two", sender="bo", sender_id=6)
    assert site.reply(two) == "heard: one | bo: two"
    assert site.ask(1, "three") == "heard: one | bo: two | ana: three"


def test_another_session_that_an_answer_names_is_taken_over(make: MakeSite) -> None:
    site = make()
    site.ask(1, "one")
    (first,) = site.relay.passed
    other = f"{first.session}.other"
    site.relay.renamed[first.session] = other
    assert site.ask(1, "two") == "heard: one | two"
    assert site.ask(1, "three") == "heard: three"
    site.bridge.kill()
    site.bridge.start()
    assert site.ask(1, "four") == "heard: three | four"
    assert [passed.session for passed in site.relay.passed] == [first.session] * 2 + [other] * 2


def test_a_conversation_that_hermes_compresses_goes_on(make: MakeSite) -> None:
    site = make()
    filler, texts = prose(30_000), 0
    for number in range(1, 31):
        texts = int(site.ask(1, f"{number} {filler} [[count]] [[tokens 190000]]"))
        if texts < number:
            break
    assert 0 < texts < number, "it was never compressed"
    assert int(site.ask(1, "and then [[count]]")) > 1
    sessions = [passed.answered_session for passed in site.relay.passed]
    # Later versions keep the name.
    assert len(set(sessions)) == (2 if site.hermes.version == OLDEST else 1)
    assert site.relay.passed[-1].session == sessions[-2]


def test_a_repeated_request_joins_the_run(make: MakeSite) -> None:
    site = make()
    assert site.ask(1, "one") == "heard: one"
    text = f"[[hold]] for bot {site.hub.bot_id}"
    site.hermes.agent.hold()
    asked = site.hub.say(1, text)
    wait(lambda: text in site.hermes.agent.heard, ANSWERED_WITHIN, "the run begins")
    site.bridge.kill()
    site.bridge.start()
    wait(lambda: len(site.relay.began) == 3, ANSWERED_WITHIN, "it is asked for again")
    site.hermes.agent.release()
    assert site.reply(asked) == f"heard: one | {text}"
    assert site.hermes.agent.heard.count(text) == 1
    assert site.bridge.stop() == 0
    assert len(site.posts(asked)) == 1
    assert len(set(site.relay.began)) == 2


def test_a_wrong_key(make: MakeSite) -> None:
    site = make(HERMES_API_KEY="another-key-0123456789ab")
    assert site.ask(1, "one") == FALLBACK
    assert site.relay.passed[-1].status == 401
    assert "HERMES_API_KEY" in site.bridge.said()
    assert "another-key" not in site.bridge.said()


def test_a_stopped_server_and_its_return(make: MakeSite, hermes: RealHermes) -> None:
    site = make(HERMES_BASE_URL=hermes.base_url)
    assert site.ask(1, "one") == "heard: one"
    site.hermes.stop()
    try:
        asked = site.hub.say(1, "two")
        assert site.reply(asked) == FALLBACK
    finally:
        site.hermes.start()
    assert site.ask(1, "three") == "heard: one | three"


def test_a_busy_server_is_waited_for(make: MakeSite) -> None:
    site = make()
    agent = site.hermes.agent
    agent.hold()
    others = [
        threading.Thread(target=site.hermes.ask, args=(f"[[hold]] {site.hub.bot_id} {number}",))
        for number in range(CAP)
    ]
    for other in others:
        other.start()
    mine = f"{site.hub.bot_id} "
    wait(lambda: sum(mine in text for text in agent.heard) == CAP, ANSWERED_WITHIN, "all are busy")
    asked = site.hub.say(1, "one")
    if site.hermes.version == OLDEST:
        # It has no limit.
        assert site.reply(asked) == "heard: one"
        assert [passed.status for passed in site.relay.passed] == [200]
    else:
        wait(lambda: site.relay.passed, ANSWERED_WITHIN)
        assert not site.posts(asked)
    agent.release()
    assert site.reply(asked) == "heard: one"
    for other in others:
        other.join()
    refused = {passed.status for passed in site.relay.passed[:-1]}
    assert refused == (set() if site.hermes.version == OLDEST else {429})
    assert len(site.posts(asked)) == 1


@pytest.mark.parametrize("status", [400, 429, 500])
def test_a_model_that_fails(make: MakeSite, status: int) -> None:
    site = make()
    assert site.ask(1, f"[[fail {status}]]") == FALLBACK
    # What the oldest version tells by its status the others hide in a 200.
    told = 502 if (status, site.hermes.version) == (400, OLDEST) else 200
    assert [passed.status for passed in site.relay.passed] == [told]
    assert "heard" in site.ask(1, "next")
    assert not any("made failure" in post["content"] for post in site.hub.posted())


def test_an_answer_that_the_model_refused_to_finish(make: MakeSite) -> None:
    site = make()
    said = site.ask(1, "[[finish content_filter]] [[say half of it]]")
    # The oldest version does not look at the reason.
    assert said == ("half of it" if site.hermes.version == OLDEST else FALLBACK)


def test_silence(make: MakeSite) -> None:
    site = make()
    asked = site.hub.say(1, "[[say NO_REPLY]]")
    assert "heard" in site.ask(1, "next")
    assert not site.posts(asked)


def test_an_answer_of_48000_bytes_arrives_whole(make: MakeSite) -> None:
    site = make()
    asked = site.hub.say(1, "[[long 48000]]")
    after = site.hub.say(1, "next")
    assert "heard" in site.reply(after)
    site.answered += 1
    parts = [post["content"] for post in site.posts(asked)]
    assert "".join(parts) == prose(48_000)
    assert 12 <= len(parts) <= 16 and max(len(part.encode()) for part in parts) <= 4000
    ids = [post["message_id"] for post in site.posts(asked)]
    assert [post["thread_id"] for post in site.posts(asked)] == [None] + [ids[0]] * (len(ids) - 1)


def test_a_longer_answer_ends_with_a_notice(make: MakeSite) -> None:
    site = make()
    asked = site.hub.say(1, "[[long 60000]]")
    after = site.hub.say(1, "next")
    assert "heard" in site.reply(after)
    parts = [post["content"] for post in site.posts(asked)]
    whole = "".join(parts)
    assert len(parts) <= 16 and len(whole.encode()) <= 48_000
    assert prose(60_000).startswith(whole[:47_000])
    assert not prose(60_000).startswith(whole)


def test_an_empty_reply_of_the_model(make: MakeSite) -> None:
    # The newer versions ask again for 40 to 50 s.
    site = make()
    assert site.ask(1, "[[empty]]") == FALLBACK
    assert site.relay.passed[-1].status == 200
