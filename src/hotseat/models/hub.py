"""Fetch a model from a Hugging Face hub into huggingface_hub's own cache.

``huggingface_hub`` itself honours HF_HOME, HF_TOKEN, HF_HUB_OFFLINE and HF_ENDPOINT. It is imported only here and only
when it is needed, since that takes longer than loading a small model.
"""

from __future__ import annotations

import glob
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hotseat.errors import ModelError, ModelNotFoundError
from hotseat.models.gguf_choice import choose_gguf, gguf_models
from hotseat.models.gguf_parts import part_names
from hotseat.models.hf import HF_FILES, read_config
from hotseat.models.hf_config import check_config

__all__ = ["fetch_from_hub"]

logger = logging.getLogger(__name__)


def fetch_from_hub(model_id: str, *, revision: str | None, token: str | None, offline: bool) -> Path:
    """Return the local directory of ``model_id``, or its GGUF file.

    ``owner/name:Q4_K_M`` is the GGUF file of that kind. ``owner/name`` is a Hugging Face model where there are
    safetensors, else a GGUF file of a sensible kind; the former is refused before its weights are fetched when it
    cannot be run.

    Raises ``ModelNotFoundError`` when the hub does not have it, does not show it, or cannot be reached.
    """
    repo_id, _, wanted = model_id.partition(":")
    repo = _Repo(repo_id=repo_id, revision=revision, token=token, offline=offline)
    names = None if offline else repo.listed()
    if names is None:
        repo = replace(repo, offline=True, is_out_of_reach=not offline)
        names = repo.cached()
    is_gguf = bool(wanted) or (gguf_models(names) and not any(name.endswith(".safetensors") for name in names))
    if is_gguf:
        chosen = choose_gguf(names, wanted or None, where=repo_id)
        if not wanted:
            logger.info("%s: using %s of its GGUF files (%s:KIND names another)", repo_id, chosen, repo_id)
        return repo.fetch(part_names(chosen)) / chosen
    directory = repo.fetch(["config.json"])
    try:
        check_config(read_config(directory))
    except ModelError as error:
        raise type(error)(f"{model_id}: {error}") from None
    return repo.fetch(HF_FILES, are_patterns=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repo:
    """One repository of the hub, at one revision."""

    repo_id: str
    revision: str | None
    token: str | None
    offline: bool
    is_out_of_reach: bool = False  # the hub was asked and did not answer

    def listed(self) -> list[str] | None:
        """Return the names of all files, or ``None`` when the hub cannot be reached."""
        from huggingface_hub import HfApi, errors

        try:
            with _explained(self.repo_id, self.revision):
                info = HfApi().model_info(self.repo_id, revision=self.revision, token=self.token)
        except ModelNotFoundError as error:
            sure = errors.RepositoryNotFoundError | errors.RevisionNotFoundError | errors.HFValidationError
            if isinstance(error.__cause__, sure):
                raise
            return None
        return [file.rfilename for file in info.siblings or ()]

    def cached(self) -> list[str]:
        """Return the names of those files that are in the cache."""
        directory = self.fetch([])
        return [str(path.relative_to(directory)) for path in sorted(directory.rglob("*")) if path.is_file()]

    def fetch(self, names: Sequence[str], *, are_patterns: bool = False) -> Path:
        """Return the directory of the repository's files, with those of ``names`` in it."""
        from huggingface_hub import snapshot_download

        with _explained(self.repo_id, self.revision, is_out_of_reach=self.is_out_of_reach):
            directory = snapshot_download(
                self.repo_id,
                revision=self.revision,
                token=self.token,
                local_files_only=self.offline,
                allow_patterns=[name if are_patterns else glob.escape(name) for name in names],
            )
        return Path(directory)


@contextmanager
def _explained(model_id: str, revision: str | None, *, is_out_of_reach: bool = False) -> Iterator[None]:
    """Turn what huggingface_hub raises into ``ModelNotFoundError`` in plain words."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise _not_found(model_id, "the hub asks for its licence to be accepted, and for a token (HF_TOKEN)") from error
    except errors.RepositoryNotFoundError as error:
        reason = "there is no such file or directory, and the hub has no such model or hides it (HF_TOKEN?)"
        raise _not_found(model_id, reason) from error
    except errors.RevisionNotFoundError as error:
        raise _not_found(model_id, f"the hub has no revision {revision!r} of it") from error
    except errors.HFValidationError as error:
        raise _not_found(model_id, "there is no such file or directory, and it is not a hub id either") from error
    except errors.LocalEntryNotFoundError as error:
        hub = "the hub is out of reach: is its name right, and is there a network?"
        if not is_out_of_reach:
            hub = "nothing is fetched (offline)"
        reason = f"there is no such file or directory, it is not (completely) in the hub's cache, and {hub}"
        raise _not_found(model_id, reason) from error
    except Exception as error:  # huggingface_hub lets errors of its HTTP library through, whichever that is
        raise _not_found(model_id, f"fetching it failed: {error}") from error


def _not_found(model_id: str, reason: str) -> ModelNotFoundError:
    return ModelNotFoundError(f"cannot get the model {model_id!r}: {reason}")
