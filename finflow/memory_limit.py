"""Sizes that a file asks for, beside what the machine has: some formats make gigabytes of a few kilobytes."""

from __future__ import annotations

import os

SHARE = 4  # of the memory: the bytes, what is read of them, and what is made of that


def fits_memory(size: int) -> bool:
    """True for so many bytes as one file may take: a quarter of the machine's memory."""
    return size <= machine_memory() // SHARE


def machine_memory() -> int:
    """Bytes of this machine's memory; a large number where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return 1 << 36
