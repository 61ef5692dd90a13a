"""Black-box test harness for the daemons.

Nothing here imports the product, but for its stand-ins of others: peers, the human, the `hermes`
command and the judges are written by hand from the contract, so that they can disagree with it.

    process.py      Process (start, stop, kill, pause, look at it), wait()

For the coms bridge:

    journal.py      append-only ndjson, one write a line; what every part notes down
    wire.py         envelopes and one-line exchanges, written by hand
    fake_hermes.py  the `hermes` command put on PATH, driven by rules
    daemon.py       Home, Hermes (the rules), Daemon (the process)
    peers.py        askers and receivers of every kind
    answers.py      writes answer files, well and badly; Phone answers what was delivered
    lag.py          how long a process waits for a processor here
    scene.py        one of each, tied together and cleaned up
    judge.py        reads the journals alone and says whether a question was mistreated

For the Donut bridge:

    donut_scene.py  a hub, a scripted Hermes, the bridge as a child, and people who say things
    donut_judge.py  reads their journals alone and says whether a message was mistreated
"""
