"""Both protocols speak TLS with the certificate that the settings name."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from astrarium.core.errors import InputError
from astrarium.server.grpc.server import serve_grpc
from astrarium.server.http.server import serve_http
from astrarium.server.settings import Security
from tests.support.server.fakes import FakeService, served


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    certificate = folder / "certificate.pem"
    key = folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def test_both_protocols_speak_tls(certificate: tuple[Path, Path]) -> None:
    array = np.array([[1.0, 2.0]], np.float32)
    with served(security=Security(certificate=certificate[0], private_key=certificate[1])) as running:
        trust = ssl.create_default_context(cafile=str(certificate[0]))
        with triton_http.InferenceServerClient(
            f"localhost:{running.http}", ssl=True, ssl_context_factory=lambda: trust
        ) as client:
            tensor = triton_http.InferInput("IN", [1, 2], "FP32")
            tensor.set_data_from_numpy(array)
            assert np.array_equal(client.infer("echo", [tensor]).as_numpy("OUT_IN"), array)
        with triton_grpc.InferenceServerClient(
            f"localhost:{running.grpc}", ssl=True, root_certificates=str(certificate[0])
        ) as secure:
            other = triton_grpc.InferInput("IN", [1, 2], "FP32")
            other.set_data_from_numpy(array)
            assert np.array_equal(secure.infer("echo", [other]).as_numpy("OUT_IN"), array)


@pytest.mark.parametrize("serve", [serve_http, serve_grpc])
def test_a_certificate_that_is_not_there_is_named(serve: Any, tmp_path: Path) -> None:
    missing = Security(certificate=tmp_path / "none.pem", private_key=tmp_path / "none.key")

    async def start() -> None:
        await serve(FakeService(), security=missing)

    with pytest.raises(InputError, match=r"PEM files.*none\.(pem|key)"):
        asyncio.run(start())
