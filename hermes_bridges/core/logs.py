"""The program's log on stderr: one line a record, secrets masked, repeats counted."""

import io
import json
import logging
import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TextIO

from hermes_bridges.core.eventlog import iso_now

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_REPEAT_SECONDS = 60.0
_REPEATS_KEPT = 100
_MESSAGE_CAP = 8_000
_TRACE_LINE_CAP = 2_000
_TRACE_LINES_KEPT = 200
# A pipe that can be written to takes this much without a wait (PIPE_BUF on Linux).
_PIECE = 4_096
_CONTROLS = {
    code: chr(code).encode("unicode_escape").decode()
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
}

_MASK = "***"
_SECRET_NAMES = ("TOKEN", "KEY", "SECRET", "PASSWORD")
_SHORTEST_SECRET = 6
# No pattern may begin with an open repeat: the time for a long text must grow with its length only.
_VALUE = r"""(?:b(?=["']))?\\*(?:"[^"\n]*"?|'[^'\n]*'?|[^\s"'&,;]+)"""
_PATTERNS = [
    # https://user:password@host
    (re.compile(r"""(://)[^/\s@"']+@"""), rf"\1{_MASK}@"),
    # https://host/bot<token>/method
    (re.compile(r"""(/bot)[^/\s"'?#]+"""), rf"\1{_MASK}"),
    # A bot token by itself: 123456:AA...
    (re.compile(r"(?<!\d)\d{5,20}(?::|%3[Aa])[A-Za-z0-9_-]{20,}"), _MASK),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{8,}"), _MASK),
    (
        re.compile(
            r"""(authorization["'\\]*\s*[:=,]\s*(?:b(?=["']))?["'\\]*)"""
            r"""(?:(?:bearer|basic|bot|digest|token)\s+)?[^\s"'\\,;]+""",
            re.IGNORECASE,
        ),
        rf"\1{_MASK}",
    ),
    (re.compile(r"""\b(bearer\s+)[^\s"'\\,;]+""", re.IGNORECASE), rf"\1{_MASK}"),
    # token=..., and with a colon only where the word before it is hardly prose.
    (
        re.compile(
            r"""((?:token|key|secret|password|passwd)["'\\]*\s*=(?!=)\s*"""
            r"""|(?:token|secret|password|passwd|api[ ]?key|[_-]key|["']key)["'\\]*\s*:\s*)"""
            + _VALUE,
            re.IGNORECASE,
        ),
        rf"\1{_MASK}",
    ),
]

_log = logging.getLogger("hermes_bridges.logs")


class Redactor:
    """Masks secrets in a text: known values wherever they stand, and what looks like one.

    Known are the values (of at least 6 characters) of variables whose name holds TOKEN, KEY,
    SECRET or PASSWORD (not those of ``..._FILE``), and those in ``extra``; also as they look in a
    URL, in JSON and in a repr.
    """

    def __init__(self, environ: Mapping[str, str], extra: Iterable[str] = ()) -> None:
        values = [value for name, value in environ.items() if _names_a_secret(name.upper())]
        forms = {
            form
            for value in map(str.strip, (*values, *extra))
            if len(value) >= _SHORTEST_SECRET
            for form in _forms(value)
        }
        # The longest first: one secret may be the beginning of another.
        ordered = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def __call__(self, text: str) -> str:
        if self._known:
            text = self._known.sub(_MASK, text)
        for pattern, mask in _PATTERNS:
            text = pattern.sub(mask, text)
        return text


def _names_a_secret(name: str) -> bool:
    # A variable that ends in _FILE holds a path, which an error message needs.
    return any(part in name for part in _SECRET_NAMES) and not name.endswith("_FILE")


def _forms(value: str) -> tuple[str, ...]:
    in_url = "".join(
        char
        if char.isascii() and (char.isalnum() or char in "-._~/")
        else "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "replace"))
        for char in value
    )
    return value, in_url, in_url.replace("/", "%2F"), json.dumps(value)[1:-1], repr(value)[1:-1]


