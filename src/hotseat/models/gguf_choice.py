"""Choose one GGUF model among the files of a repository or directory: by its quantisation, or a sensible one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hotseat.errors import ModelNotFoundError
from hotseat.models.gguf_parts import is_later_part, model_name

__all__ = ["choose_gguf", "gguf_models"]

# The first of these that a repository has is used when none is named: small files of good quality come first.
_PREFERRED = (
    "Q4_K_M",
    "Q5_K_M",
    "Q4_0",
    "Q4_1",
    "Q4_K_S",
    "Q6_K",
    "Q5_K_S",
    "Q8_0",
    "Q5_1",
    "Q5_0",
    "BF16",
    "F16",
    "F32",
)
# Files that are no language models: projectors of images, statistics for quantising.
_NO_MODELS = re.compile(r"(.*/)?(imatrix[^/]*|[^/]*mmproj[^/]*)", re.IGNORECASE)
_NAMED_AT_MOST = 12


def gguf_models(names: Iterable[str]) -> list[str]:
    """Return those of ``names`` (with folders) that are GGUF models; of one in parts, the first part."""
    found = (name for name in names if name.endswith(".gguf") and not is_later_part(name))
    return sorted(name for name in found if not _NO_MODELS.fullmatch(name))


def choose_gguf(names: Iterable[str], wanted: str | None, *, where: str) -> str:
    """Return the model among ``names`` that ``wanted`` means: a kind as in ``Q4_K_M`` (in any case), or a file name.

    Without ``wanted`` it is the only one, or the first of a list of preferred kinds.

    Raises:
        ModelNotFoundError: there is none, or more than one; the message says which ``where`` has.
    """
    models = gguf_models(names)
    if not models:
        raise ModelNotFoundError(f"{where} has no GGUF file")
    if wanted is not None:
        return _only(_matching(models, wanted), models, f"for {wanted!r}", where)
    if len(models) == 1:
        return models[0]
    for kind in _PREFERRED:
        if matches := _matching(models, kind):
            return _only(matches, models, f"for {kind}", where)
    raise ModelNotFoundError(f"{where} has several GGUF files, of which one must be named: {_some(models)}")


def _matching(models: list[str], wanted: str) -> list[str]:
    if wanted in models:
        return [wanted]
    kind = re.compile(rf"(?:^|[-./])(ud-)?{re.escape(wanted)}(?:$|[-./])", re.IGNORECASE)
    found = {name: match for name in models if (match := kind.search(model_name(name)))}
    plain = [name for name, match in found.items() if match[1] is None]
    return plain or list(found)  # "Q4_K_XL" means UD-Q4_K_XL (kinds mixed by layer) only where there is no other


def _only(matches: list[str], models: list[str], which: str, where: str) -> str:
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ModelNotFoundError(
            f"{where} has several GGUF files {which}, of which one must be named: {_some(matches)}"
        )
    raise ModelNotFoundError(f"{where} has no GGUF file {which}; it has: {_some(models)}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED_AT_MOST]) + (" …" if len(names) > _NAMED_AT_MOST else "")
