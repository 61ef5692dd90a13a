"""Black-box test harness for the coms daemon.

Nothing here imports the product: peers, the human, the `hermes` command and the judge are
written by hand from the contract, so that they can disagree with it.

    journal.py      append-only ndjson, one write a line; what every part notes down
    wire.py         envelopes and one-line exchanges, written by hand
    fake_hermes.py  the `hermes` command put on PATH, driven by rules
    daemon.py       Home, Hermes (the rules), Daemon (start, stop, kill, look inside), wait()
    peers.py        askers and receivers of every kind
    answers.py      writes answer files, well and badly; Phone answers what was delivered
    lag.py          how long a process waits for a processor here
    scene.py        one of each, tied together and cleaned up
    judge.py        reads the journals alone and says whether a question was mistreated
"""
