"""The payload file format: what is written is read back, and no damaged footer is believed."""

import struct

import pytest
from awscrt.checksums import crc32c
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.storage import payload_file
from s3verbs.storage.errors import PayloadDamaged
from s3verbs.storage.model import BLOCK_SIZE
from s3verbs.storage.payload_file import ALIGNMENT, MAX_LENGTH, TRAILER_SIZE, Footer

ids = st.binary(min_size=16, max_size=16)
lengths = st.one_of(
    st.integers(0, 40 * BLOCK_SIZE),
    st.builds(lambda blocks, off: max(0, blocks * BLOCK_SIZE + off), st.integers(0, 3000), st.integers(-1, 1)),
)


@st.composite
def footers(draw: st.DrawFn) -> Footer:
    length = draw(lengths)
    count = payload_file.block_count(length)
    seed = draw(st.integers(0, 2**32 - 1))
    blocks = tuple((seed + index * 2654435761) % 2**32 for index in range(count))
    return Footer(draw(ids), length, draw(st.integers(0, 2**64 - 1)), blocks)


@given(footers())
def test_a_footer_is_read_back(footer: Footer) -> None:
    encoded = payload_file.encode(footer)
    size = payload_file.file_size(footer.length)
    assert size == payload_file.footer_offset(footer.length) + len(encoded)
    assert payload_file.payload_length(encoded[-TRAILER_SIZE:], size) == footer.length
    assert payload_file.decode(encoded, size) == footer


@given(lengths)
def test_footer_and_file_keep_to_the_alignment_of_direct_io(length: int) -> None:
    assert payload_file.footer_offset(length) % ALIGNMENT == 0
    assert length <= payload_file.footer_offset(length) < length + ALIGNMENT
    assert payload_file.footer_size(length) % ALIGNMENT == 0
    assert payload_file.footer_size(length) >= 4 * payload_file.block_count(length) + TRAILER_SIZE


@given(footers(), st.data())
def test_any_changed_bit_of_a_footer_is_noticed(footer: Footer, data: st.DataObject) -> None:
    encoded = bytearray(payload_file.encode(footer))
    where = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[where // 8] ^= 1 << where % 8
    with pytest.raises(PayloadDamaged):
        payload_file.decode(bytes(encoded), payload_file.file_size(footer.length))


@given(footers(), st.integers(-3, 3).filter(bool))
def test_a_file_of_another_size_is_refused(footer: Footer, pages: int) -> None:
    encoded = payload_file.encode(footer)
    size = payload_file.file_size(footer.length) + pages * ALIGNMENT
    with pytest.raises(PayloadDamaged):
        payload_file.decode(encoded, size)


@given(st.binary(max_size=3 * ALIGNMENT), st.integers(-10, 1 << 50))
def test_noise_is_never_a_footer(noise: bytes, size: int) -> None:
    with pytest.raises(PayloadDamaged):
        payload_file.decode(noise, size)


def _resealed(encoded: bytes, offset: int, field: bytes) -> bytes:
    """A footer with a field of its trailer replaced and its checksum right again."""
    start = len(encoded) - TRAILER_SIZE + offset
    changed = encoded[:start] + field + encoded[start + len(field) :]
    return changed[:-12] + struct.pack("<I", crc32c(changed[:-12])) + changed[-8:]


@pytest.mark.parametrize(
    ("offset", "field"),
    [
        pytest.param(16, struct.pack("<Q", 2**64 - 1), id="length of 16 EiB"),
        pytest.param(16, struct.pack("<Q", MAX_LENGTH + 1), id="length above the limit"),
        pytest.param(16, struct.pack("<Q", 5000 - ALIGNMENT), id="length of a smaller file"),
        pytest.param(32, struct.pack("<I", 2**32 - 1), id="count of 4 billion blocks"),
        pytest.param(32, struct.pack("<I", 0), id="no block"),
        pytest.param(36, struct.pack("<I", 0), id="blocks of no bytes"),
        pytest.param(36, struct.pack("<I", 4096), id="blocks of another size"),
        pytest.param(48, struct.pack("<H", 0), id="version 0"),
        pytest.param(48, struct.pack("<H", 2), id="a later version"),
    ],
)
def test_absurd_fields_are_refused_even_with_a_right_checksum(offset: int, field: bytes) -> None:
    encoded = payload_file.encode(Footer(bytes(16), 5000, 1, (7,)))
    with pytest.raises(PayloadDamaged):
        payload_file.decode(_resealed(encoded, offset, field), payload_file.file_size(5000))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 4095, 4097, -4096])
def test_a_file_too_small_or_uneven_is_refused(size: int) -> None:
    trailer = payload_file.encode(Footer(bytes(16), 0, 0, ()))[-TRAILER_SIZE:]
    with pytest.raises(PayloadDamaged):
        payload_file.payload_length(trailer, size)


@pytest.mark.parametrize(
    "footer",
    [
        Footer(b"short", 0, 0, ()),
        Footer(bytes(16), -1, 0, ()),
        Footer(bytes(16), MAX_LENGTH + 1, 0, ()),
        Footer(bytes(16), 1, 0, ()),
        Footer(bytes(16), BLOCK_SIZE, 0, (1, 2)),
    ],
)
def test_a_footer_that_contradicts_itself_is_not_written(footer: Footer) -> None:
    with pytest.raises(ValueError, match=r"payload|block"):
        payload_file.encode(footer)


@given(ids)
def test_a_file_name_stands_for_its_id(payload_id: bytes) -> None:
    name = payload_file.file_name(payload_id)
    assert payload_file.parse_name(name) == payload_id
    assert payload_file.fan_out(payload_id) == name[-2:]
    assert payload_file.parse_name(name.upper()) in (None, payload_id if name.upper() == name else None)


@given(st.text(max_size=40))
def test_other_names_stand_for_nothing(name: str) -> None:
    parsed = payload_file.parse_name(name)
    assert parsed is None or payload_file.file_name(parsed) == name


def test_the_layout_is_the_documented_one() -> None:
    encoded = payload_file.encode(
        Footer(bytes(range(16)), BLOCK_SIZE + 1, 0x1122334455667788, (0xAABBCCDD, 0x01020304))
    )
    assert len(encoded) == 4096
    assert encoded[:8] == bytes.fromhex("ddccbbaa04030201")
    trailer = encoded[-64:]
    assert trailer[:16] == bytes(range(16))
    assert trailer[16:24] == (BLOCK_SIZE + 1).to_bytes(8, "little")
    assert trailer[24:32] == 0x1122334455667788.to_bytes(8, "little")
    assert trailer[32:40] == b"\x02\0\0\0\0\0\x10\0"
    assert trailer[40:52] == bytes(8) + b"\x01\0\0\0"
    assert trailer[52:56] == crc32c(encoded[:-12]).to_bytes(4, "little")
    assert trailer[56:] == b"S3VPAYLD"
