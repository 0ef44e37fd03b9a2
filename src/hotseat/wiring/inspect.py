"""A description of a model before it is served: its kind, its memory, the reasons for which it is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hotseat.core.config import default_token_budget
from hotseat.errors import HotseatError, ModelError
from hotseat.models import DecoderSpec, Inspection, LoadedModel, inspect_model, slot_shapes
from hotseat.runner.config import DTYPES, kv_bytes_per_block, kv_layout_of, resolve_kv_cache_dtype
from hotseat.text import ChatTemplate, turn_end_ids
from hotseat.wiring.components import read_tokenizer
from hotseat.wiring.engine_args import ModelOptions, weight_bytes

__all__ = ["inspect"]

_TOOL = {"type": "function", "function": {"name": "probe_tool", "description": "d", "parameters": {"type": "object"}}}


def inspect(chosen: ModelOptions) -> str:
    """Describe a model, one line for each property, without loading its weights.

    Raises:
        ModelError: it is not on this machine, or its files are not sound.
    """
    found = inspect_model(chosen.model, cache_dir=chosen.cache_dir, revision=chosen.revision, token=chosen.hf_token)
    lines = [*_files(found)]
    if found.model is None:
        lines.append(("refused", found.refusal or ""))
    else:
        lines += [*_shape(found.model.spec), *_memory(found.model.spec), *_text(found.model)]
    width = max(len(name) for name, _ in lines)
    return "".join(f"{name:<{width}}  {value}\n" for name, value in lines)


def _files(found: Inspection) -> Iterator[tuple[str, str]]:
    if found.model is not None:
        yield "model", found.model.name
    yield "files", f"{found.path} ({found.file_format})"
    yield "architecture", str(found.architecture)
    yield "parameters", f"{found.num_parameters:,}"
    for total in found.kinds:
        size = "not supported" if total.num_bytes is None else _mib(total.num_bytes)
        yield f"tensors in {total.kind}", f"{total.num_tensors}, {size}"


def _shape(spec: DecoderSpec) -> Iterator[tuple[str, str]]:
    yield "layers", f"{spec.num_layers} of width {spec.hidden_size:,}"
    yield "heads", f"{spec.num_heads} and {spec.num_kv_heads} for keys and values, of size {spec.head_dim}"
    windows = [layer.window for layer in spec.layers if layer.window is not None]
    if windows:
        yield "windows", f"{len(windows)} of {spec.num_layers} layers see {max(windows):,} tokens"
    if spec.experts is not None:
        count, per_token = spec.experts.count, spec.experts.per_token
        yield "experts", f"{per_token} of {count} for each token: {_num_active(spec):,} parameters are active"
    yield "vocabulary", f"{spec.vocab_size:,} tokens"
    yield "context", f"{spec.max_position_embeddings:,} tokens"


def _num_active(spec: DecoderSpec) -> int:
    """Return the parameters that one token is computed with; of the embedding it is its row."""
    experts = spec.experts
    part = 1.0 if experts is None else experts.per_token / experts.count
    sizes = {slot: math.prod(shape) for slot, shape in slot_shapes(spec).items()}
    if not spec.tie_word_embeddings:
        sizes["token_embedding"] = spec.hidden_size
    return round(sum(size * (part if ".experts." in slot else 1) for slot, size in sizes.items()))


def _memory(spec: DecoderSpec) -> Iterator[tuple[str, str]]:
    for dtype in DTYPES:
        if dtype != "auto":
            kv_dtype = resolve_kv_cache_dtype(dtype, "auto")
            length, max_chunk = spec.max_position_embeddings, default_token_budget(1)
            layout = kv_layout_of(spec, length)
            block = kv_bytes_per_block(spec, kv_dtype, 1, layout)
            token = block * layout.num_full
            whole = block * layout.num_blocks(length, 1, max_chunk)
            windows = block * layout.num_window * (layout.most_held(max_chunk, 1) if layout.num_window else 0)
            yield (
                f"memory in {dtype}",
                f"about {_mib(weight_bytes(spec, dtype))} for weights; KV cache in {kv_dtype}: "
                f"{token / 1024:,.1f} KiB for each token, {_mib(whole)} for a whole context"
                + (f" ({_mib(windows)} of it for windows)" if windows else ""),
            )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"


def _text(model: LoadedModel) -> Iterator[tuple[str, str]]:
    try:
        tokenizer = read_tokenizer(model)
    except ModelError as error:
        yield "tokenizer", f"refused: {error}"
        return
    yield "tokenizer", f"{model.tokenizer_source.kind}, {tokenizer.vocab_size:,} tokens"
    try:
        template = ChatTemplate(model.chat_template, special_tokens=tokenizer.special_tokens)
        has_tools = _has_tools(template) if model.chat_template else False
    except HotseatError as error:
        yield "chat template", f"refused: {error}"
        return
    ends = sorted(turn_end_ids(tokenizer, template).union(model.generation_config.eos_token_ids))
    yield "answers end at", ", ".join(tokenizer.token_text(token_id) for token_id in ends) or "no token"
    yield "chat template", "yes" if model.chat_template else "none: the model cannot chat"
    yield "tools", "yes" if has_tools else "no: the chat template does not write them"


def _has_tools(template: ChatTemplate) -> bool:
    return "probe_tool" in template.render([{"role": "user", "content": "x"}], tools=[_TOOL])
