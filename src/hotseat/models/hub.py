"""Fetch a model from a Hugging Face hub into huggingface_hub's own cache.

``huggingface_hub`` itself honours HF_HOME, HF_TOKEN, HF_HUB_OFFLINE and HF_ENDPOINT. It is imported only here and only
when it is needed, since that takes longer than loading a small model.
"""

from __future__ import annotations

from pathlib import Path

from hotseat.errors import ModelError, ModelNotFoundError
from hotseat.models.hf import HF_FILES, read_config
from hotseat.models.hf_llama import spec_from_config

__all__ = ["fetch_from_hub"]


def fetch_from_hub(model_id: str, *, revision: str | None, token: str | None, offline: bool) -> Path:
    """Return the local directory of ``model_id``; a model that cannot be run is refused before its weights are fetched.

    Raises ``ModelNotFoundError`` when the hub does not have it, does not show it, or cannot be reached.
    """
    directory = _snapshot(model_id, ("config.json",), revision=revision, token=token, offline=offline)
    try:
        spec_from_config(read_config(directory))
    except ModelError as error:
        raise type(error)(f"{model_id}: {error}") from None
    return _snapshot(model_id, HF_FILES, revision=revision, token=token, offline=offline)


def _snapshot(model_id: str, files: tuple[str, ...], *, revision: str | None, token: str | None, offline: bool) -> Path:
    from huggingface_hub import errors, snapshot_download

    try:
        directory = snapshot_download(
            model_id, revision=revision, token=token, local_files_only=offline, allow_patterns=list(files)
        )
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
        reason = (
            "there is no such file or directory, it is not (completely) in the hub's cache, and the hub is off "
            "(offline mode) or out of reach"
        )
        raise _not_found(model_id, reason) from error
    except Exception as error:  # huggingface_hub lets errors of its HTTP library through, whichever that is
        raise _not_found(model_id, f"fetching it failed: {error}") from error
    return Path(directory)


def _not_found(model_id: str, reason: str) -> ModelNotFoundError:
    return ModelNotFoundError(f"cannot get the model {model_id!r}: {reason}")
