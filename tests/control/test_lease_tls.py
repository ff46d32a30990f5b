"""An etcd that speaks TLS and wants a client's certificate, made by openssl here: `etcds://…?ca=&cert=&key=`."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typing_extensions import override

from llmgw.control.lease import Holder, store
from llmgw.control.lease.etcd import EtcdLease
from llmgw.errors import LlmgwError
from tests import beds
from tests.control.pair import until
from tests.control.real_etcd import RealEtcd
from tests.control.test_lease import Epochs

pytestmark = [pytest.mark.etcd, beds.needs("openssl", root=False)]
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


def authority(folder: Path, name: str) -> None:
    where = ("-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem")
    openssl("req", "-x509", *NEW_KEY, "-subj", f"/CN={name}", *where)


def signed(folder: Path, name: str, by: str, *, host: str = "127.0.0.1") -> None:
    key, ask, cert = (folder / f"{name}.{x}" for x in ("key", "csr", "pem"))
    openssl("req", "-new", *NEW_KEY[:-2], "-subj", f"/CN={name}", "-keyout", key, "-out", ask)
    extra = folder / f"{name}.ext"
    extra.write_text(f"subjectAltName=IP:{host}\n")
    ca = ("-CA", folder / f"{by}.pem", "-CAkey", folder / f"{by}.key", "-CAcreateserial")
    openssl("x509", "-req", "-in", ask, *ca, "-days", "2", "-extfile", extra, "-out", cert)


class TlsEtcd(RealEtcd):
    @property
    @override
    def url(self) -> str:
        return super().url.replace("http:", "https:")

    @property
    @override
    def spec(self) -> str:
        return super().spec.replace("etcd:", "etcds:")

    @override
    def _healthy(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        context.load_cert_chain(self.folder / "client.pem", self.folder / "client.key")
        try:
            found = httpx.get(f"{self.url}/health", verify=context, timeout=2, trust_env=False)
        except httpx.HTTPError:
            return False
        return bool(found.json().get("health") == "true")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsEtcd]:
    folder = tmp_path_factory.mktemp("tls")
    for name in ("ca", "stranger"):
        authority(folder, name)
    signed(folder, "server", "ca")
    signed(folder, "client", "ca")
    signed(folder, "other", "stranger")
    made = TlsEtcd(
        folder,
        *("--cert-file", str(folder / "server.pem"), "--key-file", str(folder / "server.key")),
        *("--trusted-ca-file", str(folder / "ca.pem"), "--client-cert-auth"),
    )
    try:
        made.start()
        yield made
    finally:
        made.stop()


def lease(etcd: TlsEtcd, query: str) -> EtcdLease:
    made = EtcdLease(store(f"{etcd.spec}/tls?ttl=3s&{query}"), Epochs())
    made.about = Holder("a", "http://a")
    return made


def files(etcd: TlsEtcd, ca: str = "ca", client: str = "client") -> str:
    folder = etcd.folder
    return f"ca={folder / ca}.pem&cert={folder / client}.pem&key={folder / client}.key"


def test_a_lease_over_tls_with_a_certificate_of_our_own(etcd: TlsEtcd) -> None:
    async def story() -> None:
        made = lease(etcd, files(etcd))
        task = asyncio.ensure_future(made.run(lambda: None, lambda: 4))
        await until(lambda: made.held)
        assert made.acquire("uuid", 0) == 5
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(story())


@pytest.mark.parametrize(
    ("ca", "client", "why"),
    [
        ("stranger", "client", "certificate verify failed"),
        ("ca", "other", "alert|eof|reset|closed|disconnected"),
    ],
)
def test_neither_a_strange_server_nor_a_strange_client_leads(
    etcd: TlsEtcd, ca: str, client: str, why: str
) -> None:
    """And it is said which of them it is, as far as TLS tells."""

    async def story() -> None:
        made = lease(etcd, files(etcd, ca, client))
        task = asyncio.ensure_future(made.run(lambda: None, lambda: 0))
        await until(lambda: made.problem)
        assert not made.held
        assert any(word in made.problem.lower() for word in why.split("|")), made.problem
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(story())


def test_a_file_that_is_none_is_said_at_the_start(etcd: TlsEtcd, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(LlmgwError, match="the TLS files for etcd cannot be used"):
        lease(etcd, f"ca={tmp_path / 'ca.pem'}")
