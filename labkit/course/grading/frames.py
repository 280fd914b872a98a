"""Messages on a stream: a length (8 bytes, big-endian) and that many bytes.

Stands alone: the learner's process loads it without labkit.
"""

import struct
from typing import BinaryIO

LIMIT = 64 * 2**20  # bytes of one message
_LENGTH = struct.Struct(">Q")


class TooLong(ValueError):
    """The other side announced more bytes than one message may have."""


def write(stream: BinaryIO, data: bytes) -> None:
    """Send one message."""
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def read(stream: BinaryIO, limit: int = LIMIT) -> bytes:
    """Receive one message.

    Raises:
        EOFError: the other side has closed.
        TooLong: it announced more than `limit` bytes.
    """
    (length,) = _LENGTH.unpack(exactly(stream, _LENGTH.size))
    if length > limit:
        raise TooLong(f"a message of {length} bytes; the limit is {limit}")
    return exactly(stream, length)


def exactly(stream: BinaryIO, count: int) -> bytes:
    """The next `count` bytes; EOFError when the stream ends before."""
    parts = []
    while count:
        part = stream.read(min(count, 2**20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
