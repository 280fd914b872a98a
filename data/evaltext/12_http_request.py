"""Parse the text of a web request: bytes in, a `Request` out, no sockets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


class BadRequest(Exception):
    """Carries the status with which a server should answer."""

    def __init__(self, reason: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(reason)
        self.status = status


class Headers:
    """Case-insensitive names; several values under one name are kept apart."""

    def __init__(self) -> None:
        self._values: dict[str, list[str]] = {}

    def add(self, name: str, value: str) -> None:
        self._values.setdefault(name.lower(), []).append(value)

    def get_all(self, name: str) -> list[str]:
        return self._values.get(name.lower(), [])

    def get(self, name: str, default: str = "") -> str:
        return next(iter(self.get_all(name)), default)


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, list[str]] = field(default_factory=dict)
    headers: Headers = field(default_factory=Headers)
    body: bytes = b""

    @property
    def cookies(self) -> dict[str, str]:
        pairs = (part.strip().partition("=") for part in self.headers.get("Cookie").split(";"))
        return {name: value for name, sign, value in pairs if sign}

    def json(self) -> Any:
        if not self.headers.get("Content-Type").startswith("application/json"):
            raise BadRequest("the body is not JSON", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise BadRequest(f"broken JSON ({error})") from error


def parse_request(raw: bytes) -> Request:
    head, blank, rest = raw.partition(b"\r\n\r\n")
    if not blank:
        raise BadRequest("the headers never end")
    try:
        first, *lines = head.decode("ascii").split("\r\n")
    except UnicodeDecodeError:
        raise BadRequest("headers must be plain ASCII") from None
    request = _request_line(first)
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadRequest(f"malformed header {line!r}")
        request.headers.add(name, value.strip())
    length = request.headers.get("Content-Length", "0")
    if not length.isdigit():
        raise BadRequest(f"bad length {length!r}")
    if len(rest) < int(length):
        raise BadRequest(f"{int(length) - len(rest)} bytes of the body are missing")
    request.body = rest[: int(length)]
    return request


def _request_line(line: str) -> Request:
    match line.split(" "):
        case [method, target, ("HTTP/1.0" | "HTTP/1.1")]:
            if method not in METHODS:
                raise BadRequest(f"method {method}", HTTPStatus.NOT_IMPLEMENTED)
            url = urlsplit(target)
            path = unquote(url.path)
            if ".." in path.split("/"):
                raise BadRequest("the path climbs out of the site", HTTPStatus.FORBIDDEN)
            return Request(method, path, parse_qs(url.query, keep_blank_values=True))
        case [_, _, version]:
            raise BadRequest(version, HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        case _:
            raise BadRequest(f"malformed request line {line!r}")


def demo() -> tuple[object, ...]:
    good = parse_request(
        b"POST /orders/new%20one?table=4&note= HTTP/1.1\r\nHost: kitchen\r\nCookie: shift=late; cook=mo\r\n"
        b"Content-Type: application/json\r\ncontent-length: 17\r\n\r\n"
        b'{"dish": "pasta"}'
    )
    refusals = []
    for line in (b"BREW /pot HTTP/1.1", b"GET /a/../../key HTTP/1.1", b"GET / HTTP/3.0", b"hello"):
        try:
            parse_request(line + b"\r\n\r\n")
        except BadRequest as problem:
            refusals.append(problem.status.value)
    return good.path, good.query, good.cookies, good.json(), refusals
