"""A server in child processes answers, refuses with its reasons, is recorded, and ends with its block."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import astrarium

pytest.importorskip("uvicorn")

MODEL = """
def detect(TEXT):
    return {"LANGUAGE": [b"en" if b"the" in text else b"de" for text in TEXT]}
"""
ECHO: dict[str, Any] = {"profile": {"alpha": "1ms", "beta": "2ms"}, "slo": "20s"}
WORDS: dict[str, Any] = {
    "backend": {"python": "words.py:detect"},
    "inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": []}],
    "outputs": [{"name": "LANGUAGE", "datatype": "BYTES", "shape": []}],
    "profile": {"table": {1: "2ms", 8: "4ms"}},
    "slo": "20s",
}


def test_a_server_answers_refuses_and_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # loopback is never asked for through a proxy
    Path("words.py").write_text(MODEL)
    scenario = {"cluster": {"gpus": 1}, "models": {"echo": ECHO, "words": WORDS}}
    with astrarium.serve(scenario, record="served.jsonl") as server:
        assert server.url.startswith("http://127.0.0.1:")
        image = np.arange(6, dtype=np.float32).reshape(3, 2)
        assert (server.infer("echo", INPUT=image, timeout=15)["OUTPUT"] == image).all()
        answer = server.infer("words", {"TEXT": ["the sun", b"die Sonne"]})
        assert answer["LANGUAGE"].tolist() == [b"en", b"de"]
        assert {model["name"]: model["state"] for model in server.models()} == {
            "echo": "READY",
            "words": "READY",
        }
        assert server.metadata("words")["inputs"][0]["name"] == "TEXT"
        assert server.metrics()['astrarium_accepted_total{model="echo"}'] == 1
        with pytest.raises(astrarium.ServerError, match="there is no model 'eko'") as error:
            server.infer("eko", INPUT=image)
        assert error.value.status == 404
        with pytest.raises(astrarium.ServerError, match="cannot answer within") as error:
            server.infer("echo", INPUT=image, timeout="1us")
        assert error.value.status == 504
        for wrong in ({"INPUT": 3.0}, {"INPUT": np.zeros(1, dtype=complex)}, {"timeout": "soon"}):
            with pytest.raises(astrarium.InputError, match=next(iter(wrong))):
                server.infer("echo", **wrong)
        pid = server._process.pid
    assert repr(server) == "<server: ended>"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(astrarium.ServerError, match="the server has ended"):
        server.models()
    server.close()
    assert astrarium.replay("served.jsonl").same
    assert not astrarium.replay("served.jsonl", "timeout:timeout=1s").same


def test_a_server_that_does_not_come_up_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.py").write_text("raise RuntimeError('no weights here')")
    with pytest.raises(astrarium.ServerError, match="no weights here"):
        astrarium.serve({"cluster": {"gpus": 1}, "models": {"words": WORDS}})
    with pytest.raises(astrarium.InputError, match=r"models\.echo\.slo"):
        astrarium.serve({"cluster": {"gpus": 1}, "models": {"echo": ECHO}}, {"models.echo.slo": "soon"})
    with pytest.raises(astrarium.InputError, match="models"):
        astrarium.serve({"gpu": {}, "jobs": []})


def test_a_server_ends_with_the_script_that_forgot_it(tmp_path: Path) -> None:
    scenario = {"cluster": {"gpus": 1}, "models": {"echo": ECHO}}
    script = f"import astrarium; print(astrarium.serve({scenario})._process.pid)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)
