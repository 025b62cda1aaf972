"""Stock models and their tokenizers: from a folder or from the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from laval.files import recover_folder
from laval.models import smollm2
from laval.models.weights import check_names, explained

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = ["*.json", "*.jinja", "*.txt", "tokenizer.model", "model*.safetensors", "plugin.safetensors"]
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
SAFE = {"local_files_only": True, "trust_remote_code": False}
ACCEPTED = (
    '"smollm2" (the default model with its plug-in), a plug-in folder (with laval.json), a model folder (with '
    "config.json), or a model on the Hugging Face hub (OWNER/NAME)"
)


def load_base(name: str | Path, dtype: torch.dtype = torch.float32):
    """The stock model `name` in eval mode, and its tokenizer (None without one). Errors: as `fetch_folder`."""
    folder = fetch_folder(name)
    return read_model(folder, dtype, str(name)), load_tokenizer(folder)


def fetch_folder(name: str | Path) -> Path:
    """The local folder `name`, or a model on the hub, fetched into the hub's cache: neither pickles nor code.

    ValueError that says what was looked for when there is no such thing.
    """
    path = Path(name).expanduser()
    recover_folder(path)
    if path.is_dir():
        return path
    if path.is_file():
        raise ValueError(f"{name}: expected a folder, found a file; name the folder it lies in")
    if str(name).lower() == smollm2.NAME.lower():
        return smollm2.smollm2_folder()
    if not HUB_NAME.fullmatch(str(name)):
        raise ValueError(f"{name}: there is no such folder. Accepted: {ACCEPTED}")
    return hub_folder(str(name))


def hub_folder(name: str) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # offline, refused, not there: the way out is the same
        raise ValueError(
            f"{name}: there is no such folder, and the Hugging Face hub did not give a model of that name "
            f"({type(error).__name__}). Accepted: {ACCEPTED}"
        ) from error


def read_model(folder: Path, dtype: torch.dtype, name: str) -> PreTrainedModel:
    """The stock causal language model in `folder`, from safetensors. ValueError for weights missing or damaged."""
    with smollm2.quiet(), explained(folder):
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, output_loading_info=True, **SAFE
        )
    check_names(report["missing_keys"], (), folder)
    model.config._name_or_path = name  # plug-ins find their base again by this name, not by a place in a cache
    return model.eval()


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer in `folder`, if there is one."""
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    return AutoTokenizer.from_pretrained(folder, **SAFE)