def configure(
    program: str,
    *,
    fmt: str = "text",
    level: str = "info",
    stream: TextIO | None = None,
    redact: Redactor | None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Send the log of the whole process to ``stream`` (default: stderr), once or again.

    ``fmt`` is ``text`` or ``json``; ``level`` (``debug``, ``info``, ``warning``, ``error``) is that
    of our own loggers, other packages are heard from warning on. Uncaught exceptions and Python's
    warnings go the same way, so that nothing passes the redaction. A stream that is closed, full,
    broken or not read never raises and never blocks: lines are dropped, and their number is told
    once it takes lines again. Raises ValueError for another ``fmt`` or ``level``.
    """
    if fmt not in ("text", "json"):
        raise ValueError(f"log format must be text or json: {fmt}")
    if level not in _LEVELS:
        raise ValueError(f"log level must be one of {', '.join(_LEVELS)}: {level}")
    root = logging.getLogger()
    for handler in [known for known in root.handlers if isinstance(known, _Lines)]:
        root.removeHandler(handler)
        handler.close()
    output = _Output(stream or sys.stderr)
    root.addHandler(_Lines(output, program if fmt == "text" else None, redact, clock))
    root.setLevel(logging.WARNING)
    logging.getLogger("hermes_bridges").setLevel(_LEVELS[level])
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


def _uncaught(kind: type[BaseException], fault: BaseException, trace: TracebackType | None) -> None:
    _log.critical("uncaught exception", exc_info=(kind, fault, trace))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        name = args.thread.name if args.thread else "unknown"
        fault = (args.exc_type, args.exc_value, args.exc_traceback)
        _log.critical("uncaught exception in thread %s", name, exc_info=fault)


class _Lines(logging.Handler):
    """Turns records into lines; ``program`` is the prefix of text lines, None means JSON.

    The handler's own lock (of ``logging``) guards everything in it and in its output.
    """

    def __init__(
        self,
        output: "_Output",
        program: str | None,
        redact: Redactor | None,
        clock: Callable[[], float],
    ) -> None:
        super().__init__()
        self._output = output
        self._program = program
        self._redact: Callable[[str], str] = redact or str
        self._clock = clock
        # By name, level, message and traceback, oldest first: when it was written, how many since.
        self._seen: dict[tuple[str, int, str, int], tuple[float, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        now = self._clock()
        self._tell_repeats(before=now - _REPEAT_SECONDS)
        message = _cut(self._redact(_message(record)), _MESSAGE_CAP)
        trace = self._trace(record)
        key = (record.name, record.levelno, message, hash(trace))
        if key in self._seen:
            since, repeats = self._seen[key]
            self._seen[key] = (since, repeats + 1)
            return
        if len(self._seen) >= _REPEATS_KEPT:
            self._tell_oldest()
        self._seen[key] = (now, 0)
        self._write(record.name, record.levelno, message, trace)

    def close(self) -> None:
        self.acquire()
        try:
            self._tell_repeats(before=float("inf"))
        finally:
            self.release()
        super().close()

    def _tell_repeats(self, before: float) -> None:
        while self._seen and next(iter(self._seen.values()))[0] <= before:
            self._tell_oldest()

    def _tell_oldest(self) -> None:
        name, level, message, trace_hash = next(iter(self._seen))
        _, repeats = self._seen.pop((name, level, message, trace_hash))
        if repeats:
            self._write(name, level, f"{message} (repeated {repeats} times)")

    def _trace(self, record: logging.LogRecord) -> str:
        if not record.exc_info or record.exc_info[0] is None:
            return ""
        whole = self._redact(logging.Formatter().formatException(record.exc_info))
        lines = whole.split("\n")[-_TRACE_LINES_KEPT:]
        return "\n".join(_cut(line, _TRACE_LINE_CAP) for line in lines)

    def _write(self, name: str, level: int, message: str, trace: str = "") -> None:
        if self._output.dropped:
            note = f"{self._output.dropped} log records could not be written"
            if self._output.put(self._lines(_log.name, logging.WARNING, note)):
                self._output.dropped = 0
        if not self._output.put(self._lines(name, level, message, trace)):
            self._output.dropped += 1

    def _lines(self, name: str, level: int, message: str, trace: str = "") -> str:
        word = "error" if level > logging.ERROR else logging.getLevelName(level).lower()
        if self._program is None:
            record = {"at": iso_now(), "level": word, "logger": name, "message": message}
            if trace:
                record["traceback"] = trace
            return json.dumps(record) + "\n"
        mark = "" if level == logging.INFO else f"{word}: "
        # A traceback's lines are marked: no text in it can then pass for a line of the program.
        lines = [mark + message, *(f"| {line}" for line in trace.split("\n") if line)]
        return "".join(f"{self._program}: {line.translate(_CONTROLS)}\n" for line in lines)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as fault:  # whatever an argument's own __str__ raises
        return f"{record.msg} (arguments do not fit: {type(fault).__name__})"


def _cut(text: str, cap: int) -> str:
    return text if len(text) <= cap else f"{text[:cap]}… [cut]"


class _Output:
    """Puts lines on a stream without ever waiting for its reader; guarded by the handler's lock."""

    def __init__(self, stream: TextIO | None) -> None:
        self.dropped = 0
        self._stream = stream
        self._torn = False

    def put(self, text: str) -> bool:
        """False when it could not be written, or not whole."""
        if self._stream is None:
            return False
        encoding = self._stream.encoding or "utf-8"
        data = text.encode(encoding, "backslashreplace")
        try:
            try:
                fd = self._stream.fileno()
            except io.UnsupportedOperation:
                self._stream.write(data.decode(encoding))
                self._stream.flush()
                return True
            # Past the stream's own buffer: what a full disk or a broken pipe left in there would
            # be tried again for ever, and spoil the exit code of the process.
            return self._put_bytes(fd, b"\n" + data if self._torn else data)
        except (OSError, ValueError):  # full, broken; closed
            return False

    def _put_bytes(self, fd: int, data: bytes) -> bool:
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        sent = 0
        try:
            while sent < len(data) and poll.poll(0):
                sent += os.write(fd, data[sent : sent + _PIECE])
        finally:
            if sent:
                self._torn = sent < len(data)
        return sent == len(data)
