"""Questions to an arbiter, its answers, and the client that asks over a connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

from astrarium.cluster.live import limits
from astrarium.cluster.live.access import Past
from astrarium.cluster.live.backends.hosts.messages import LogPiece
from astrarium.cluster.live.service.state_folder import LogsHead
from astrarium.cluster.live.watching.history import PastQuery
from astrarium.cluster.live.wire.channel import Channel, WireError, read_message
from astrarium.core.errors import AstrariumError, InputError


class Ask(msgspec.Struct, frozen=True):
    """A question to the arbiter, or a message for it; its kind says of what type the body is, which is read
    when its turn has come: read, it may take much more memory."""

    kind: Annotated[str, msgspec.Meta(max_length=100)]
    body: msgspec.Raw = msgspec.Raw(b"\x80")  # an empty mapping
    wait: float = 0.0

    @classmethod
    def of(cls, kind: str, body: Mapping[str, Any] | None = None, wait: float = 0.0) -> Ask:
        return cls(kind, msgspec.Raw(msgspec.msgpack.encode(body or {})), wait)

    def plain(self) -> dict[str, Any]:
        """Return the body as it came."""
        if len(self.body) > limits.LARGEST_APP + limits.OVERHEAD:
            raise InputError(self.kind, f"{len(self.body)} bytes", f"at most {limits.LARGEST_APP} bytes")
        return self._read(dict[str, Any])

    def logs(self) -> dict[str, Any]:
        return self._read(dict[str, str | dict[str, int]])

    def _read(self, kind: Any) -> dict[str, Any]:
        try:
            fields: dict[str, Any] = read_message(self.body, kind)
        except WireError as error:
            raise InputError(self.kind, None, f"a mapping of fields ({error})") from None
        limits.check_depth(fields, self.kind)
        return fields


class AppQuestion(msgspec.Struct, frozen=True):
    app: str


class LogsQuestion(msgspec.Struct, frozen=True):
    """*have*: the bytes of each log that one has."""

    app: str
    have: dict[str, Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]] = {}

    def __post_init__(self) -> None:
        if len(self.have) > limits.MOST_LOGS:
            raise InputError("have", len(self.have), f"at most {limits.MOST_LOGS} logs")


class GpuQuestion(msgspec.Struct, frozen=True):
    machine: str
    gpu: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    why: str = ""


class Answer(msgspec.Struct, frozen=True):
    error: str = ""
    body: Any = None


class Client:
    """A cluster whose arbiter one talks to."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self._ask("status")
        return status

    def story(self, app: str) -> dict[str, Any]:
        story: dict[str, Any] = self._ask("story", {"app": app})
        return story

    def past(self, kind: Past, query: PastQuery) -> list[Any]:
        rows: list[Any] = self._ask(kind, msgspec.to_builtins(query))
        return rows

    def send(self, kind: str, body: dict[str, Any], wait: float) -> str | None:
        self._channel.socket.settimeout(wait + 60)
        answer: str | None = self._ask(kind, body, wait)
        return answer

    def logs(self, app: str, have: Mapping[str, int]) -> tuple[LogsHead, Iterator[LogPiece]]:
        head = LogsHead(*self._ask("logs", {"app": app, "have": dict(have)}))
        return head, self._log_pieces()

    def _log_pieces(self) -> Iterator[LogPiece]:
        piece: LogPiece
        while (piece := self._channel.receive(LogPiece)).path:
            yield piece

    def _ask(self, kind: str, body: dict[str, Any] | None = None, wait: float = 0.0) -> Any:
        message = msgspec.msgpack.encode(Ask.of(kind, body, wait))
        if len(message) > limits.LARGEST_QUESTION:
            raise InputError(kind, f"{len(message)} bytes", f"at most {limits.LARGEST_QUESTION} bytes")
        self._channel.send_bytes(message)
        answer: Answer = self._channel.receive(Answer)
        if answer.error:
            raise AstrariumError(answer.error)
        return answer.body
