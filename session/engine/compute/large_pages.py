"""Memory in large pages: what every pass reads once, from its beginning to its end, is read faster
where the CPU need not look up an address for each 4 KiB of it."""

import math
import mmap

import torch
from torch import Tensor

PAGE = 2 * 2**20


def large_zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros of the type and on the device of `like`. Less than a large page, and what is not on a
    CPU of a system that has them, lies where torch puts it."""
    size = math.prod(shape) * like.dtype.itemsize
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if size < PAGE or like.device.type != "cpu" or advice is None:
        return like.new_zeros(shape)
    memory = mmap.mmap(-1, size + 2 * PAGE)  # zeros, and none of it taken before it is used
    try:
        memory.madvise(advice)
    except OSError:  # a kernel without them
        return like.new_zeros(shape)
    whole = torch.frombuffer(memory, dtype=torch.uint8)  # holds the memory
    first = -whole.data_ptr() % PAGE
    return whole[first : first + size].view(like.dtype).view(shape)
