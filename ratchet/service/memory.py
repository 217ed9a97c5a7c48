"""Room in memory for models that are loaded next to others."""

from __future__ import annotations

import psutil

_SMALL = 2**27  # bytes of models that always have room
_RESERVE = 8  # one part of the memory in so many stays free for computations


def has_room(num_bytes: int) -> bool:
    """Return whether weights fit into the free memory: of the GPU if available, or the machine."""
    if num_bytes < _SMALL:
        return True
    import torch  # in the service, threads that load models have imported it

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # torch reuses it
    else:
        memory = psutil.virtual_memory()
        free, total = memory.available, memory.total
    return bool(free >= num_bytes + total // _RESERVE)
