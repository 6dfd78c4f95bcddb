"""Output of a command, bounded: the first and the last bytes, and the exact total."""

from __future__ import annotations


class HeadTail:
    """Keeps at most ``limit`` bytes of a stream: all of it, or its first and last half with a mark between."""

    def __init__(self, limit: int) -> None:
        self._head_room = limit - limit // 2
        self._tail_room = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        """Append what was read."""
        self.total += len(data)
        room = self._head_room - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            if len(self._tail) > 2 * self._tail_room + 65536:
                del self._tail[: len(self._tail) - self._tail_room]

    @property
    def truncated(self) -> bool:
        """Whether bytes were left out."""
        return self.total > self._head_room + self._tail_room

    def kept(self) -> bytes:
        """The kept bytes; a line between the halves says how many are missing."""
        if not self.truncated:
            return bytes(self._head + self._tail)
        tail = bytes(self._tail[len(self._tail) - self._tail_room :])
        omitted = self.total - len(self._head) - len(tail)
        return bytes(self._head) + b"\n[... %d bytes omitted ...]\n" % omitted + tail
