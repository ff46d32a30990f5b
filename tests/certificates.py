"""Certificates as people make and renew them, and which one a server shows."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path

from llmgw import tls

KINDS = {
    "ec": ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
    "rsa": ("-newkey", "rsa:2048"),
}


def made(folder: Path, kind: str = "ec") -> tls.Pair:
    """As people make them."""
    folder.mkdir()
    pair = tls.Pair(folder / "cert.pem", folder / "key.pem")
    words = ["openssl", "req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=control"]
    words += [*KINDS[kind], "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    words += ["-out", str(pair.cert), "-keyout", str(pair.key)]
    subprocess.run(words, check=True, capture_output=True)
    return pair


def put(new: tls.Pair, over: tls.Pair) -> None:
    """As certbot and cp do it: one file after the other."""
    shutil.copy(new.cert, over.cert)
    shutil.copy(new.key, over.key)


async def shown(port: int) -> str:
    """The pin that a new connection meets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return tls.pin(found)
