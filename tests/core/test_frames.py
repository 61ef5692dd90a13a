import itertools
import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_bridges.core.frames import (
    Closed,
    FrameReader,
    Oversized,
    Ping,
    Pong,
    Text,
    Violation,
)

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
LIMIT, ABORT = 300, 1_000


def frame(opcode: int, payload: bytes = b"", final: bool = True) -> bytes:
    """One frame as a server sends it."""
    first = opcode | (0x80 if final else 0)
    if len(payload) < 126:
        return bytes((first, len(payload))) + payload
    if len(payload) < 65536:
        return bytes((first, 126)) + struct.pack("!H", len(payload)) + payload
    return bytes((first, 127)) + struct.pack("!Q", len(payload)) + payload


def read(*pieces: bytes, limit: int = LIMIT, abort: int = ABORT) -> list:
    reader = FrameReader(limit, abort)
    return [event for piece in pieces for event in reader.feed(piece)]


def bytewise(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def test_a_message_of_each_length_form_and_kind():
    for size in (0, 1, 125, 126, 65_535, 65_536):
        payload = b"x" * size
        for opcode in (TEXT, BINARY):
            assert read(frame(opcode, payload), limit=1 << 20, abort=1 << 20) == [Text(payload)]


def test_a_message_may_be_spread_over_frames_with_control_frames_between():
    data = (
        frame(TEXT, b"a", final=False)
        + frame(PING, b"1")
        + frame(CONTINUATION, b"b", final=False)
        + frame(PONG)
        + frame(CONTINUATION, b"c")
        + frame(BINARY, b"d")
    )
    wanted = [Ping(b"1"), Pong(b""), Text(b"abc"), Text(b"d")]
    assert read(data) == wanted
    assert read(*bytewise(data)) == wanted


def test_what_is_not_utf8_is_handed_over_as_it_is():
    assert read(frame(TEXT, b"\xff\xfe") + frame(TEXT, b"{}")) == [Text(b"\xff\xfe"), Text(b"{}")]


def test_a_long_message_is_read_away_and_told_once_at_its_end():
    long = frame(TEXT, b"x" * 200, final=False) + frame(CONTINUATION, b"y" * 200, final=False)
    reader = FrameReader(LIMIT, ABORT)
    assert reader.feed(long) == []
    assert reader.feed(frame(PING)) == [Ping(b"")]
    assert reader.feed(frame(CONTINUATION, b"z") + frame(TEXT, b"next")) == [
        Oversized(401),
        Text(b"next"),
    ]


def test_the_limits_are_reached_by_the_last_byte_that_fits():
    assert read(frame(TEXT, b"x" * LIMIT)) == [Text(b"x" * LIMIT)]
    assert read(frame(TEXT, b"x" * (LIMIT + 1))) == [Oversized(LIMIT + 1)]
    assert read(frame(TEXT, b"x" * ABORT)) == [Oversized(ABORT)]
    (violation,) = read(frame(TEXT, b"x" * (ABORT + 1)))
    assert violation.close_code == 1009


def test_a_message_beyond_all_bounds_is_refused_at_its_header():
    (violation,) = read(bytes((0x82, 127)) + struct.pack("!Q", 1 << 63))
    assert violation.close_code == 1009
    many = frame(TEXT, b"x" * 600, final=False) + frame(CONTINUATION, b"x" * 401)[:4]
    (violation,) = read(many)
    assert violation.close_code == 1009


def test_nothing_of_a_long_message_is_kept():
    reader = FrameReader(limit=1_000, abort=1 << 30)
    reader.feed(bytes((0x82, 127)) + struct.pack("!Q", 1 << 24))
    piece = b"x" * 65_536
    for _ in range(255):
        reader.feed(piece)
    held = sum(len(v) for v in vars(reader).values() if isinstance(v, bytearray))
    assert held < 1_000
    assert reader.feed(piece) == [Oversized(1 << 24)]


def test_a_close_with_code_and_reason_ends_it():
    data = frame(CLOSE, struct.pack("!H", 4001) + "schade \N{EM DASH}".encode()) + frame(TEXT, b"x")
    assert read(data) == [Closed(4001, "schade \N{EM DASH}")]
    assert read(frame(CLOSE), frame(PING)) == [Closed(None, "")]
    assert read(frame(CLOSE, b"\x03\xe8\xff")) == [Closed(1000, "\N{REPLACEMENT CHARACTER}")]


def test_what_a_server_must_not_send():
    for data in (
        bytes((0x81 | 0x40, 0)),  # compressed, which was not agreed on
        bytes((0x81, 0x80)),  # masked
        frame(3),
        frame(11),
        frame(CONTINUATION, b"x"),
        frame(TEXT, b"x", final=False) + frame(TEXT, b"y"),
        frame(PING, final=False),
        frame(PING, b"x" * 126),
        frame(CLOSE, b"\x03"),
    ):
        for pieces in ([data], bytewise(data)):
            *_, violation = read(*pieces, frame(TEXT, b"after it"))
            assert isinstance(violation, Violation)
            assert violation.close_code == 1002


frames = st.builds(
    frame,
    st.sampled_from([CONTINUATION, TEXT, BINARY, PING, PONG, CLOSE, 3]),
    st.one_of(st.binary(max_size=140), st.integers(0, 1_100).map(lambda n: b"x" * n)),
    st.sampled_from([True, True, False]),
)
streams = st.one_of(
    st.lists(frames, max_size=12).map(b"".join),
    st.tuples(st.lists(frames, max_size=4).map(b"".join), st.binary(max_size=60)).map(b"".join),
    st.binary(max_size=200),
)


@settings(max_examples=300)
@given(streams, st.lists(st.integers(0, 3_000), max_size=12))
def test_how_the_bytes_are_cut_makes_no_difference(data, cuts):
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    assert read(*pieces) == read(data) == read(*bytewise(data))


@given(streams)
def test_after_an_end_nothing_follows(data):
    events = read(data, frame(TEXT, b"x"), frame(CONTINUATION, b"x"))
    ends = [i for i, event in enumerate(events) if isinstance(event, Closed | Violation)]
    assert ends in ([], [len(events) - 1])


@given(st.lists(st.one_of(st.binary(max_size=LIMIT), st.just(b"x" * 500)), max_size=8))
def test_every_message_comes_once_and_in_order(payloads):
    wanted = [Oversized(len(p)) if len(p) > LIMIT else Text(p) for p in payloads]
    assert read(b"".join(frame(TEXT, payload) for payload in payloads)) == wanted


def test_the_head_of_an_oversized_message_is_kept():
    head = b"0123456789"
    whole = frame(TEXT, head + b"x" * LIMIT)
    cut = frame(TEXT, head[:4], final=False) + frame(CONTINUATION, head[4:] + b"x" * LIMIT)
    for data in (whole, cut):
        for pieces in ([data], bytewise(data)):
            reader = FrameReader(LIMIT, ABORT, keep=10)
            events = [event for piece in pieces for event in reader.feed(piece)]
            assert events == [Oversized(LIMIT + 10, head)]
    # The next one is not mixed with it.
    reader = FrameReader(LIMIT, ABORT, keep=10)
    assert reader.feed(whole + frame(TEXT, b"next")) == [Oversized(LIMIT + 10, head), Text(b"next")]


def test_no_more_than_the_head_is_kept_of_a_message_that_grows():
    reader = FrameReader(LIMIT, 1 << 40, keep=10)
    assert reader.feed(frame(TEXT, b"a" * 7, final=False)) == []
    for _ in range(3):
        assert reader.feed(frame(CONTINUATION, b"b" * LIMIT, final=False)) == []
    (found,) = reader.feed(frame(CONTINUATION, b"c"))
    assert found == Oversized(3 * LIMIT + 8, b"aaaaaaabbb")


def test_whether_a_frame_goes_on_can_be_seen():
    reader = FrameReader(LIMIT, ABORT)
    assert not reader.in_frame
    reader.feed(frame(TEXT, b"hello")[:-1])
    assert reader.in_frame
    reader.feed(b"o")
    assert not reader.in_frame
    # Between the frames of a message others may come.
    reader.feed(frame(TEXT, b"hello", final=False))
    assert not reader.in_frame
