"""The load generator counts right: pytest benchmarks/serving/test_load.py"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from load import Limits, Result, Template, offer, offer_arrivals, read_records
from peers.peer import free_port

Answer = Callable[[bytes], bytes | None]  # what to say to a request; None: nothing, ever
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
BODY = Template("/any", b"{}")
PATIENT = Limits(lag_p99_ms=1e6, lag_max_ms=1e6)  # these tests are about counts, on machines of any load
EVENLY = [i * 1_000_000 for i in range(1, 201)]


@contextmanager
def server(answer: Answer, close_after: int = 0) -> Iterator[str]:
    """Threads and blocking sockets, so that nothing here resembles what is tested."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
        threading.Thread(target=accept, args=(listening, answer, close_after), daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


def accept(listening: socket.socket, answer: Answer, close_after: int) -> None:
    while True:
        try:
            client, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=talk, args=(client, answer, close_after), daemon=True).start()


def talk(client: socket.socket, answer: Answer, close_after: int) -> None:
    answered = 0
    with client:
        while request := client.recv(65536):
            if (reply := answer(request)) is not None:
                for byte in range(0, len(reply), 7):  # in pieces, whose borders fall anywhere
                    client.sendall(reply[byte : byte + 7])
                answered += 1
            if answered == close_after > 0:
                return


def ended(run: Result) -> int:
    return run.in_time + run.late + run.refused + run.timeouts + run.network_errors + run.unsent


def test_a_run_has_as_many_requests_as_its_rate_promises_and_each_ends_once() -> None:
    with server(lambda _: PLAIN) as url:
        run = offer(url, [BODY], rate=300, seconds=1, slo_ms=1e6, warmup=0, limits=PATIENT)
    assert run.offered == run.in_time == ended(run) == 300
    assert run.codes == {"200": 300}
    assert sum(run.offered_in) == sum(run.in_time_in) == 300


def test_the_warm_up_is_sent_but_not_counted(tmp_path: Path) -> None:
    with server(lambda _: PLAIN) as url:
        run = offer_arrivals(
            url, [BODY], EVENLY, slo_ms=1e6, warmup=0.1, limits=PATIENT, records=tmp_path / "records"
        )
    assert run.offered == sum(at >= 100_000_000 for at in EVENLY)
    records = read_records(tmp_path / "records")
    assert records.due_ns.tolist() == EVENLY
    assert (records.latency_ns > 0).all()


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1a;x=y\r\n"
        + 26 * b"z"
        + b"\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n0\r\n0\r\nTrailer: 1\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nCONTENT-LENGTH:0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
)
def test_every_form_of_reply_is_read_to_its_end(reply: bytes) -> None:
    """A connection is used again, so bytes left over or missing would spoil the next answer."""
    with server(lambda _: reply) as url:
        run = offer_arrivals(url, [BODY], EVENLY, slo_ms=1e6, limits=PATIENT)
    assert run.in_time == len(EVENLY)
    assert run.connects < len(EVENLY)


def test_a_reply_may_end_with_its_connection() -> None:
    with server(lambda _: b"HTTP/1.1 200 OK\r\n\r\nuntil the end", close_after=1) as url:
        run = offer_arrivals(url, [BODY], EVENLY, slo_ms=1e6, limits=PATIENT)
    assert run.in_time == run.connects == len(EVENLY)


def test_a_connection_that_was_closed_while_idle_is_not_the_servers_fault() -> None:
    with server(lambda _: PLAIN, close_after=3) as url:
        run = offer_arrivals(url, [BODY], EVENLY, slo_ms=1e6, limits=PATIENT)
    assert run.in_time == len(EVENLY)
    assert run.connects >= len(EVENLY) / 3


def test_other_statuses_are_refusals() -> None:
    refusal = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nlate"
    with server(lambda request: refusal if b"/second" in request else PLAIN) as url:
        templates = [Template("/first", b""), Template("/second", b"x")]
        kinds = [i % 4 == 0 for i in range(len(EVENLY))]
        run = offer_arrivals(
            url, templates, EVENLY, kinds=[int(k) for k in kinds], slo_ms=1e6, limits=PATIENT
        )
    assert run.codes == {"200": len(EVENLY) - sum(kinds), "429": sum(kinds)}
    assert run.refused == sum(kinds)


def test_answers_after_the_objective_are_late() -> None:
    with server(lambda _: PLAIN) as url:
        run = offer_arrivals(url, [BODY], EVENLY, slo_ms=0.0, limits=PATIENT)
    assert (run.in_time, run.late) == (0, len(EVENLY))


def test_silence_is_a_timeout_and_more_than_the_limit_is_not_sent() -> None:
    with server(lambda _: None) as url:
        few = Limits(give_up_s=0.5, outstanding=20, lag_p99_ms=1e6, lag_max_ms=1e6)
        run = offer_arrivals(url, [BODY], EVENLY, slo_ms=1e6, limits=few)
    assert run.timeouts >= 20
    assert run.timeouts + run.unsent == len(EVENLY)
    assert run.most_outstanding <= 20


def test_nobody_there_is_a_network_error() -> None:
    run = offer_arrivals(f"http://127.0.0.1:{free_port()}", [BODY], EVENLY, limits=PATIENT)
    assert run.network_errors == len(EVENLY)


def test_a_broken_reply_is_a_network_error() -> None:
    with server(lambda _: b"SMTP 220 hello there\r\n\r\n") as url:
        run = offer_arrivals(url, [BODY], EVENLY, slo_ms=1e6, limits=PATIENT)
    assert run.network_errors == len(EVENLY)
