"""An echo at the other end of a connection."""

from __future__ import annotations

import ssl
from queue import Queue
from typing import Any

from astrarium.cluster.live.wire.channel import Channel, WireError
from astrarium.cluster.live.wire.handshake import Place
from astrarium.cluster.live.wire.listener import Listener, tcp_listener

KEY = b"k" * 32


class Echo:
    """An arbiter that says again what it hears, and remembers who said it, and how connections ended."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.ends: Queue[str] = Queue()
        here = Place("127.0.0.1", 0)
        self.listener: Listener = tcp_listener(here, {"ann": KEY}.get, self._serve, tls)

    @property
    def place(self) -> Place:
        return Place("127.0.0.1", self.listener.address[1])

    def _serve(self, channel: Channel, name: str) -> None:
        try:
            while True:
                message: Any = channel.receive(Any)
                self.heard.append((name, message))
                channel.send(message)
        except WireError as error:
            self.ends.put(str(error))
