"""The API server of a Kubernetes cluster: where it is, who we are there, and what its answers mean.

It is found as `kubectl` finds it, and spoken to with the standard library: half a dozen plain calls are
needed, and the `kubernetes` package brings thousands.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import tempfile
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

from astrarium.cluster.live.backends.site import SiteRefused, SiteSilent
from astrarium.core.errors import InputError
from astrarium.core.plain_data import parse_yaml

ANSWER = 30.0  # seconds that a call may take
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where a pod finds who it is


class Taken(SiteRefused):
    """There is something of this name already."""


class Missing(SiteRefused):
    """There is nothing of this name."""


class ApiServer(NamedTuple):
    """An API server, and how it knows us: by a token, which may change, or by a certificate."""

    url: str
    tls: ssl.SSLContext | None
    token: Callable[[], str]

    def call(self, method: str, path: str, body: object = None, **query: str) -> Any:
        """Return the decoded body of an answer; an error of the server is raised in its own words."""
        url = f"{self.url}{path}{'?' if query else ''}{urllib.parse.urlencode(query)}"
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if token := self.token():
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER, context=self.tls) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise _refusal(error) from None
        except (OSError, HTTPException, ValueError) as error:  # ValueError: half an answer
            raise SiteSilent(f"{self.url}: {getattr(error, 'reason', error)}") from None


def _refusal(error: urllib.error.HTTPError) -> Exception:
    """Return what an error of the API server means: who is too busy, or does not know us now, is silent."""
    words = f"{error.code} {error.reason}"
    with suppress(OSError, ValueError, AttributeError, HTTPException):
        words = f"{error.code} {json.loads(error.read()).get('message') or error.reason}"
    kinds = {404: Missing, 409: Taken}
    silent = error.code in (401, 408, 410, 425, 429) or error.code >= 500
    return SiteSilent(words) if silent else kinds.get(error.code, SiteRefused)(words)


def found_server(address: str = "") -> ApiServer:
    """Return the API server at an *address*, that of the cluster we are in, or that of the kubeconfig."""
    inside = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    if address or inside:
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        url = address.rstrip("/") or f"https://{f'[{inside}]' if ':' in inside else inside}:{port}"
        if not url.startswith(("http://", "https://")):
            raise InputError(
                "live.address", address, "a URL such as http://127.0.0.1:8001 (of `kubectl proxy`)"
            )
        authority = ACCOUNT / "ca.crt"
        tls = ssl.create_default_context(cafile=authority if authority.exists() else None)
        return ApiServer(url, tls if url.startswith("https") else None, _account_token)
    return _configured(Path(os.environ.get("KUBECONFIG", "~/.kube/config").split(os.pathsep)[0]).expanduser())


def _account_token() -> str:
    """Return the token of our service account, which is renewed now and then."""
    path = ACCOUNT / "token"
    return path.read_text().strip() if path.exists() else ""


def _configured(path: Path) -> ApiServer:
    """Return the API server of the current context of a kubeconfig."""
    expected = "a kubeconfig with a current context, in KUBECONFIG or ~/.kube/config; or say live.address"
    try:
        config = parse_yaml(path.read_text(), str(path))
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
    except (OSError, KeyError, TypeError, StopIteration):
        raise InputError("live.backend", "kubernetes", f"{expected} ({path})") from None
    if "exec" in user or "auth-provider" in user:
        expected = (
            "the address of `kubectl proxy`, as http://127.0.0.1:8001: the kubeconfig has a program log in"
        )
        raise InputError("live.address", None, expected)
    tls = _tls(cluster, user, path.parent) if cluster["server"].startswith("https") else None
    return ApiServer(cluster["server"].rstrip("/"), tls, lambda: _token(user, path.parent))


def _named(items: Sequence[Any], name: str) -> Any:
    return next(entry for entry in items if entry["name"] == name)


def _token(user: Mapping[str, Any], base: Path) -> str:
    file = user.get("tokenFile")
    return (base / file).read_text().strip() if file else str(user.get("token", ""))


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], base: Path) -> ssl.SSLContext:
    with tempfile.TemporaryDirectory() as folder:
        authority = _file(cluster, "certificate-authority", base, Path(folder))
        tls = ssl.create_default_context(cafile=authority)
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        if certificate := _file(user, "client-certificate", base, Path(folder)):
            tls.load_cert_chain(certificate, _file(user, "client-key", base, Path(folder)))
        return tls


def _file(section: Mapping[str, Any], name: str, base: Path, folder: Path) -> Path | None:
    """Return a file of a kubeconfig, which has its path or, in base64, what it holds."""
    if data := section.get(f"{name}-data"):
        (folder / name).write_bytes(base64.b64decode(data))
        return folder / name
    return base / section[name] if name in section else None
