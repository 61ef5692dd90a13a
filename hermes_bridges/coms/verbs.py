"""The first arguments that make a call one of the client (contract section 9)."""

VERBS = frozenset(
    {
        "list",
        "ask",
        "send",
        "await",
        "reply",
        "ping",
        "cancel",
        "questions",
        "answer",
        # The detached waiter of `send`; not for people.
        "_listen",
    }
)
