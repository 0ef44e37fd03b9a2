"""Mutated model files: what a hostile or broken download may hold, and what loading it may end in.

    PYTHONPATH=tests python tests/models/hostile_files.py --count 100000

Each file begins as a sound tiny model, written by ``tiny_models``. A GGUF file is changed in two ways: byte by byte in
its head, and as a structure, where a key gets a value of another type or a tensor another shape, kind or offset. A
safetensors file is changed in its header, and the JSON files of a directory in their values. Loading may succeed or end
in a ``ModelError``; another exception, much memory or much time is a defect.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import resource
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hotseat.errors import ModelError
from hotseat.models import load
from hotseat.models.gguf import GgufFile, read_gguf
from hotseat.text import Tokenizer
from tiny_models import write_tiny_gguf_model, write_tiny_hf_model

SLOW_S = 5.0  # far above what a file of these sizes takes, also on a machine that is busy with something else
GROWN_MIB = 256.0  # far above the 0.2 MiB of a file

DESCRIPTION: dict[str, Any] = {
    "num_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "num_kv_heads": 1,
    "vocab_size": 320,
}
ODD_NUMBERS = (0, 1, -1, 2, 3, 7, 31, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
ODD_FLOATS = (0.0, -0.0, 1e-40, 0.5, 1e38, -1.0, float("inf"), float("-inf"), float("nan"), 1e-300, 1e300)
ODD_TEXTS = ("", " ", "a", "llama", "gpt2", "\0", "é" * 9, "x y", "x" * 500, "{{", "yarn", "linear", "🙂")
ODD_JSON: tuple[Any, ...] = (
    *(None, True, False, "", "x", [], {}, [[]], {"a": {}}, [None], "yarn", "🙂" * 50, float("nan")),
    *(-1, 0, 1, 2, 0.5, 1e300, 10**30, [1, 2], 2**31, 2**63, [0, 2**70]),
    *({"rope_type": "yarn"}, {"rope_type": "llama3", "factor": 0}),
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": "x"},
)
BITS = {0: 8, 2: 16, 4: 32, 10: 64, 1: 8, 3: 16, 5: 32, 11: 64}
STRING, ARRAY = 8, 9

# Keys that a tiny file lacks and the loader asks for.
FURTHER_KEYS = (
    *("general.alignment", "llama.attention.scale", "llama.attention.causal", "llama.attention.sliding_window"),
    *("llama.rope.scaling.type", "llama.rope.scaling.factor", "llama.rope.scaling.original_context_length"),
    *("llama.rope.scaling.yarn_beta_fast", "llama.rope.scaling.attn_factor", "llama.expert_count", "split.count"),
    *("tokenizer.ggml.scores", "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.add_eos_token", "split.no"),
    *("tokenizer.ggml.eot_token_id", "tokenizer.ggml.add_space_prefix", "tokenizer.chat_template.tool_use"),
)


class Mutator:
    """Endless mutations of sound files; equal seeds give equal files."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._rng = random.Random(seed)
        self._directory = directory
        kinds = ("F32", "Q8_0", "BF16")
        paths = [write_tiny_gguf_model(directory / f"sound-{k}.gguf", kind=k, **DESCRIPTION) for k in kinds]
        self._ggufs = [(path.read_bytes(), read_gguf(path)) for path in paths]
        self._hf = write_tiny_hf_model(directory / "sound-hf", **DESCRIPTION)
        self._hf_texts = {path.name: path.read_bytes() for path in self._hf.iterdir()}

    def gguf_bytes(self) -> Path:
        """Change a few bytes of a GGUF file's head, cut it, or shift a part of it."""
        rng = self._rng
        content = bytearray(rng.choice(self._ggufs)[0])
        for _ in range(rng.choice((1, 1, 2, 4))):
            if not content:
                break
            at = rng.randrange(min(len(content), rng.choice((24, 400, 1500, 9000, 20000))))
            match rng.randrange(6):
                case 0:
                    content[at] = rng.randrange(256)
                case 1:
                    content[at : at + 8] = struct.pack("<Q", rng.choice(ODD_NUMBERS) % 2**64)
                case 2:
                    content[at : at + 4] = struct.pack("<I", rng.choice(ODD_NUMBERS) % 2**32)
                case 3:
                    del content[at : at + rng.randrange(1, 40)]
                case 4:
                    content[at:at] = rng.randbytes(rng.randrange(1, 40))
                case _:
                    content = content[: max(at, 1)]
        return self._write("bytes.gguf", bytes(content))

    def gguf_structure(self) -> Path:
        """Write a GGUF file anew with a few keys or tensors of other types, sizes and values."""
        rng = self._rng
        sound = rng.choice(self._ggufs)[1]
        metadata: dict[str, tuple[int, bytes]] = {key: encode_value(value) for key, value in sound.metadata.items()}
        if rng.random() < 0.3:  # the other kind of vocabulary
            metadata["tokenizer.ggml.model"] = encode_value("llama")
            metadata["tokenizer.ggml.scores"] = encode_value(-np.arange(DESCRIPTION["vocab_size"], dtype=float))
            del metadata["tokenizer.ggml.merges"]
        tensors = {
            name: [tuple(reversed(tensor.shape)), kind_number(tensor.kind), tensor.offset - data_start(sound)]
            for name, tensor in sound.tensors.items()
        }
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            if rng.random() < 0.75:
                key = rng.choice((*metadata, *FURTHER_KEYS))
                match rng.randrange(6):
                    case 0:
                        metadata.pop(key, None)
                    case 1 if isinstance(value := sound.metadata.get(key), np.ndarray | list):
                        metadata[key] = encode_value(self._changed_array(value))
                    case _:
                        metadata[key] = self._odd_value()
            else:
                self._change_tensor(tensors)
        return self._write("structure.gguf", assemble_gguf(metadata, tensors, sound))

    def safetensors_header(self) -> Path:
        """Change the header of a directory's weights."""
        content = self._hf_texts["model.safetensors"]
        length = int.from_bytes(content[:8], "little")
        header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
        rng = self._rng
        if rng.random() < 0.3:
            head = bytearray(content[8 : 8 + length])
            for _ in range(rng.choice((1, 3))):
                head[rng.randrange(len(head))] = rng.randrange(256)
        else:
            for _ in range(rng.choice((1, 1, 2))):
                header = self._changed_json(header)
            head = bytearray(json.dumps(header).encode())
        claimed = len(head) if rng.random() < 0.9 else rng.choice(ODD_NUMBERS) % 2**64
        data = data if rng.random() < 0.9 else data[: rng.randrange(len(data))]
        return self._write_directory("model.safetensors", claimed.to_bytes(8, "little") + bytes(head) + data)

    def json_file(self) -> Path:
        """Change a value in one of a directory's JSON files."""
        name = self._rng.choice(("config.json", "config.json", "generation_config.json", "tokenizer_config.json"))
        value = json.loads(self._hf_texts[name])
        for _ in range(self._rng.choice((1, 1, 2))):
            value = self._changed_json(value)
        return self._write_directory(name, json.dumps(value).encode())

    def _odd_value(self) -> tuple[int, bytes]:
        rng = self._rng
        match rng.randrange(8):
            case 0 | 1:
                kind = rng.choice(tuple(BITS))
                return kind, self._number(kind)
            case 2:
                return 12, struct.pack("<d", rng.choice(ODD_FLOATS))
            case 3:
                return 7, struct.pack("<?", rng.random() < 0.5)
            case 4:
                return STRING, text(rng.choice(ODD_TEXTS))
            case 5:
                words = [rng.choice(ODD_TEXTS) for _ in range(rng.choice((0, 1, 5, 400)))]
                return encode_value(words)
            case 6:
                kind, count = rng.choice(tuple(BITS)), rng.choice((0, 1, 2, 300))
                numbers = b"".join(self._number(kind) for _ in range(count))
                return ARRAY, struct.pack("<IQ", kind, count) + numbers
            case _:
                count = rng.choice((0, 1, 330))
                values = b"".join(struct.pack("<d", rng.choice(ODD_FLOATS)) for _ in range(count))
                return ARRAY, struct.pack("<IQ", 12, count) + values

    def _number(self, kind: int) -> bytes:
        bits = BITS[kind]
        return struct.pack("<Q", self._rng.choice(ODD_NUMBERS) % 2**bits)[: bits // 8]

    def _changed_array(self, value: np.ndarray | list[str]) -> np.ndarray | list[str]:
        rng = self._rng
        if isinstance(value, list):
            value = list(value)
            match rng.randrange(4):
                case 0 if value:
                    value[rng.randrange(len(value))] = rng.choice(ODD_TEXTS)
                case 1:
                    value = value[: rng.randrange(len(value) + 1)]
                case 2 if value:
                    value[rng.randrange(len(value))] = rng.choice(value)
                case _:
                    value = value + [rng.choice(ODD_TEXTS)] * rng.choice((1, 100))
            return value
        value = (value[: rng.randrange(len(value) + 1)] if rng.random() < 0.3 else value).copy()
        if len(value):
            value[rng.randrange(len(value))] = rng.choice((0, 1, 3, 6, 7, 100))
        return value

    def _change_tensor(self, tensors: dict[str, list[Any]]) -> None:
        rng = self._rng
        name = rng.choice(tuple(tensors) or ("",))
        match rng.randrange(6):
            case 0 if name:
                del tensors[name]
            case 1 if name:
                sizes = list(tensors[name][0]) or [1]
                sizes[rng.randrange(len(sizes))] = rng.choice(ODD_NUMBERS) % 2**64
                tensors[name][0] = tuple(sizes)
            case 2 if name:
                tensors[name][1] = rng.choice((0, 1, 2, 3, 6, 8, 14, 20, 30, 39, 2**32 - 1))
            case 3 if name:
                tensors[name][2] = rng.choice((*ODD_NUMBERS, 32, 64, 4096)) % 2**64
            case 4 if name:
                tensors[name][0] = rng.choice(((), (1,), (4, 4, 4), (2,) * 9, (0,), (32, 320, 1)))
            case _:
                tensors[rng.choice(ODD_TEXTS)] = [(32,), 0, 0]

    def _changed_json(self, value: Any) -> Any:
        """Return ``value`` with one of its parts, at any depth, replaced, removed or added."""
        rng, value = self._rng, copy.deepcopy(value)
        odd = rng.choice(ODD_JSON)
        place = value
        while isinstance(place, dict | list) and place:
            key: Any = rng.choice(tuple(place)) if isinstance(place, dict) else rng.randrange(len(place))
            if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.7:
                place = place[key]
                continue
            if rng.random() < 0.15:
                del place[key]
            elif rng.random() < 0.1 and isinstance(place, dict):
                place[rng.choice((*ODD_TEXTS, "rope_parameters", "layer_types", "quantization_config"))] = odd
            else:
                place[key] = odd
            return value
        return odd

    def _write(self, name: str, content: bytes) -> Path:
        path = self._directory / name
        path.unlink(missing_ok=True)  # an earlier one may still be mapped
        path.write_bytes(content)
        return path

    def _write_directory(self, changed: str, content: bytes) -> Path:
        directory = self._directory / "hf"
        directory.mkdir(exist_ok=True)
        for name, sound in self._hf_texts.items():
            path = directory / name
            path.unlink(missing_ok=True)
            path.write_bytes(content if name == changed else sound)
        return directory


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def encode_value(value: Any) -> tuple[int, bytes]:
    """Return a metadata value's type and bytes, with the widest type of its kind."""
    if isinstance(value, str):
        return STRING, text(value)
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return (11, struct.pack("<q", value)) if value < 0 else (10, struct.pack("<Q", value))
    if isinstance(value, float):
        return 12, struct.pack("<d", value)
    if isinstance(value, list):
        return ARRAY, struct.pack("<IQ", STRING, len(value)) + b"".join(map(text, value))
    kind = {"i": 11, "u": 10, "f": 12, "b": 7}[value.dtype.kind]
    wide = value.astype({11: "<i8", 10: "<u8", 12: "<f8", 7: "?"}[kind])
    return ARRAY, struct.pack("<IQ", kind, len(value)) + wide.tobytes()


def kind_number(kind: str) -> int:
    return {"F32": 0, "F16": 1, "Q8_0": 8, "BF16": 30}[kind]


def data_start(file: GgufFile) -> int:
    return min(tensor.offset for tensor in file.tensors.values())


def assemble_gguf(metadata: dict[str, tuple[int, bytes]], tensors: dict[str, list[Any]], sound: GgufFile) -> bytes:
    """Return a GGUF file of these pairs and tensors, with the data of ``sound``."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, (kind, value) in metadata.items():
        head += text(key) + struct.pack("<I", kind) + value
    for name, (sizes, kind, offset) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)
    return head + b"\0" * (-len(head) % 32) + sound.parts[0][data_start(sound) :]


def use(path: Path) -> None:
    """Load a model and its tokenizer as ``hotseat serve`` does, and read its values."""
    model = load(str(path))
    for weight in model.weights.values():
        with np.errstate(all="ignore"):
            weight.dequantize()
    source = model.tokenizer_source
    if source.kind == "gguf":
        tokenizer = Tokenizer.from_gguf(source.metadata)
    else:
        tokenizer = Tokenizer.from_file(source.path, source.config)
    tokenizer.decode(tokenizer.encode("A hot seat is never cold.")[:1000])


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def outcome(path: Path) -> str:
    """Return ``loaded`` or ``refused``, or what is wrong with the way in which loading ended."""
    began_at, before = time.process_time(), resident_mib()
    try:
        use(path)
        result = "loaded"
    except ModelError:
        result = "refused"
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the tokenizers library is no Exception
        import traceback

        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {str(error)[:200]}"
    if (took_s := time.process_time() - began_at) > SLOW_S:
        return f"took {took_s:.1f} s"
    if (grown := resident_mib() - before) > GROWN_MIB:
        return f"took {grown:.0f} MiB"
    return result


def run(count: int, seed: int, directory: Path, report: Callable[[str, Path], None]) -> Counter[str]:
    """Try ``count`` files and count how they ended; ``report`` is told of each that ended wrongly."""
    mutator, ends = Mutator(directory, seed), Counter[str]()
    kinds = (mutator.gguf_bytes, mutator.gguf_structure, mutator.safetensors_header, mutator.json_file)
    for i in range(count):
        path = kinds[i % len(kinds)]()
        ended = outcome(path)
        ends[ended] += 1
        if ended not in ("loaded", "refused"):
            report(ended, path)
    return ends


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        ends = run(chosen.count, chosen.seed, Path(scratch), lambda ended, path: None)
    for ended, times in ends.most_common():
        sys.stdout.write(f"{times:8}  {ended}\n")
    return 1 if set(ends) - {"loaded", "refused"} else 0


if __name__ == "__main__":
    sys.exit(main())
