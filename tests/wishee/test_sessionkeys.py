from hypothesis import example, given
from hypothesis import strategies as st

from hermes_bridges.wishee.sessionkeys import Chat, is_foreign, is_ours, parse_stored, stored_key


def build(chat: Chat, namespace: str = "agent:main", per_user: bool = True) -> str:
    """The key that Hermes makes of such a source."""
    parts = [namespace, "wishee", chat.chat_type, chat.chat_id]
    if chat.thread_id:
        parts.append(chat.thread_id)
    elif chat.chat_type != "dm" and per_user:
        parts.append(chat.user_id)
    return ":".join(parts)


def shared(chat: Chat) -> str:
    return build(chat, per_user=False)


MAIN = "agent:main:main"
STORED = "agent:main:wishee:dm:agent:main:main"


def test_a_short_key_is_the_chat_of_a_dm():
    assert parse_stored(MAIN, build) == Chat("dm", MAIN, MAIN, None)
    assert stored_key(MAIN, build) == STORED
    assert stored_key("kitchen", build) == "agent:main:wishee:dm:kitchen"


def test_W11_both_forms_of_a_key_are_one_session():
    assert parse_stored(STORED, build) == parse_stored(MAIN, build)
    assert stored_key(STORED, build) == STORED


def test_a_thread_is_found_where_hermes_makes_the_same_key_of_it():
    key = "agent:main:wishee:group:room:7"
    # Where every user of a group has a session, the last part is no thread's to Hermes either.
    assert parse_stored(key, build) == Chat("group", "room", "room", "7")
    assert parse_stored(key, shared) == Chat("group", "room:7", "room:7", None)


def test_a_key_that_hermes_would_make_differently_is_a_chat_of_its_own():
    for key in (
        "agent:other:wishee:dm:x",  # another profile's
        "agent:main:wishee:dm:",
        "agent:main:wishee:group:x",  # which has a user behind it
        "agent:main:wishee:group::x",
    ):
        assert is_ours(key)
        assert parse_stored(key, build) == Chat("dm", key, key, None)


def test_keys_of_other_platforms_are_never_a_source():
    for key in (
        "agent:main:telegram:dm:123",
        "agent:main:telegram:group:-100:7:ana",
        "agent:work:slack:channel:C1:U1",
        "agent:main:telegram:dm",
        "agent:main:Wishee:dm:x",
        "agent:main::dm:x",
        "agent:main:cron:job:nightly",
    ):
        assert is_foreign(key) and not is_ours(key)
        assert parse_stored(key, build) is None
        assert stored_key(key, build) == key


def test_what_only_looks_a_little_like_a_stored_key_is_the_devices_own():
    for key in ("agent", "agent:main", MAIN, "agent:main:main:2", "x:main:telegram:dm:1", ":::::"):
        assert not is_foreign(key) and not is_ours(key)
        assert parse_stored(key, build) == Chat("dm", key, key, None)


PARTS = st.sampled_from(["agent", "main", "wishee", "dm", "group", "telegram", "", "a", "None"])
# An empty key is refused before.
KEYS = (st.lists(PARTS, max_size=9).map(":".join) | st.text(max_size=20)).filter(bool)


@given(KEYS)
@example("agent:main:wishee:dm:a:b")
def test_a_stored_key_is_its_own_stored_key(key):
    for rule in (build, shared):
        stored = stored_key(key, rule)
        assert stored_key(stored, rule) == stored
        assert is_foreign(key) or is_ours(stored)


@given(KEYS, KEYS)
def test_KH21_two_chats_are_two_sessions_wishee(one, other):
    """Short keys are whole chat ids: however they are made of parts, no two share a session."""
    if is_ours(one) or is_ours(other) or is_foreign(one) or is_foreign(other) or one == other:
        return
    assert stored_key(one, build) != stored_key(other, build)
    assert parse_stored(one, build) == Chat("dm", one, one, None)
