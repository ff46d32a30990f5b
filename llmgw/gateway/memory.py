"""How this process keeps memory: the allocator of the C library told what a gateway does with it.

Answers for: bodies of megabytes that come and go without a page fault for each page of them, and no more kept than
that. glibc gives the top of its heap back and takes it again, for each such body: a third of what relaying it costs. It
may not fail: where the library is another one, nothing is told.
"""

from __future__ import annotations

import ctypes
import gc

#: malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD. The first is what an idle process may keep.
TRIM, MMAP = -1, -3
KEPT_BYTES = 8 << 20
#: Larger blocks are mapped and given back one by one.
MAPPED_BYTES = 4 << 20


def settle() -> None:
    """Once all is loaded: what stands now stays, so the collector need not look at it again."""
    gc.collect()
    gc.freeze()
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(TRIM, KEPT_BYTES)
        libc.mallopt(MMAP, MAPPED_BYTES)
        libc.malloc_trim(0)
    except (OSError, AttributeError):
        pass  # not glibc
