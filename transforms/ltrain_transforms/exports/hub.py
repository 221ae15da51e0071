"""`ltrain push`: a folder of `ltrain convert --to hf` to a hub, with Hugging Face's own client."""

import os
from pathlib import Path

from ltrain_instrument.errors import LtrainError, MissingExtra
from ltrain_transforms.exports.hf import CARD, TAG

TOKEN, ENDPOINT = "HF_TOKEN", "HF_ENDPOINT"
"""The client's own variables: the key, and the address of a hub other than huggingface.co."""


class BadPush(LtrainError, OSError):
    """A folder that cannot be pushed."""


def push_folder(folder: Path, repository: str, *, public: bool) -> str:
    """Push a folder to a repository of data, which is created if there is none; return its URL.

    Args:
        public: whether everybody may read it. Without it, a public repository is refused.

    Raises:
        BadPush: the folder is not of `ltrain convert --to hf`, there is no token, the repository
            is public, or the hub refuses.
        MissingExtra: huggingface_hub is not installed.
    """
    token = _check(folder)
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError as error:
        raise MissingExtra("ltrain push", "huggingface_hub", "train") from error
    hub = HfApi(os.environ.get(ENDPOINT), token, library_name="ltrain")
    try:
        url = hub.create_repo(repository, private=not public, repo_type="dataset", exist_ok=True)
        if not public and not hub.dataset_info(url.repo_id).private:
            raise BadPush(f"{url} is public. Pass --public, or name another repository.")
        hub.upload_folder(
            repo_id=url.repo_id,
            folder_path=folder,
            repo_type="dataset",
            commit_message=f"ltrain push {folder.name}",
        )
    except HFValidationError as error:
        raise BadPush(f"'{repository}' is not the name of a repository: {error}") from error
    except (HfHubHTTPError, OSError) as error:
        if isinstance(error, BadPush):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise BadPush(
            f"The hub did not take {folder}: {reason} Check {TOKEN}, which needs the right to "
            f"write to {repository}."
        ) from error
    return str(url)


def _check(folder: Path) -> str:
    """Return the token for a folder that can be pushed."""
    card = folder / CARD
    if not card.is_file() or f"tags: [{TAG}" not in card.read_text():
        raise BadPush(
            f"{folder} was not made by `ltrain convert --to hf`. Make one: ltrain convert DATASET "
            "--to hf --out FOLDER."
        )
    if not (token := os.environ.get(TOKEN)):
        raise BadPush(f"{TOKEN} is not set. Set it to a token of the hub that may write.")
    return token
