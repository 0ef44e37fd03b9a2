"""Measure what a weight mode costs in quality: KL divergence to fp32 and top-1 agreement, token by token.

The text is fed as it stands (teacher forcing); at every position the whole distribution of the next token is compared
with that of fp32 weights and an fp32 KV cache. Numbers are means over positions, KL in nats.

python benchmarks/quality.py      # default model, the text beside this file; gguf needs a GGUF model
python benchmarks/quality.py --model DIR --text FILE --tokens 1500 --save quality
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np

from hotseat.core.batch import Batch, Chunk, NewRequest
from hotseat.core.request import RequestId, SamplingParams
from hotseat.models import load
from hotseat.models.loaded import LoadedModel
from hotseat.runner import RunnerConfig
from hotseat.runner.native import NativeRunner
from hotseat.text import Tokenizer
from hotseat.wiring import default_cache_dir
from saving import add_option, save

HERE = Path(__file__).resolve().parent
BLOCK_SIZE = 16
GREEDY = SamplingParams(temperature=0.0)


class ForcedReader:
    """Read a text one token at a time and tell the logits after each."""

    def __init__(self, model: LoadedModel, dtype: str, token_ids: list[int]) -> None:
        num_blocks = len(token_ids) // BLOCK_SIZE + 1
        self._token_ids = token_ids
        self._block_ids = list(range(num_blocks))
        self._runner = NativeRunner(
            model.spec,
            model.weights,
            RunnerConfig(
                dtype=dtype,
                block_size=BLOCK_SIZE,
                num_kv_blocks=num_blocks,
                max_num_seqs=1,
                max_num_batched_tokens=1,
                max_model_len=len(token_ids) + 1,
            ),
        )

    def logits(self, position: int) -> np.ndarray:
        """Return float32[vocab_size] after token ``position``; call with 0, 1, 2 …"""
        # Seated anew with one token more each time: the blocks keep what was computed.
        request_id = RequestId(str(position))
        known = self._token_ids[: position + 1]
        seating = NewRequest(0, request_id, known, len(known), self._block_ids, GREEDY, 0, frozenset())
        chunk = Chunk(0, request_id, position, position + 1, samples=True)
        released = [RequestId(str(position - 1))]
        self._runner.execute(Batch(step=position, chunks=[chunk], new_requests=[seating], released_ids=released))
        return self._runner.last_logits()[0]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def compare(model: LoadedModel, token_ids: list[int], dtypes: list[str]) -> dict[str, dict[str, float]]:
    reference = ForcedReader(model, "fp32", token_ids)
    readers = {dtype: ForcedReader(model, dtype, token_ids) for dtype in dtypes}
    divergence: dict[str, list[float]] = {dtype: [] for dtype in dtypes}
    agreement: dict[str, list[bool]] = {dtype: [] for dtype in dtypes}
    for position in range(len(token_ids)):
        expected = log_softmax(reference.logits(position))
        for dtype, reader in readers.items():
            actual = log_softmax(reader.logits(position))
            divergence[dtype].append(float((np.exp(expected) * (expected - actual)).sum()))
            agreement[dtype].append(bool(expected.argmax() == actual.argmax()))
    return {
        dtype: {"kl": float(np.mean(divergence[dtype])), "top1": float(np.mean(agreement[dtype]))} for dtype in dtypes
    }


def load_tokenizer(model: LoadedModel) -> Tokenizer:
    source = model.tokenizer_source
    if source.kind == "gguf":
        return Tokenizer.from_gguf(source.metadata)
    assert source.path is not None
    return Tokenizer.from_file(source.path, source.config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="as for hotseat serve (default: the default model)")
    parser.add_argument("--text", type=Path, default=HERE / "english.txt")
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--dtypes", nargs="+", default=["int8", "bf16", "gguf"], choices=["int8", "bf16", "gguf"])
    add_option(parser)
    chosen = parser.parse_args()
    model = load(chosen.model, cache_dir=default_cache_dir(os.environ))
    token_ids = load_tokenizer(model).encode(chosen.text.read_text())[: chosen.tokens]
    results = compare(model, token_ids, chosen.dtypes)
    sys.stdout.write(f"{model.name}, {len(token_ids)} tokens of {chosen.text.name}, against fp32\n\n")
    sys.stdout.write("| weights | KL | top-1 |\n|---|---|---|\n")
    for dtype, row in results.items():
        sys.stdout.write(f"| {dtype} | {row['kl']:.4f} | {100 * row['top1']:.1f} % |\n")
    if chosen.save:
        save(chosen.save, chosen, model=model.name, num_tokens=len(token_ids), results=results)


if __name__ == "__main__":
    main()
