"""Looking where a secret can stand finds what the whole expressions find."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.knowledge import secrets

PIECES = (
    "password", "PASSWORD", "pa\u017f\u017fword", "to\u212aen", "api_key", "API-Key", "tokens", "session_id", "authorization", "\u0130", "--", "-", "_", "my-", "a" * 21,
    "=", ": ", '": "', " ", "\n", "hunter2x", "12", "true", "/", "Bearer ", "hf_" + "a" * 25, "ghp_" + "b" * 30, "eyJ" + "c" * 12, ".", "é", "AKIA" + "0" * 16,
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_what_is_looked_for_first_leaves_nothing_out(text: str) -> None:
    expected = {kind for kind in secrets._VENDORS if secrets._of_kind(kind).search(text)}
    expected |= {secrets._whole_name(text, match.start("name"), match.end("name")) for match in secrets._ASSIGNED.finditer(text)}
    expected |= {match["name"] for match in secrets._OPTION.finditer(text)}
    assert secrets.kinds_in(text) == expected
    with patch.object(secrets, "_LONG", 3):
        assert secrets.kinds_in(text) == expected


def test_every_kind_is_looked_for() -> None:
    assert secrets._HOLDS.keys() == secrets._VENDORS.keys()


def test_a_pinned_version_is_no_secret_of_the_package_that_it_follows():
    assert secrets.kinds_in('"SecretStorage==3.3.1", "tiktoken==0.9.0", tokenizers==0.21.2') == set()
    assert secrets.masked("tokenizers==0.21.2") == "tokenizers==0.21.2"
    assert secrets.kinds_in("token==a1b2c3, secret=0.9.x") == {"token", "secret"}


@pytest.mark.parametrize(
    "text", ["password: hunter2hunter2", "train --api_key=abcdefgh1 x", "(token=abcdefgh1)", "Bearer abcdefghijk1234", "https://me:hunter2@host/x"]
)
def test_masking_again_changes_nothing(text):
    once = secrets.masked(text)
    assert once != text and secrets.masked(once) == once
