"""Huge pages behind registered memory.

Whoever moves bytes to and from it looks every page up: on the same host the kernel pins them for each copy, a NIC keeps
them in its translation table. With pages of 2 MiB there are 512 times fewer.
"""

import ctypes

HUGE_PAGE = 2 << 20

COLLAPSE_AT_MOST = 1 << 30
"""Bytes whose pages are exchanged at once, which copies them; larger memory is left to the kernel's own thread."""

_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25
"""Of <linux/mman.h>; the second since Linux 6.1."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def prefer_huge_pages(address: int, size: int) -> None:
    """Ask the kernel to back the whole huge pages within [address, address + size) with such. Content and addresses
    stay; what was never touched stays so. A kernel or a kind of memory that cannot do it leaves all as it was."""
    begin = -(-address // HUGE_PAGE) * HUGE_PAGE
    length = (address + size) // HUGE_PAGE * HUGE_PAGE - begin
    if length <= 0:
        return
    if _libc.madvise(begin, length, _MADV_HUGEPAGE) == 0 and length <= COLLAPSE_AT_MOST:
        _libc.madvise(begin, length, _MADV_COLLAPSE)
