"""Find a model's files: embedded, a local folder, or the Hugging Face hub with its local cache."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import httpx
import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from labkit import paths
from labkit.errors import LabkitError
from labkit.models.presets import PRESETS

EMBEDDED = ("labcoder", "labcoder-draft")
NAMES = (*EMBEDDED, *(f"labcoder@{preset}" for preset in PRESETS), "auto")

SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
OTHER_FORMATS = ("original/*", "consolidated*", "onnx/*")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

NO_NETWORK = (LocalEntryNotFoundError, OfflineModeIsEnabled, httpx.TransportError)

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def config_folder(name: str) -> Path:
    """A folder with the configuration and tokenizer of `name`; its weights may still be on the hub.

    Raises:
        LabkitError: an unknown name (with the nearest known ones), or no network.
    """
    if name in EMBEDDED:
        folder = paths.data() / name
        if not (folder / "config.json").is_file():
            raise LabkitError(
                f"The embedded model {name} is missing from {folder}.",
                "It is part of the repository: restore data/ from a fresh clone.",
            )
        return folder
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise LabkitError(
                f"The folder {name} has no config.json.", "Give the folder that save_pretrained wrote."
            )
        return folder.resolve()
    if looks_local(name):
        raise LabkitError(f"There is no folder {name}.", f"Embedded models: {', '.join(NAMES)}.")
    if not HUB_ID.fullmatch(name) or name.startswith("labcoder") or ("/" not in name and nearest(name)):
        raise unknown(name)
    return _from_hub(name, list(SMALL_FILES))


def weights_folder(name: str, folder: Path) -> Path:
    """The folder once it holds safetensors weights too.

    Args:
        folder: what `config_folder(name)` gave.

    Raises:
        LabkitError: only pickled weights, no weights, or no network to fetch them.
    """
    remote = name not in EMBEDDED and not Path(name).expanduser().is_dir()
    if remote:
        folder = _from_hub(name, [*SMALL_FILES, "*.safetensors"])
    if any(folder.glob("*.safetensors")):
        return folder
    names = _hub_files(name) if remote else [path.name for path in folder.iterdir()]
    pickled = sorted(file for file in names if file.endswith(PICKLES))
    if pickled:
        raise LabkitError(
            f"{name} has its weights only as a pickle ({pickled[0]}), which can run any code when opened.",
            "labkit reads safetensors only. If you trust its author, convert it once: load it with "
            "from_pretrained(use_safetensors=False), call save_pretrained, and give that folder here.",
        )
    raise LabkitError(
        f"{name} has no safetensors weights.", "Give a checkpoint with model.safetensors (or its shards)."
    )


def looks_local(name: str) -> bool:
    """Whether a name that is not a folder was clearly meant to be one."""
    return name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1


def nearest(name: str) -> list[str]:
    """Known names close to `name`."""
    return difflib.get_close_matches(name.lower(), NAMES, n=3, cutoff=0.6)


def unknown(name: str) -> LabkitError:
    """The error for a name that means nothing, with suggestions."""
    close = nearest(name)
    hint = f"Did you mean {' or '.join(close)}? " if close else ""
    return LabkitError(
        f"There is no model called {name!r}.",
        f"{hint}Embedded: {', '.join(NAMES)}; or give a local folder or a hub id such as Qwen/Qwen3-0.6B.",
    )


def _from_hub(name: str, patterns: list[str]) -> Path:
    try:
        found = huggingface_hub.snapshot_download(
            name, allow_patterns=patterns, ignore_patterns=list(OTHER_FORMATS)
        )
    except NO_NETWORK as error:
        raise LabkitError(
            f"{name} is not on this machine and the Hugging Face hub cannot be reached.",
            f"Without a network these work: {', '.join(NAMES)}; or give a local folder.",
        ) from error
    except GatedRepoError as error:
        raise LabkitError(
            f"{name} asks for its licence to be accepted first.",
            f"Accept it at huggingface.co/{name} and log in with `hf auth login`, or use an open model.",
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise unknown(name) from error
    except HfHubHTTPError as error:
        raise LabkitError(f"The hub refused {name}: {error}.", "Try again later, or use labcoder.") from error
    folder = Path(found)
    if not (folder / "config.json").is_file():
        raise LabkitError(f"{name} has no config.json.", "Give a model that transformers can load.")
    return folder


def _hub_files(name: str) -> list[str]:
    try:
        return list(huggingface_hub.list_repo_files(name))
    except (HfHubHTTPError, *NO_NETWORK) as error:
        raise LabkitError(
            f"The weights of {name} are not on this machine and the Hugging Face hub cannot be reached.",
            f"Without a network these work: {', '.join(NAMES)}; or give a local folder.",
        ) from error
