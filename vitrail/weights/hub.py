"""Weights by name, through huggingface_hub: its cache, its offline mode, its settings."""

from __future__ import annotations

import contextlib
from pathlib import Path

from vitrail.errors import WeightsError, brief

FILES = ("model.safetensors", "pytorch_model.bin")


def fetch(name: str) -> Path:
    """The weight file of `ORGANISATION/NAME`, or of `NAME.TAG` among timm's; its config.json lands beside it."""
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
            # Offline, the older kind may still lie in the cache; online, the hub has said that the newer is not there.
            offline = isinstance(error, LocalEntryNotFoundError)
            path = hf_hub_download(repository, FILES[1], local_files_only=offline)
        with contextlib.suppress(RemoteEntryNotFoundError, LocalEntryNotFoundError):  # welcome, not needed
            hf_hub_download(repository, "config.json")
            hf_hub_download(repository, "preprocessor_config.json")
        return Path(path)
    except RemoteEntryNotFoundError:
        raise WeightsError(
            f"{repository} has no weights that Vitrail reads.", got=f"no {' and no '.join(FILES)}."
        ) from None
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise WeightsError(
            f"the hub has no weights called {name!r}.", got=brief(error), hint="vitrail models."
        ) from None
    except (OSError, ValueError) as error:  # no network, no route, a cache that lacks it, a server that fails
        raise WeightsError(
            f"{name} is no file here, {repository} is not in the local cache, and the hub cannot be reached.",
            got=f"{type(error).__name__}.",
            hint=(
                f"download {constants.ENDPOINT}/{repository}/resolve/main/{FILES[0]} where there is a network, "
                f"and pass its path instead of the name; or copy that machine's "
                f"models--{repository.replace('/', '--')} folder into {constants.HF_HUB_CACHE}."
            ),
        ) from None
