"""HPACK, by the examples of RFC 7541 and what it calls an error."""

from __future__ import annotations

from typing import Any

import pytest

from astrarium.core.optional import extension

pytestmark = pytest.mark.skipif(extension("_front") is None, reason="needs the native extension")

testing: Any = extension("_testing")


def fields(*pairs: tuple[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in pairs]


FIRST = fields((":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com"))
WITH_CACHE = [*FIRST, *fields(("cache-control", "no-cache"))]
THIRD = fields(
    (":method", "GET"),
    (":scheme", "https"),
    (":path", "/index.html"),
    (":authority", "www.example.com"),
    ("custom-key", "custom-value"),
)
DATES = "Mon, 21 Oct 2013 20:13:21 GMT", "Mon, 21 Oct 2013 20:13:22 GMT"
FOUND = fields(
    (":status", "302"),
    ("cache-control", "private"),
    ("date", DATES[0]),
    ("location", "https://www.example.com"),
)
COOKIE = "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"
OK = fields(
    (":status", "200"),
    ("cache-control", "private"),
    ("date", DATES[1]),
    ("location", "https://www.example.com"),
    ("content-encoding", "gzip"),
    ("set-cookie", COOKIE),
)
EXAMPLES: dict[str, tuple[int, list[tuple[str, list[tuple[bytes, bytes]], int]]]] = {
    # section: size of the table, and for each block its bytes, fields and the bytes in the table
    "C.2.1": (
        4096,
        [
            (
                "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
                fields(("custom-key", "custom-header")),
                55,
            )
        ],
    ),
    "C.2.2": (4096, [("040c 2f73 616d 706c 652f 7061 7468", fields((":path", "/sample/path")), 0)]),
    "C.2.3": (4096, [("1008 7061 7373 776f 7264 0673 6563 7265 74", fields(("password", "secret")), 0)]),
    "C.3": (
        4096,
        [
            ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", FIRST, 57),
            ("8286 84be 5808 6e6f 2d63 6163 6865", WITH_CACHE, 110),
            ("8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65", THIRD, 164),
        ],
    ),
    "C.4": (
        4096,
        [
            ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", FIRST, 57),
            ("8286 84be 5886 a8eb 1064 9cbf", WITH_CACHE, 110),
            ("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", THIRD, 164),
        ],
    ),
    "C.6": (
        256,
        [
            (
                "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e"
                "919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
                FOUND,
                222,
            ),
            ("4883 640e ffc1 c0bf", [(b":status", b"307"), *FOUND[1:]], 222),
            (
                "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7"
                "821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587"
                "3160 65c0 03ed 4ee5 b106 3d50 07",
                OK,
                215,
            ),
        ],
    ),
}


@pytest.mark.parametrize("section", EXAMPLES)
def test_header_blocks_are_read_as_the_standard_reads_them(section: str) -> None:
    table, blocks = EXAMPLES[section]
    decoded = testing.read_blocks([bytes.fromhex(block) for block, _, _ in blocks], table)
    assert decoded == [(list(map(tuple, wanted)), size) for _, wanted, size in blocks]


BROKEN = {
    "an index that there is not": "be",
    "the index zero": "80",
    "a number without an end": "ffffffffffff7f",
    "a text that is longer than its block": "000561",
    "padding of a whole byte": "0081ff00",
    "the code of the end": "0084ffffffff00",
    "padding that is no ones": "00811800",
    "a table that is larger than allowed": "3fe21f",
    "a table that changes in the middle": "8220",
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_header_block_is_found_out(what: str) -> None:
    assert testing.read_blocks([bytes.fromhex(BROKEN[what])], 4096) is None
