"""RFC 9112 and RFC 9110 as written: what is a request of HTTP/1.1, and what is none, on both ways in."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Iterator

import pytest

from astrarium.server.http.framing import RequestFraming
from astrarium.server.http.request_head import BadRequest
from astrarium.server.settings import HttpLimits
from tests.support.server.fakes import WAYS, FakeService, Served, Way, served, serving
from tests.support.server.http_connection import BODY, LONG, Connection, request

FIRST = "POST /v2/models/echo/infer HTTP/1.1"
LIVE = "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = f"{FIRST}\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
SIZE = f"{len(BODY):x}"
END = "0\r\n\r\n"


def plain(*lines: str, first: str = FIRST, host: str = "Host: x", body: str = BODY) -> str:
    """A plain request with other lines; it goes the short way where they are right."""
    head = [first, *([host] if host else []), f"Content-Length: {len(body)}", *lines, "", body]
    return "\r\n".join(head)


def coded(*lines: str, version: str = "1.1") -> str:
    """A request in chunks with these lines about that."""
    first = f"POST /v2/models/echo/infer HTTP/{version}"
    return "\r\n".join([first, "Host: x", *lines, "", f"{SIZE}\r\n{BODY}\r\n{END}"])


RIGHT = {
    "a request": plain(),
    "another order and case": f"{FIRST}\r\ncontent-LENGTH:{len(BODY)}\r\nhOST:\tx \t\r\n\r\n{BODY}",
    "HTTP/1.0 without a host": plain(first=FIRST[:-1] + "0", host=""),
    "HTTP/1.0 with a host": plain(first=FIRST[:-1] + "0"),
    "a newer HTTP/1": plain(first=FIRST[:-1] + "2"),
    "a host and a port": plain(host="Host: example.com:8000"),
    "an IPv6 host": plain(host="Host: [::1]:8000"),
    "an empty host": plain(host="Host:"),
    "an empty line before it": "\r\n" + plain(),
    "a tab and other alphabets in a value": plain("X-Name: a\tb \xe9\xff"),
    "an empty value": plain("X-Name:"),
    "all that a token may have": plain("!#$%&'*+-.^_`|~09aZ: x"),
    "an absolute target": plain(first="POST http://other:1/v2/models/echo/infer HTTP/1.1"),
    "an absolute target without a path": LIVE.replace("/v2/health/live", "http://other"),
    "an absolute target with a query": LIVE.replace("/v2/health/live", "HTTP://other/timeline?last=5"),
    "OPTIONS of the server": "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    "OPTIONS of a path": "OPTIONS /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\n\r\n",
    "100-continue": plain("Expect: 100-Continue"),
    "100-continue in HTTP/1.0, which cannot wait": plain("Expect: 100-continue", first=FIRST[:-1] + "0"),
    "chunks": coded("Transfer-Encoding: chunked"),
    "chunks in another case": coded("transfer-encoding:\tChunked "),
    "many chunks": CHUNKED + "".join(f"1\r\n{c}\r\n" for c in BODY) + END,
    "leading zeros of a size": f"{CHUNKED}{SIZE:0>15}\r\n{BODY}\r\n000{END}",
    "capital digits": f"{CHUNKED}{SIZE.upper()}\r\n{BODY}\r\n{END}",
    "chunk extensions": f'{CHUNKED}{SIZE};a;b = "c;d"\r\n{BODY}\r\n0 ; e\r\n\r\n',
    "trailers": f"{CHUNKED}{SIZE}\r\n{BODY}\r\n0\r\nA: b\r\nContent-Length: 5\r\n\r\n",
    "TE, which is about the answer": plain("TE: gzip, chunked"),
    "an offer to upgrade": plain("Connection: upgrade", "Upgrade: websocket"),
}
WRONG = {
    "no host": (plain(host=""), 400),
    "no host on a page": ("GET /v2 HTTP/1.1\r\n\r\n", 400),
    "two hosts": (plain("Host: x"), 400),
    "two hosts on a page": ("GET /v2 HTTP/1.1\r\nHost: x\r\nhost: y\r\n\r\n", 400),
    "two hosts in HTTP/1.0": (plain("Host: x", first=FIRST[:-1] + "0"), 400),
    "a host with a path": (plain(host="Host: x/y"), 400),
    "a host with a user": (plain(host="Host: me@x"), 400),
    "a host with a space": (plain(host="Host: x y"), 400),
    "a host with a port that is none": (plain(host="Host: x:http"), 400),
    "HTTP/2.0": (plain(first=FIRST[:-3] + "2.0"), 505),
    "HTTP/0.9": (plain(first=FIRST[:-3] + "0.9"), 505),
    "HTTP/3.1 on a page": (LIVE.replace("1.1", "3.1"), 505),
    "HTTP/2 with prior knowledge": ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "another protocol": (LIVE.replace("HTTP/1.1", "ICE/1.0"), 400),
    "a version of one digit": (LIVE.replace("HTTP/1.1", "HTTP/1"), 400),
    "a version of three digits": (LIVE.replace("HTTP/1.1", "HTTP/1.10"), 400),
    "lower case": (LIVE.replace("HTTP", "http"), 400),
    "no version": ("GET /v2\r\nHost: x\r\n\r\n", 400),
    "two spaces": (LIVE.replace(" HTTP", "  HTTP"), 400),
    "a tab in the first line": (LIVE.replace(" HTTP", "\tHTTP"), 400),
    "a space before the method": (" " + LIVE, 400),
    "a target in another alphabet": (LIVE.replace("live", "\xe9"), 400),
    "a target that is none": (LIVE.replace("/v2/health/live", "v2"), 400),
    "a target of another scheme": (LIVE.replace("/v2/health/live", "ftp://x/"), 400),
    "an asterisk that is not for it": (LIVE.replace("/v2/health/live", "*"), 400),
    "an unknown method": (LIVE.replace("GET", "BREW"), 501),
    "a method in lower case": (LIVE.replace("GET", "get"), 501),
    "CONNECT": ("CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n", 501),
    "garbage": ("\x00\x01\x02", 400),
    "a TLS greeting": ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "text": ("hello\r\n", 400),
    "text that ends with LF": ("hello\n", 400),
    "a first line that ends with LF": (LIVE.replace("\r\nHost", "\nHost"), 400),
    "a header that ends with LF": (plain("A: b\nC: d"), 400),
    "a head that ends with LF": (LIVE.replace("\r\n\r\n", "\r\n\n"), 400),
    "all lines end with LF": (plain().replace("\r\n", "\n"), 400),
    "a lone CR in a value": (plain("A: b\rC: d"), 400),
    "a lone CR in the first line": (LIVE.replace("live", "live\r"), 400),
    "a lone CR after a value": (plain("A: b\r"), 400),
    "a space before the colon": (plain("A : b"), 400),
    "a tab before the colon": (plain("Transfer-Encoding\t: chunked"), 400),
    "a folded line": (plain("A: b", " c"), 400),
    "a folded line with a tab": (plain("A: b", "\tc"), 400),
    "a space before the first header": (plain(host=" Host: x"), 400),
    "no colon": (plain("A"), 400),
    "no name": (plain(": b"), 400),
    "NUL in a value": (plain("A: b\0c"), 400),
    "NUL in a name": (plain("A\0: b"), 400),
    "a control character in a value": (plain("A: b\x07c"), 400),
    "DEL in a value": (plain("A: b\x7fc"), 400),
    "a control character in a name": (plain("A\x01: b"), 400),
    "another alphabet in a name": (plain("\xe9: b"), 400),
    "a parenthesis in a name": (plain("a(b): c"), 400),
    "too many headers": (plain(*["a: b"] * 300), 431),
    "a long header": (plain("a: " + "b" * 70_000), 431),
    "a long header that never ends": (f"{FIRST}\r\nA: " + "b" * 70_000, 431),
    "a long target": (LIVE.replace("live", "x" * 70_000), 431),
    "an unknown expectation": (plain("Expect: wonders"), 417),
    "a known expectation and another": (plain("Expect: 100-continue, wonders"), 417),
    "two lengths": (plain("Content-Length: 5"), 400),
    "two equal lengths": (plain(f"Content-Length: {len(BODY)}"), 400),
    "a list of lengths": (plain(body="").replace("Content-Length: 0", "Content-Length: 0, 0"), 400),
    "a signed length": (plain(body="").replace("Content-Length: 0", "Content-Length: +0"), 400),
    "a negative length": (plain(body="").replace("Content-Length: 0", "Content-Length: -1"), 400),
    "a length in hexadecimal": (plain(body="").replace("Content-Length: 0", "Content-Length: 0x0"), 400),
    "an empty length": (plain(body="").replace("Content-Length: 0", "Content-Length:"), 400),
    "a length near 2^63": (plain(body="").replace("Length: 0", "Length: 9223372036854775807"), 413),
    "a length beyond 2^64": (plain(body="").replace("Length: 0", "Length: " + "9" * 30), 413),
    "chunks and a length": (coded("Transfer-Encoding: chunked", "Content-Length: 5"), 400),
    "a length and chunks": (coded("Content-Length: 5", "Transfer-Encoding: chunked"), 400),
    "chunks in HTTP/1.0": (coded("Transfer-Encoding: chunked", version="1.0"), 400),
    "gzip, then chunks": (coded("Transfer-Encoding: gzip, chunked"), 501),
    "gzip, then chunks, in two lines": (coded("Transfer-Encoding: gzip", "Transfer-Encoding: chunked"), 501),
    "chunks, then gzip": (coded("Transfer-Encoding: chunked, gzip"), 400),
    "chunks twice": (coded("Transfer-Encoding: chunked, chunked"), 400),
    "chunks in two lines": (coded("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 400),
    "chunks and nothing": (coded("Transfer-Encoding: chunked,"), 400),
    "nothing and chunks": (coded("Transfer-Encoding: , chunked"), 400),
    "identity": (coded("Transfer-Encoding: identity"), 400),
    "gzip alone": (coded("Transfer-Encoding: gzip"), 400),
    "nearly chunked": (coded("Transfer-Encoding: xchunked"), 400),
    "chunked with a parameter": (coded("Transfer-Encoding: chunked;a=b"), 400),
    "chunked in quotes": (coded('Transfer-Encoding: "chunked"'), 400),
    "no coding": (coded("Transfer-Encoding:"), 400),
    "chunked after a vertical tab": (coded("Transfer-Encoding: \x0bchunked"), 400),
    "a size near 2^63": (f"{CHUNKED}7fffffffffffffff\r\n", 400),
    "a size of 2^63": (f"{CHUNKED}8000000000000000\r\n", 400),
    "a size of 2^64": (f"{CHUNKED}10000000000000000\r\n", 400),
    "a size of many digits": (CHUNKED + "0" * 5_000, 400),
    "a size beyond a body's": (f"{CHUNKED}fffffffffffffff\r\n", 413),
    "a second size near 2^63": (f"{CHUNKED}1\r\na\r\n7fffffffffffffff\r\n", 400),
    "a size that is none": (f"{CHUNKED}xyz\r\n", 400),
    "a negative size": (f"{CHUNKED}-1\r\n", 400),
    "a size with a prefix": (f"{CHUNKED}0x5\r\nhello\r\n{END}", 400),
    "a space before a size": (f"{CHUNKED} {SIZE}\r\n{BODY}\r\n{END}", 400),
    "a space after a size": (f"{CHUNKED}{SIZE} \r\n{BODY}\r\n{END}", 400),
    "no size": (f"{CHUNKED}\r\n{BODY}\r\n{END}", 400),
    "a size that ends with LF": (f"{CHUNKED}{SIZE}\n{BODY}\r\n{END}", 400),
    "a size that ends with CR": (f"{CHUNKED}{SIZE}\r{BODY}\r\n{END}", 400),
    "an extension that ends with LF": (f"{CHUNKED}{SIZE};a\n{BODY}\r\n{END}", 400),
    "a control character in an extension": (f"{CHUNKED}{SIZE};a\0b\r\n{BODY}\r\n{END}", 400),
    "a chunk that ends with LF": (f"{CHUNKED}{SIZE}\r\n{BODY}\n{END}", 400),
    "a chunk that is longer than it says": (f"{CHUNKED}5\r\nhello!\r\n{END}", 400),
    "a chunk that is shorter than it says": (f"{CHUNKED}5\r\nhell\r\n{END}", 400),
    "a long extension": (f"{CHUNKED}{SIZE};" + "x" * 20_000, 400),
    "many extensions": (CHUNKED + f"1;{'x' * 200}\r\na\r\n" * 100, 400),
    "trailers that end with LF": (f"{CHUNKED}{SIZE}\r\n{BODY}\r\n0\r\nA: b\n\r\n", 400),
    "a body that ends with LF": (f"{CHUNKED}{SIZE}\r\n{BODY}\r\n0\r\n\n", 400),
    "a folded trailer": (f"{CHUNKED}{SIZE}\r\n{BODY}\r\n0\r\nA: b\r\n c\r\n\r\n", 400),
    "NUL in a trailer": (f"{CHUNKED}{SIZE}\r\n{BODY}\r\n0\r\nA: b\0\r\n\r\n", 400),
    "long trailers": (f"{CHUNKED}{SIZE}\r\n{BODY}\r\n0\r\n" + "A: b\r\n" * 20_000, 431),
}


@pytest.fixture(scope="module", params=WAYS)
def server(request: pytest.FixtureRequest) -> Iterator[Served]:
    with served(way=request.param) as running:
        yield running


def statuses(server: Served, sent: bytes, *, ends: bool = False) -> list[int]:
    """The statuses of all answers until the server closes; *ends*: we send no more after this."""
    with socket.create_connection(("127.0.0.1", server.http), timeout=60) as line:
        answer = b""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            line.sendall(sent)
            if ends:
                line.shutdown(socket.SHUT_WR)
            while part := line.recv(1 << 16):
                answer += part
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", answer) if status != b"100"]


@pytest.mark.parametrize("case", RIGHT)
def test_what_is_right_is_answered(server: Served, case: str) -> None:
    assert statuses(server, RIGHT[case].encode("latin-1"), ends=True) == [200]


@pytest.mark.parametrize("case", RIGHT)
def test_what_is_right_is_followed_by_others(server: Served, case: str) -> None:
    closes = "HTTP/1.0" in RIGHT[case]
    sent = request() + RIGHT[case].encode("latin-1") + request(LONG)
    assert statuses(server, sent, ends=True) == [200] * (2 if closes else 3)


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused_and_the_connection_closed(server: Served, case: str) -> None:
    sent, status = WRONG[case]
    assert statuses(server, sent.encode("latin-1")) == [status]


@pytest.mark.parametrize("case", WRONG)
def test_what_was_right_before_it_is_answered_first(server: Served, case: str) -> None:
    sent, status = WRONG[case]
    assert statuses(server, request() + request(LONG) + sent.encode("latin-1")) == [200, 200, status]


def test_a_chunk_extension_without_end_is_cut_short(server: Served) -> None:
    start = f"{CHUNKED}{SIZE};".encode()
    with socket.create_connection(("127.0.0.1", server.http), timeout=60) as line:
        line.sendall(start)
        sent = 0
        answer = b""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while sent < 190_000_000:
                line.sendall(b"x" * 1_000_000)
                sent += 1_000_000
        with contextlib.suppress(ConnectionResetError):
            while part := line.recv(1 << 16):
                answer += part
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"at most 4096 bytes of chunk extensions in all" in answer


def test_a_client_in_the_middle_of_a_large_body_reads_why_it_is_refused(server: Served) -> None:
    head = "POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: 20000000\r\n\r\n"
    assert statuses(server, head.encode() + bytes(20_000_000)) == [400]


@pytest.mark.parametrize("way", WAYS)
def test_the_client_is_told_what_a_path_can_do(way: Way) -> None:
    async def run() -> None:
        async with serving(FakeService(), way=way) as server:
            connection = await Connection.to(server.http)
            connection.writer.write(b"OPTIONS /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\n\r\n")
            _, headers, body = await connection.answer_bytes()
            assert (headers["allow"], body) == ("OPTIONS, POST", b"")
            connection.writer.close()

    asyncio.run(run())


def pieces(data: bytes, size: int) -> bytes:
    framing = RequestFraming(HttpLimits())
    chunked = b""
    for at in range(0, len(data), size):
        framing.feed(data[at : at + size])
        while (piece := framing.piece()) is not None:
            chunked += piece
    assert not framing.arriving
    return chunked


@pytest.mark.parametrize("case", RIGHT)
def test_requests_mean_the_same_in_any_pieces(case: str) -> None:
    data = (RIGHT[case] + LIVE).encode("latin-1")
    whole = pieces(data, len(data))
    assert whole.endswith(LIVE.encode().replace(b"Host", b"host"))
    if "chunked" not in RIGHT[case].lower():
        assert pieces(data, 1) == pieces(data, 7) == whole


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused_in_any_pieces(case: str) -> None:
    sent, status = WRONG[case]
    for size in (1, 7):
        with pytest.raises(BadRequest) as caught:
            pieces(sent.encode("latin-1"), size)
        assert caught.value.status == status


def test_extensions_and_trailers_go_no_further() -> None:
    sent = f"{CHUNKED}3;a=b\r\nabc\r\n2\r\nde\r\n0;c\r\nA: b\r\n\r\n".encode()
    assert pieces(sent, len(sent)).endswith(b"\r\n\r\n5\r\nabcde\r\n0\r\n\r\n")
