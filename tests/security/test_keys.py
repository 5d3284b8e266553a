"""API keys: what is kept, what is accepted, and that time tells nothing."""

from __future__ import annotations

import hmac

import msgspec
import pytest

from interlingua.model.errors import InvalidRequest
from interlingua.security.keys import check_key, key_id, make_key
from tests.kit.keys import NOW_MICROS


def changed(text: str, at: int) -> str:
    other = "a" if text[at] != "a" else "b"
    return text[:at] + other + text[at + 1 :]


def test_a_new_key_is_accepted_and_names_its_record() -> None:
    secret, record = make_key("ci", ["do:run"], NOW_MICROS)
    assert key_id(secret) == record.id
    assert check_key(secret, record, NOW_MICROS) is record
    assert (record.name, record.scopes, record.created_at) == ("ci", ["do:run"], NOW_MICROS)


def test_a_record_holds_nothing_from_which_the_secret_could_be_read() -> None:
    secret, record = make_key("ci", [], NOW_MICROS)
    hidden = secret.split("_")[2]
    assert len(hidden) >= 43  # letters of 62: at least 256 bits
    stored = msgspec.json.encode(record).decode()
    assert secret not in stored
    assert hidden not in stored


def test_keys_differ_from_each_other() -> None:
    made = [make_key("ci", [], NOW_MICROS) for _ in range(50)]
    assert len({secret for secret, _ in made}) == len({record.id for _, record in made}) == 50


@pytest.mark.parametrize("at", [-1, 20, 14])
def test_a_key_with_one_letter_changed_is_refused(at: int) -> None:
    secret, record = make_key("ci", [], NOW_MICROS)
    assert check_key(changed(secret, at), record, NOW_MICROS) is None


def test_a_hash_moved_to_another_record_does_not_verify() -> None:
    secret, record = make_key("ci", [], NOW_MICROS)
    _, stronger = make_key("admin", ["*"], NOW_MICROS)
    forged = msgspec.structs.replace(stronger, hash=record.hash)
    hidden = secret.split("_")[2]
    assert check_key(f"il_{forged.id}_{hidden}", forged, NOW_MICROS) is None
    assert check_key(secret, forged, NOW_MICROS) is None


def test_a_secret_under_another_keys_id_is_refused() -> None:
    secret, record = make_key("ci", [], NOW_MICROS)
    other, _ = make_key("other", [], NOW_MICROS)
    mixed = "_".join([*other.split("_")[:2], secret.split("_")[2]])
    assert check_key(mixed, record, NOW_MICROS) is None


def test_an_expired_or_revoked_key_is_refused() -> None:
    secret, record = make_key("ci", [], NOW_MICROS, expires_at=NOW_MICROS + 10)
    assert check_key(secret, record, NOW_MICROS + 9) is record
    assert check_key(secret, record, NOW_MICROS + 10) is None
    assert check_key(secret, msgspec.structs.replace(record, revoked_at=NOW_MICROS), NOW_MICROS + 1) is None


@pytest.mark.parametrize(
    "text", ["", "il_", "il__", "sk-123", "il_ab_cd", "il_aaaaaaaaaa_" + "b" * 43, "il_aaaaaaaaaa_" + "é" * 44, "\n"]
)
def test_what_has_not_the_form_of_a_key_is_refused(text: str) -> None:
    _, record = make_key("ci", [], NOW_MICROS)
    assert key_id(text) is None
    assert check_key(text, record, NOW_MICROS) is None
    assert check_key(text, None, NOW_MICROS) is None


def test_known_unknown_and_malformed_keys_are_compared_once_each_in_constant_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def spy(a: str, b: str) -> bool:
        compared.append((len(a), len(b)))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    secret, record = make_key("ci", [], NOW_MICROS)
    assert check_key(secret, record, NOW_MICROS) is record
    assert check_key(secret, None, NOW_MICROS) is None
    assert check_key("nonsense", None, NOW_MICROS) is None
    assert len(compared) == 3
    assert len({lengths for pair in compared for lengths in pair}) == 1  # equal lengths: nothing ends early


@pytest.mark.parametrize("name", ["", "  ", "x" * 101, "two\nlines"])
def test_a_key_needs_a_name_that_can_stand_in_a_list(name: str) -> None:
    with pytest.raises(InvalidRequest, match="needs a name"):
        make_key(name, [], NOW_MICROS)


def test_a_key_cannot_be_made_with_scopes_that_mean_nothing_or_already_expired() -> None:
    with pytest.raises(InvalidRequest, match="did you mean do:read"):
        make_key("ci", ["do:raed"], NOW_MICROS)
    with pytest.raises(InvalidRequest, match="expire"):
        make_key("ci", [], NOW_MICROS, expires_at=NOW_MICROS)
