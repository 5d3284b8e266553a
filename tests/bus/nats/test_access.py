"""Who is let in to a NATS server, and over which wire: users, tokens, nkeys, credentials and TLS."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import ipaddress
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nkeys
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import interlingua as il
from interlingua.bus.port import WORK
from interlingua.model.errors import InvalidRequest, Unavailable
from interlingua.server.dev.local_nats import LocalNats
from tests.kit.buses import Heard
from tests.kit.nats import opened


async def works(url: str, **settings: Any) -> None:
    """What one says, the other hears, and work can be handed out."""
    async with opened(url, **settings) as one, opened(url, **settings) as two:
        assert one.health.connected
        heard = Heard()
        two.subscribe(WORK, heard.about("work"))
        one.publish(WORK)
        await heard.count(1)


async def refused(url: str, **settings: Any) -> str:
    with pytest.raises(Unavailable, match="does not let us in") as error:
        async with opened(url, **settings):
            pass
    assert not error.value.transient
    return str(error.value)


def with_user(server: LocalNats, user: str) -> str:
    return server.url.replace("://", f"://{user}@")


async def test_a_user_and_a_password_stand_in_the_address(tmp_path: Path) -> None:
    with LocalNats(tmp_path, config='authorization { user: "me", password: "s3cret" }') as server:
        await works(with_user(server, "me:s3cret"))
        for wrong in (with_user(server, "me:wr0ng"), server.url):
            said = await refused(wrong)
            assert "wr0ng" not in said
            assert "check user and password" in said


async def test_a_token_lets_us_in(tmp_path: Path) -> None:
    with LocalNats(tmp_path, config='authorization { token: "s3cret" }') as server:
        await works(server.url, token="s3cret")
        assert "wr0ng" not in await refused(server.url, token="wr0ng")


def key_pair(kind: int) -> tuple[nkeys.KeyPair, str]:
    """Of a kind of key, and its public half as text."""
    pair = nkeys.from_seed(nkeys.encode_seed(bytes(hashlib.sha256(bytes([kind])).digest()), kind))
    return pair, pair.public_key.decode()


def seed(pair: nkeys.KeyPair) -> str:
    return bytes(pair.seed).decode()


async def test_the_seed_of_an_nkey_lets_us_in(tmp_path: Path) -> None:
    pair, public = key_pair(nkeys.PREFIX_BYTE_USER)
    file = tmp_path / "user.nk"
    file.write_text(seed(pair) + "\n")
    with LocalNats(tmp_path / "nats", config=f"authorization {{ users: [{{ nkey: {public} }}] }}") as server:
        await works(server.url, nkey=file)
        await refused(server.url)


def signed(claims: dict[str, Any], by: nkeys.KeyPair) -> str:
    def part(value: bytes) -> bytes:
        return base64.urlsafe_b64encode(value).rstrip(b"=")

    head = part(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    body = part(json.dumps({"jti": "x", "iat": 1_700_000_000, **claims}).encode())
    return b".".join([head, body, part(by.sign(head + b"." + body))]).decode()


async def test_a_file_of_credentials_lets_us_in(tmp_path: Path) -> None:
    operator, operator_key = key_pair(nkeys.PREFIX_BYTE_OPERATOR)
    account, account_key = key_pair(nkeys.PREFIX_BYTE_ACCOUNT)
    user, user_key = key_pair(nkeys.PREFIX_BYTE_USER)
    limits = {"subs": -1, "data": -1, "payload": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1}
    operator_token = signed(
        {"iss": operator_key, "sub": operator_key, "nats": {"type": "operator", "version": 2}}, operator
    )
    account_token = signed(
        {"iss": operator_key, "sub": account_key, "nats": {"type": "account", "version": 2, "limits": limits}},
        operator,
    )
    user_token = signed(
        {
            "iss": account_key,
            "sub": user_key,
            "nats": {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1},
        },
        account,
    )
    credentials = tmp_path / "user.creds"
    credentials.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed(user)}\n------END USER NKEY SEED------\n"
    )
    config = f"operator: {operator_token}\nresolver: MEMORY\nresolver_preload: {{ {account_key}: {account_token} }}\n"
    with LocalNats(tmp_path / "nats", config=config, jetstream=False) as server:
        await works(server.url, credentials=credentials)
        await refused(server.url)


async def test_a_file_that_is_not_there_is_named_at_the_start(tmp_path: Path) -> None:
    for name in ("credentials", "nkey", "ca", "certificate"):
        with pytest.raises(InvalidRequest, match="nowhere"):
            async with opened("tls://127.0.0.1:1", **{name: tmp_path / "nowhere"}):
                pass


# -- TLS ---------------------------------------------------------------------------------------------------


class Authority:
    """Signs certificates of this machine."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, None), True)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        made = made.add_extension(usage, True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False)
        )

    def sign(self, name: str) -> tuple[Path, Path]:
        """A certificate for this machine, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        made = made.add_extension(x509.SubjectAlternativeName([address]), False)
        certificate, private = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        certificate.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, private


@contextmanager
def tls_server(folder: Path, authority: Authority, *, verify: bool) -> Iterator[LocalNats]:
    certificate, key = authority.sign("server")
    config = (
        f"tls {{ cert_file: '{certificate}', key_file: '{key}', ca_file: '{authority.file}', "
        f"verify: {'true' if verify else 'false'} }}"
    )
    with LocalNats(folder, config=config) as server:
        yield server


def secure(server: LocalNats) -> str:
    return server.url.replace("nats://", "tls://")


async def test_tls_needs_a_server_whose_authority_is_known(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path / "ours", "ours"), Authority(tmp_path / "others", "others")
    with tls_server(tmp_path / "nats", ours, verify=False) as server:
        await works(secure(server), ca=ours.file)
        assert "certificate" in (await refused(secure(server), ca=others.file)).lower()
        assert "certificate" in (await refused(secure(server))).lower()


async def test_a_server_that_wants_a_certificate_of_ours_gets_it(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path / "ours", "ours"), Authority(tmp_path / "others", "others")
    with tls_server(tmp_path / "nats", ours, verify=True) as server:
        certificate, key = ours.sign("client")
        await works(secure(server), ca=ours.file, certificate=certificate, key=key)
        wrong, its_key = others.sign("client")
        # Whether we still hear why depends on how fast the server hangs up.
        with contextlib.suppress(Unavailable):
            async with opened(secure(server), ca=ours.file, certificate=wrong, key=its_key) as bus:
                assert not bus.health.connected


async def test_nothing_is_said_in_the_clear_where_tls_is_wanted(tmp_path: Path) -> None:
    """A server without TLS, or somebody in between who says so, gets no password."""
    with LocalNats(tmp_path, config='authorization { user: "me", password: "s3cret" }') as server:
        assert "no TLS" in await refused(with_user(server, "me:s3cret").replace("nats://", "tls://"))


async def test_an_engine_whose_bus_does_not_let_it_in_says_so_at_the_start(tmp_path: Path, store: Path) -> None:
    with LocalNats(tmp_path / "nats", config='authorization { token: "s3cret" }') as server:
        engine = il.Engine(store, bus=server.url)
        with pytest.raises(Unavailable, match="does not let us in"):
            await engine.start()
        async with il.Engine(store) as again:  # nothing was left open
            assert again.running
