"""Keys and values of earlier tokens: where they live, who shares them, and attention over them.

Three caches with one interface (`KVCache`): `Recompute` keeps nothing, `ContiguousCache` sets the longest text aside
for every row, `PagedCache` gives out blocks as they are needed. `attention.install` makes a model use them.
"""

from labkit.cache.attention import install, position_limit, remove
from labkit.cache.host_store import HostStore
from labkit.cache.host_tier import HostTier
from labkit.cache.lossless import compress_block, restore
from labkit.cache.pack import Chunk, KVCache, Pack, forward
from labkit.cache.paged import ContiguousCache, PagedCache, token_bytes
from labkit.cache.pool import BlockPool, OutOfBlocks
from labkit.cache.prefix import PrefixCache
from labkit.cache.recompute import Recompute
from labkit.cache.tables import BlockTables

__all__ = [
    "BlockPool",
    "BlockTables",
    "Chunk",
    "ContiguousCache",
    "HostStore",
    "HostTier",
    "KVCache",
    "OutOfBlocks",
    "Pack",
    "PagedCache",
    "PrefixCache",
    "Recompute",
    "compress_block",
    "forward",
    "install",
    "position_limit",
    "remove",
    "restore",
    "token_bytes",
]
