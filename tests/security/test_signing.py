"""The owner's key: made once, kept from others, and known again in every form that people pass on."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from interlingua.model.errors import InvalidRequest
from interlingua.security.signing_key import Expected, SigningKey, fingerprint, genuine

TEXT = b"what happened"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys" / "owner.key"


def test_a_key_is_made_when_it_is_first_needed_and_stays(file: Path) -> None:
    key = SigningKey.load_or_create(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = SigningKey.load_or_create(file)
    assert (again.public, again.fingerprint, again.warnings) == (key.public, key.fingerprint, [])
    assert [one.name for one in file.parent.iterdir()] == [file.name]
    assert SigningKey.load_or_create(file.with_name("other")).public != key.public


def test_processes_that_need_a_key_at_once_get_the_same(file: Path) -> None:
    found: list[str] = []
    begin = threading.Barrier(8)

    def need() -> None:
        begin.wait()
        found.append(SigningKey.load_or_create(file).public)

    threads = [threading.Thread(target=need) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_key_that_others_could_read_is_kept_from_them_from_then_on(file: Path) -> None:
    SigningKey.load_or_create(file)
    file.chmod(0o644)
    (warning,) = SigningKey.load_or_create(file).warnings
    assert "0644" in warning
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_signature_is_of_one_key_and_one_text(file: Path) -> None:
    key, other = SigningKey.load_or_create(file), SigningKey.load_or_create(file.with_name("other"))
    signature = key.sign(TEXT)
    assert genuine(key.public, signature, TEXT)
    assert not genuine(other.public, signature, TEXT)
    assert not genuine(key.public, signature, TEXT + b".")
    for odd in ("", "é", "ed25519:", key.public[:-1], key.public + "=", key.public.upper(), key.public + "\n"):
        assert not genuine(odd, signature, TEXT)
    for odd in ("", "é", signature[:-1], signature + "==", "A" * len(signature), f" {signature}"):
        assert not genuine(key.public, odd, TEXT)


def test_a_signature_has_one_spelling(file: Path) -> None:
    """The last character has bits that mean nothing: another one there is another text of the same bytes."""
    key = SigningKey.load_or_create(file)
    signature = key.sign(TEXT)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    fitting = [last for last in letters if genuine(key.public, signature[:-1] + last, TEXT)]
    assert fitting == [signature[-1]]


def test_an_expected_key_may_be_given_in_every_form(file: Path, tmp_path: Path) -> None:
    key, other = SigningKey.load_or_create(file), SigningKey.load_or_create(file.with_name("other"))
    line, pem = tmp_path / "owner.pub", tmp_path / "owner.pem"
    line.write_text(key.public + "\n")
    private = load_pem_private_key(file.read_bytes(), None)
    pem.write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )  # fmt: skip
    for given in (key.public, f" {key.public}\n", key.fingerprint, str(line), str(pem), str(file)):
        expected = Expected(given)
        assert expected(key.public), given
        assert not expected(other.public)
        assert not expected("")
        assert expected.fingerprint == fingerprint(key.public) == key.fingerprint


def test_what_is_no_key_is_refused_with_a_reason(file: Path, tmp_path: Path) -> None:
    key = SigningKey.load_or_create(file)
    other = tmp_path / "other.pem"
    other.write_bytes(
        generate_private_key(SECP256R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        load_pem_private_key(file.read_bytes(), None).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
        )
    )
    for given, words in (
        ("", "no public key"), (str(tmp_path / "nothing"), "no file"), (str(tmp_path), "no file"), ("\0", "no file"),
        (str(other), "holds no Ed25519 key"), (str(locked), "holds no Ed25519 key"),
        (key.public[:-3], "misspelt"), (key.fingerprint[:-3], "misspelt"),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest, match=words):
            Expected(given)
    for odd in (other, locked):
        with pytest.raises(InvalidRequest, match="holds no private Ed25519 key"):
            SigningKey.load_or_create(odd)
    with pytest.raises(InvalidRequest, match="cannot be used"):
        SigningKey.load_or_create(tmp_path)
    with pytest.raises(InvalidRequest, match="cannot be used"):
        SigningKey.load_or_create(other / "below")
