"""Compute batches: from token ids in seats to sampled token ids; owns the KV cache.

Must not know: who runs next and why, text, HTTP, event loops.
"""

from __future__ import annotations

from hotseat.runner.config import RunnerConfig, kv_bytes_per_block, resolve_dtype, resolve_kv_cache_dtype
from hotseat.runner.reference import ReferenceRunner

__all__ = ["ReferenceRunner", "RunnerConfig", "kv_bytes_per_block", "resolve_dtype", "resolve_kv_cache_dtype"]
