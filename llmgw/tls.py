"""TLS between the parts: a self-signed certificate made once, and a peer that is known by the hash of its certificate.

Answers for: with a pin no byte of a request leaves before the other side has proved that it has that certificate, and
nothing ever goes on unverified. Loading it loads `ssl`: the command line does so for https alone (P10). May not keep
a token, nor decide who must use TLS.
"""

from __future__ import annotations

import hashlib
import os
import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from llmgw.errors import LlmgwError, UsageError

if TYPE_CHECKING:
    from cryptography import x509

CERT, KEY = "tls.crt", "tls.key"
#: Of a pinned certificate nobody looks at the dates; for those who do, no clock is ever before or behind them.
FROM, UNTIL = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)
RENEWED = (
    "if control's certificate was renewed: `llmgw token` on its box prints the new one; "
    "else somebody stands between"
)
UNKNOWN = "give its hash: `llmgw token` on control's box prints --pin; for an authority of your own: --ca FILE"
#: What OpenSSL calls an answer that is no TLS, over its versions.
_PLAIN = frozenset({
    "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "WRONG_VERSION_NUMBER",
})  # fmt: skip
#: A handshake of ours that only looks whether there is TLS at all.
LOOK_S = 2.0


class Trust(Protocol):
    """As `config.Trust`: hashes of certificates that may be shown; else a file of authorities, "" for the system's."""

    @property
    def pins(self) -> tuple[str, ...]: ...

    @property
    def ca(self) -> str: ...


class PinError(ssl.SSLCertVerificationError):
    """Another certificate than the pinned one."""


class Pair(NamedTuple):
    """A certificate and its key, as files."""

    cert: Path
    key: Path


# ---------------------------------------------------------------- who is at the other end


def pin(der: bytes) -> str:
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


def pin_of(cert: Path) -> str:
    """Of the first certificate in the file: the server's own; behind it are those of who vouches for it."""
    text = cert.read_text()
    end = "-----END CERTIFICATE-----"
    return pin(
        ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERT") : text.index(end)] + end)
    )


def _check(shown: ssl.SSLSocket | ssl.SSLObject) -> None:
    """Right after the handshake, in which the other side signed with its key: nothing of ours has been sent yet."""
    assert isinstance(shown.context, _Pinned)
    found = pin(shown.getpeercert(binary_form=True) or b"")
    if found not in shown.context.pins:  # both are public
        raise PinError(
            1, f"its certificate is {found}, pinned is {' or '.join(shown.context.pins)}"
        )


class _Socket(ssl.SSLSocket):
    # `override` would need typing_extensions.
    def do_handshake(self, block: bool = False) -> None:  # type: ignore[explicit-override]  # noqa: FBT001, FBT002
        super().do_handshake(block)
        _check(self)


class _Object(ssl.SSLObject):
    def do_handshake(self) -> None:  # type: ignore[explicit-override]
        super().do_handshake()
        _check(self)


class _Pinned(ssl.SSLContext):
    """Of blocking sockets, asyncio, uvloop and httpx alike: all make these, and do the handshake through them.

    https://docs.python.org/3/library/ssl.html#ssl.SSLContext.sslsocket_class
    """

    pins: tuple[str, ...] = ()
    sslsocket_class: type[ssl.SSLSocket] = _Socket
    sslobject_class: type[ssl.SSLObject] = _Object


def client(trust: Trust) -> ssl.SSLContext:
    """With pins those and nothing else; else by an authority of ours or the system's, host name included."""
    if not trust.pins:
        try:
            return ssl.create_default_context(cafile=trust.ca or None)
        except (OSError, ssl.SSLError) as e:
            msg = f"--ca {trust.ca} cannot be used: {e.strerror or e}"
            raise UsageError(msg, "a file of certificates in PEM") from e
    context = _Pinned(ssl.PROTOCOL_TLS_CLIENT)
    context.pins = trust.pins
    # The hash says more than a name, a date or a signature of the certificate's own: `_check` compares it.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def verify(url: str, trust: Trust) -> ssl.SSLContext | bool:
    """For httpx: False for plain HTTP, where reading the system's authorities would take 20 ms for nothing."""
    return client(trust) if url.startswith("https:") else False


# ---------------------------------------------------------------- what went wrong


def causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def trouble(error: BaseException) -> tuple[str, str]:
    """What TLS has to do with a failed call, and what to try; empty where it has nothing to do with it."""
    found = next((e for e in causes(error) if isinstance(e, ssl.SSLError)), None)
    if isinstance(found, PinError):
        return str(found), RENEWED
    if isinstance(found, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {found.verify_message}", UNKNOWN
    if found is None:
        return "", ""
    if found.reason in _PLAIN:
        return "it speaks no TLS", "use http://, or start it with TLS"
    return f"no TLS with it: {found.reason or found}", ""


def speaks(host: str, port: int) -> bool:
    """Whether TLS is spoken there; nothing is asked, and whoever it is, nothing is told."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        suppress(OSError),
        socket.create_connection((host, port), LOOK_S) as sock,
        context.wrap_socket(sock),
    ):
        return True
    return False


# ---------------------------------------------------------------- our own certificate


def own(folder: Path, names: Iterable[str]) -> Pair:
    """The certificate of this folder, made where there is none. Several may begin at once, and be killed anywhere.

    A file comes to its name whole, and only where there is none: the first key stays, and all certificates are of it.
    """
    pair = Pair(folder / CERT, folder / KEY)
    try:
        if not pair.cert.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not pair.key.exists():
                _once(pair.key, _new_key())
            _once(pair.cert, _self_signed(pair.key.read_bytes(), list(names)))
    except (OSError, ValueError) as e:
        msg = f"no certificate can be made in {folder}: {e}"
        raise LlmgwError(msg, f"remove {pair.key} if it is damaged, or give --tls-cert") from e
    return checked(pair)


def checked(pair: Pair) -> Pair:
    """Two files that a server can use, which belong together."""
    _loaded(pair)
    return pair


class Served:
    """A certificate that a server has in use, and the next one: only those who connect from `renew` on are shown that.

    Loading it into the context that serves would leave a certificate without its key there where the two do not fit.
    """

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._seen = self._marks()
        self._next: ssl.SSLContext | None = None
        self.pin = pin_of(pair.cert)

    def on(self, context: ssl.SSLContext) -> None:
        """Asked at each handshake of this context, also where the client names no server."""
        context.sni_callback = self._show

    def _show(self, conn: ssl.SSLObject | ssl.SSLSocket, *_: object) -> None:
        if self._next is not None:
            conn.context = self._next

    @property
    def other(self) -> bool:
        """Both files are there, and one of them is another than when it was read last."""
        marks = self._marks()
        return None not in marks and marks != self._seen

    def renew(self) -> None:
        """UsageError where they cannot be used: the one in use stays."""
        self._seen = self._marks()
        self._next, self.pin = _loaded(self._pair)

    def _marks(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_mark(path) for path in self._pair)


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _loaded(pair: Pair) -> tuple[ssl.SSLContext, str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(pair.cert, pair.key)
        return context, pin_of(pair.cert)
    except (OSError, ValueError) as e:
        what = getattr(e, "reason", "") or getattr(e, "strerror", "") or e
        msg = f"the certificate {pair.cert} with the key {pair.key} cannot be used: {what}"
        hint = "both in PEM, without a password, readable for this user; our own are made anew when both are removed"
        raise UsageError(msg, f"{hint}: then every pin is another") from e


def given(cert: str, key: str) -> Pair | None:
    """`--tls-cert` and `--tls-key`."""
    if bool(cert) != bool(key):
        msg = f"{'--tls-cert' if cert else '--tls-key'} is given without the other one"
        raise UsageError(msg, "--tls-cert FILE --tls-key FILE")
    return checked(Pair(Path(cert), Path(key))) if cert else None


def _once(path: Path, content: bytes) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        with suppress(FileExistsError):
            os.link(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _new_key() -> bytes:
    # 5 MB and 30 ms that only a first start pays.
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _self_signed(key: bytes, names: list[str]) -> bytes:
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    private = serialization.load_pem_private_key(key, None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        msg = "the key is of another kind than ours"
        raise ValueError(msg)  # noqa: TRY004 - as what the library raises for a damaged one
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "llmgw")])
    also = dict.fromkeys(["localhost", "127.0.0.1", *names])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(FROM)
        .not_valid_after(UNTIL)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_name(n) for n in also if n]), critical=False)
        .sign(private, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def _name(text: str) -> x509.GeneralName:
    from cryptography import x509  # noqa: PLC0415

    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)
