"""A process that commits until it is killed, and says on stdout what is committed.

python -m tests.donut.committer work DIRECTORY    messages from begin to end
python -m tests.donut.committer make DIRECTORY    one new store after the other, each below it
python -m tests.donut.committer fill DIRECTORY    messages until no file can grow
python -m tests.donut.committer hold DIRECTORY    opens the store, and keeps it until killed
"""

import os
import resource
import signal
import sys
import time

from hermes_bridges.donut.store import ChatState, Part, StateFailed, Store

CHATS = 5
ROOM = 1_500_000  # bytes that a file may have in the end


def part(chat: str, message: str, number: int, text: str = "an answer") -> Part:
    return Part(
        0, chat, 1, None, message, f"{message}/{number}", message, number, text, time.time()
    )


def handle(store: Store, n: int) -> None:
    chat, message = f"c{n % CHATS}", f"m{n}"
    store.begin(chat, message, f"s{n}", False, ChatState(bot_run=n))
    say(f"begun {n}")
    parts = [part(chat, message, number) for number in range(1, n % 3 + 2)]
    store.settle(chat, message, session=f"s{n}", parts=parts)
    say(f"settled {n}")
    store.posted(store.outbox(chat)[0])
    say(f"posted {n}")
    store.set_cursor(f"e{n}")


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main(what: str, directory: str) -> None:
    if what == "make":
        n = 0
        while True:
            Store(os.path.join(directory, str(n))).close()
            n += 1
            say(f"made {n}")
    store = Store(directory)
    say("open")
    if what == "hold":
        signal.pause()
    if what == "fill":
        resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, ROOM))
    n = 0
    try:
        while True:
            handle(store, n)
            n += 1
    except StateFailed as fault:
        say(f"failed {fault}")
        # What is there can still be read.
        last = n - 1
        known = store.is_settled(f"c{last % CHATS}", f"m{last}")
        say(f"can be read: {known}, {store.cursor()}")
        store.close()
        say("closed")


if __name__ == "__main__":
    main(*sys.argv[1:])
