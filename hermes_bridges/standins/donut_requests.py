"""What a request to the stand-in Donut hub has to look like, before anybody reads what it says."""

import json
import urllib.parse
from collections.abc import Mapping
from typing import Any, NamedTuple

from hermes_bridges.standins.donut_rooms import Refused
from hermes_bridges.standins.http_loop import Exchange
from hermes_bridges.standins.ws_server import BadHandshake

BODY_LIMIT = 256 * 1024  # bytes of a request


class Dial(NamedTuple):
    """One try to open the stream. ``status`` 101: it is open; None: it got no answer."""

    conn: int
    status: int | None
    last_event_id: str | None
    headers: Mapping[str, str]


class Answer(NamedTuple):
    """What a request gets; the body is JSON."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def refusal(refused: Refused | BadHandshake) -> Answer:
    """The answer to what is not accepted."""
    more: tuple[tuple[str, str], ...] = ()
    code = "bad_handshake"
    if isinstance(refused, BadHandshake):
        more = tuple(refused.headers)
    else:
        code = refused.code
        if refused.status == 401:
            more = (("WWW-Authenticate", "Bearer"),)
    body = {"error": {"code": code, "message": str(refused)}}
    return Answer(refused.status, json.dumps(body).encode(), more)


def admit(exchange: Exchange, method: str, token: str) -> None:
    """Look at the token first, then at the URL and the method. Raises Refused."""
    scheme, _, given = exchange.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or given != token:
        raise Refused(401, "unauthorized", "the bot token is missing or wrong")
    query = exchange.target.partition("?")[2]
    names = [name.lower() for name, _ in urllib.parse.parse_qsl(query, keep_blank_values=True)]
    if token in urllib.parse.unquote(exchange.target) or "token" in "".join(names):
        raise Refused(400, "token_in_url", "the token does not belong into the URL")
    if exchange.method != method:
        raise Refused(405, "bad_method", f"{method} only")
    if exchange.query.get("last_event_id") == "" or names.count("last_event_id") > 1:
        raise Refused(400, "bad_cursor", "last_event_id stands there once, with an id")


def read_object(exchange: Exchange) -> dict[str, Any]:
    """The JSON object that is the body of a request. Raises Refused."""
    kind, _, parameter = exchange.headers.get("content-type", "").lower().partition(";")
    if kind.strip() != "application/json" or parameter.strip() not in ("", "charset=utf-8"):
        raise Refused(415, "bad_media_type", "Content-Type must be application/json")
    if exchange.length > BODY_LIMIT:
        raise Refused(413, "too_large", f"a request has at most {BODY_LIMIT} bytes")
    try:
        found = json.loads(exchange.body().decode())
    except (ValueError, RecursionError):
        raise Refused(400, "bad_json", "the body is no JSON in UTF-8") from None
    if not isinstance(found, dict):
        raise Refused(400, "bad_json", "the body is no JSON object")
    return found
