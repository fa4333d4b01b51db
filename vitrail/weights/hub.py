"""Weights by name from the Hugging Face hub, with huggingface_hub's cache, offline mode and settings."""

from __future__ import annotations

import contextlib
from pathlib import Path

from vitrail.errors import WeightsError, brief

FILES = ("model.safetensors", "pytorch_model.bin")


def fetch(name: str) -> Path:
    """The weight file of `ORGANISATION/NAME`, or of timm's `NAME.TAG`; its config.json is downloaded next to it."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import (
        HFValidationError,
        LocalEntryNotFoundError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
    )

    repository = name if "/" in name else f"timm/{name}"
    try:
        try:
            path = hf_hub_download(repository, FILES[0])
        except (RemoteEntryNotFoundError, LocalEntryNotFoundError) as error:
            # Offline, the older file may still be cached; online, the hub has said that it has no newer one.
            offline = isinstance(error, LocalEntryNotFoundError)
            path = hf_hub_download(repository, FILES[1], local_files_only=offline)
        with contextlib.suppress(RemoteEntryNotFoundError, LocalEntryNotFoundError):  # optional
            hf_hub_download(repository, "config.json")
            hf_hub_download(repository, "preprocessor_config.json")
        return Path(path)
    except RemoteEntryNotFoundError:
        raise WeightsError(
            f"{repository} has no weights that Vitrail can read.", got=f"neither {' nor '.join(FILES)}."
        ) from None
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise WeightsError(
            f"the hub has no weights called {name!r}.", got=brief(error), hint="a name that vitrail models lists."
        ) from None
    except (OSError, ValueError) as error:  # no network, not cached, or a server error
        raise WeightsError(
            f"{name} is not a local file, {repository} is not in the local cache, and the hub cannot be reached.",
            got=f"{type(error).__name__}.",
            hint=(
                f"downloading {constants.ENDPOINT}/{repository}/resolve/main/{FILES[0]} on a machine with a network "
                f"and passing its path instead of the name, or copying that machine's "
                f"models--{repository.replace('/', '--')} folder into {constants.HF_HUB_CACHE}."
            ),
        ) from None
