"""Measure a model of Llama-3.2-1B's shape as GGUF files hold it: whole steps against the limit of memory.

The weights are random blocks, which take as long as real ones: a file of 1.24 billion weights is written once, with the
tensor types that llama.cpp's Q4_K_M gives to such a model, or with one type. With a build of llama.cpp its
`llama-bench` runs the same file in turns with `hotseat bench step`, so that both meet the same moments of the machine.

python benchmarks/one_billion.py --kind Q4_K_M --llama-bench llama.cpp/build/bin/llama-bench --save one-billion-q4_k_m
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from hotseat.models.dequantize import block_layout
from saving import add_option, save

KINDS = ("Q4_K_M", "Q8_0", "Q4_0", "Q6_K", "IQ4_XS", "Q4_K")
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2048, 8192, 16, 32, 8, 64, 128_256
# Where the fp16 scales of a block lie.
SCALES = {"Q8_0": (0,), "Q4_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,), "IQ4_XS": (0,)}


def random_blocks(kind: str, rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Return rows of random codes, uint8[rows, bytes a row], whose values are small."""
    values, num_bytes = block_layout(kind)
    blocks = rng.integers(0, 256, (rows * columns // values, num_bytes), dtype=np.uint8)
    for offset in SCALES[kind]:
        blocks[:, offset : offset + 2] = np.frombuffer(np.float16(1e-4).tobytes(), np.uint8)
    return blocks.reshape(rows, -1)


def more_bits(layer: int) -> bool:
    """Tell whether Q4_K_M gives a layer's v and down 6 bits."""
    return layer < LAYERS // 8 or layer >= 7 * LAYERS // 8 or (layer - LAYERS // 8) % 3 == 2


def matrices(kind: str) -> Iterator[tuple[str, str, int, int]]:
    """Yield name, type, rows and columns."""
    plain = "Q4_K" if kind == "Q4_K_M" else kind
    yield "token_embd.weight", "Q6_K" if kind == "Q4_K_M" else kind, VOCAB, HIDDEN
    for layer in range(LAYERS):
        rich = "Q6_K" if kind == "Q4_K_M" and more_bits(layer) else plain
        yield f"blk.{layer}.attn_q.weight", plain, HEADS * HEAD_DIM, HIDDEN
        yield f"blk.{layer}.attn_k.weight", plain, KV_HEADS * HEAD_DIM, HIDDEN
        yield f"blk.{layer}.attn_v.weight", rich, KV_HEADS * HEAD_DIM, HIDDEN
        yield f"blk.{layer}.attn_output.weight", plain, HIDDEN, HEADS * HEAD_DIM
        yield f"blk.{layer}.ffn_gate.weight", plain, INNER, HIDDEN
        yield f"blk.{layer}.ffn_up.weight", plain, INNER, HIDDEN
        yield f"blk.{layer}.ffn_down.weight", rich, HIDDEN, INNER


def write_model(path: Path, kind: str) -> None:
    """Write the file; its tokens are letters, so that both programs find a vocabulary."""
    writer = gguf.GGUFWriter(path, "llama", use_temp_file=True)
    writer.add_context_length(8192)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500_000.0)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([f"t{i}" for i in range(VOCAB)])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges(["t 1"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    rng = np.random.default_rng(0)
    for name, stored, rows, columns in matrices(kind):
        data = random_blocks(stored, rows, columns, rng)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[stored])
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(HIDDEN, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def hotseat_steps(model: Path, dtype: str, chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return what `hotseat bench step` writes."""
    path = folder / "step.json"
    command = [sys.executable, "-m", "hotseat", "bench", "step", "--model", str(model), "--dtype", dtype]
    command += ["--batch", "1,8", "--prefill", "512", "--num-rounds", "2", "--num-steps", "16"]
    command += ["--threads", str(chosen.threads), "--statistic", "best", "--json", str(path)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def llama_rates(model: Path, chosen: argparse.Namespace) -> dict[str, float]:
    """Return tokens per second of `llama-bench`: generation of one stream, a prompt of 512."""
    command = [str(chosen.llama_bench), "-m", str(model), "-p", "512", "-n", "48", "-r", "2", "-o", "json"]
    output = subprocess.run(
        [*command, "-t", str(chosen.threads)], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ).stdout
    return {f"{'pp' if row['n_prompt'] else 'tg'}": row["avg_ts"] for row in json.loads(output)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="Q4_K_M", choices=KINDS)
    parser.add_argument("--dtypes", nargs="+", default=["gguf", "int8"])
    parser.add_argument("--llama-bench", type=Path, help="of a build of llama.cpp: runs in turns")
    parser.add_argument("--model", type=Path, help="where the file is kept (default: it is written and deleted)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=2)
    add_option(parser)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = chosen.model or folder / f"one-billion-{chosen.kind}.gguf"
        if not model.exists():
            write_model(model, chosen.kind)
        rounds = []
        for _ in range(chosen.rounds):
            measured: dict[str, Any] = {dtype: hotseat_steps(model, dtype, chosen, folder) for dtype in chosen.dtypes}
            if chosen.llama_bench:
                measured["llama.cpp"] = llama_rates(model, chosen)
                sys.stdout.write(f"llama.cpp: {measured['llama.cpp']}\n")
            rounds.append(measured)
        if chosen.save:
            save(chosen.save, chosen, file_bytes=model.stat().st_size, rounds=rounds)


if __name__ == "__main__":
    main()
