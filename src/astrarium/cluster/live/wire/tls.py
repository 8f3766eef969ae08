"""TLS, where it is wanted: the arbiter shows a certificate, which others have as a file."""

from __future__ import annotations

import ssl

from astrarium.core.errors import InputError


def server_tls(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InputError("live.tls", certificate, f"files with a certificate and its key ({error})") from None
    return context


def client_tls(certificate: str) -> ssl.SSLContext:
    """Trust this certificate, or whom it has signed, and nobody else: names need not be right then."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    try:
        context.load_verify_locations(certificate)
    except (OSError, ssl.SSLError) as error:
        raise InputError("--certificate", certificate, f"the arbiter's certificate ({error})") from None
    return context
