"""The buffer token: what is read is what was written, and nothing else is read."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.rdma.errors import MalformedToken
from s3verbs.rdma.token import BASE_LENGTH, MAX_SIZE, Token, Transport, parse

EXAMPLE = "00007f1dc46fd010:00100000:0000abcd:0000:001234:1:00000000000000000000ffff7f000001"
NONCE = "00112233445566778899aabbccddeeff"
SAMEHOST = f"00007f1dc46fd010:00100000:00000000:0000:000000:0:{'0' * 32}:cma1:{NONCE}"
RC = f"00007f1dc46fd010:00100000:0000abcd:0000:004853:1:00000000000000000000ffff7f000001:rc1:{NONCE}"

EXAMPLES = settings(max_examples=200, deadline=None)

sizes = st.integers(1, MAX_SIZE)
gids = st.binary(min_size=16, max_size=16)
secrets = st.binary(min_size=16, max_size=16)


@st.composite
def tokens(draw: st.DrawFn) -> Token:
    size = draw(sizes)
    address = draw(st.integers(0, (1 << 64) - size))
    transport = draw(st.sampled_from(Transport))
    if transport is Transport.SAMEHOST:
        return Token(address, size, transport=transport, secret=draw(secrets))
    rkey, lid = draw(st.integers(0, 0xFFFFFFFF)), draw(st.integers(0, 0xFFFF))
    if transport is Transport.RC:
        return Token(address, size, rkey, lid, draw(st.integers(1, 0xFFFF)), draw(gids), transport, draw(secrets))
    return Token(address, size, rkey, lid, draw(st.integers(0, 0xFFFFFF)), draw(st.none() | gids))


def read(text: str) -> Token | None:
    """What a text means. Whatever is accepted must say no more and no less than the text does."""
    try:
        token = parse(text)
    except MalformedToken:
        return None
    written = str(token)
    if token.gid is None:
        # Without a GID its field has no meaning.
        text = text[:49] + "0" * 32 + text[BASE_LENGTH:]
    assert written == text.lower()
    return token


def test_the_documented_example() -> None:
    token = parse(EXAMPLE)
    gid = bytes.fromhex("00000000000000000000ffff7f000001")
    assert token == Token(0x7F1DC46FD010, 1 << 20, 0xABCD, 0, 0x1234, gid)
    assert str(token) == EXAMPLE
    assert len(EXAMPLE) == BASE_LENGTH


@EXAMPLES
@given(tokens())
def test_a_token_is_read_as_it_was_written(token: Token) -> None:
    text = str(token)
    assert parse(text) == token
    suffix = {Transport.DC: 0, Transport.RC: len(":rc1:") + 32, Transport.SAMEHOST: len(":cma1:") + 32}
    assert len(text) == BASE_LENGTH + suffix[token.transport]
    assert text == text.lower()
    assert [len(field) for field in text.split(":")[:7]] == [16, 8, 8, 4, 6, 1, 32]


@EXAMPLES
@given(tokens())
def test_hex_may_be_upper_case_but_a_suffix_is_a_word(token: Token) -> None:
    text = str(token)
    name = {Transport.DC: "", Transport.RC: "rc1", Transport.SAMEHOST: "cma1"}[token.transport]
    upper = text.upper().replace(name.upper(), name) if name else text.upper()
    assert parse(upper) == token
    if name:
        assert read(text.replace(name, name.upper())) is None


@EXAMPLES
@given(tokens(), st.data())
def test_a_token_with_one_character_changed_is_refused_or_says_what_it_says(token: Token, data: st.DataObject) -> None:
    text = str(token)
    at = data.draw(st.integers(0, len(text) - 1))
    character = data.draw(st.sampled_from(string.hexdigits + ":") | st.characters())
    changed = text[:at] + character + text[at + 1 :]
    found = read(changed)
    if found is not None and changed.lower() == text.lower():
        assert found == token
    if text[at] == ":" != character:
        assert found is None
    if character not in string.hexdigits + ":":
        assert found is None or character == text[at]


def test_each_character_of_a_token_matters() -> None:
    for text in (EXAMPLE, RC, SAMEHOST):
        token = parse(text)
        for at in range(len(text)):
            assert read(text[:at] + text[at + 1 :]) is None
            assert read(text[:at] + "0" + text[at:]) is None
            for wrong in "gG x:-+_\n\0\u0660\uff11":
                if wrong != text[at]:
                    assert read(text[:at] + wrong + text[at + 1 :]) is None, (at, wrong)
            for digit in "0f":
                other = read(text[:at] + digit + text[at + 1 :])
                assert other is None or (other == token) == (text[at] == digit), (at, digit)
        for end in range(len(text)):
            assert read(text[:end]) is None or end == BASE_LENGTH


@EXAMPLES
@given(st.text() | st.text(string.hexdigits + ":", min_size=BASE_LENGTH - 1, max_size=BASE_LENGTH + 40))
def test_any_other_text_is_refused(text: str) -> None:
    read(text)


@EXAMPLES
@given(tokens().filter(lambda token: token.transport is Transport.DC), st.integers(0, 1 << 64), st.integers(0, 1 << 64))
def test_the_last_two_fields_of_older_minio_clients_override_the_first_two(
    token: Token, address: int, size: int
) -> None:
    text = f"{token}:{address:016x}:{size:016x}"
    if max(address, size) == 1 << 64 or size == 0 or address + size > 1 << 64:
        with pytest.raises(MalformedToken):
            parse(text)
        return
    found = parse(text)
    assert (found.address, found.size) == (address, size)
    assert (found.rkey, found.lid, found.qp, found.gid) == (token.rkey, token.lid, token.qp, token.gid)
    assert found.transport is Transport.DC
    assert parse(text.upper()) == found


def test_what_the_first_two_fields_say_does_not_matter_then() -> None:
    zero = EXAMPLE[:17] + "00000000" + EXAMPLE[25:]
    assert read(zero) is None
    assert parse(f"{zero}:0000000000000001:0000000100000000") == Token(
        1, 1 << 32, 0xABCD, 0, 0x1234, parse(EXAMPLE).gid
    )


@pytest.mark.parametrize("size", [1, 2, MAX_SIZE])
def test_a_buffer_may_end_at_the_last_address_and_not_past_it(size: int) -> None:
    last = (1 << 64) - size
    assert parse(str(Token(last, size))).address == last
    if last + 1 < 1 << 64:
        with pytest.raises(MalformedToken, match="past the last address"):
            parse(str(Token(last + 1, size)))


@pytest.mark.parametrize(
    "text",
    [
        RC.replace(":004853:", ":000000:"),
        RC.replace(":004853:", ":010000:"),
        RC.replace(":1:0000", ":0:0000"),
        SAMEHOST.replace(":00000000:", ":00000001:"),
        SAMEHOST.replace(":0000:", ":0001:"),
        SAMEHOST.replace(":000000:", ":000001:"),
        SAMEHOST.replace(":0:", ":1:"),
        SAMEHOST.replace(f":{'0' * 32}:", f":{'0' * 31}1:"),
        f"{RC}:0000000000000001:0000000000000001",
        f"{RC}:rc1:{NONCE}",
        f"{EXAMPLE}:cma1:{NONCE}",
        f"{EXAMPLE}:rc2:{NONCE}",
        f"{EXAMPLE}:{NONCE}",
        f"{EXAMPLE}:",
        f"{EXAMPLE}\n",
        f" {EXAMPLE}",
        f"{EXAMPLE},{EXAMPLE}",
    ],
)
def test_a_suffix_goes_with_its_fields(text: str) -> None:
    assert text not in {RC, SAMEHOST}
    with pytest.raises(MalformedToken):
        parse(text)


@pytest.mark.parametrize(
    "token",
    [
        Token(1 << 64, 1),
        Token(-1, 1),
        Token(0, 1 << 32),
        Token(0, 1, rkey=1 << 32),
        Token(0, 1, lid=1 << 16),
        Token(0, 1, qp=1 << 24),
        Token(0, 1, gid=bytes(15)),
        Token(0, 1, gid=bytes(16), qp=1, transport=Transport.RC, secret=bytes(15)),
        Token(0, 1, transport=Transport.SAMEHOST),
    ],
)
def test_a_field_that_does_not_fit_is_not_written(token: Token) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        str(token)


@EXAMPLES
@given(tokens().filter(lambda token: token.transport is not Transport.DC))
def test_the_secret_stays_out_of_logs(token: Token) -> None:
    text = repr(token)
    # Sixteen hex digits of it cannot be there by chance.
    assert not any(token.secret.hex()[at : at + 16] in text for at in range(17) if len(set(token.secret)) > 4)
    assert "secret" not in text
