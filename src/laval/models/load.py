"""One door for everything that can be loaded."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import torch
from transformers import PreTrainedModel

from laval.models.attach import attach
from laval.models.base import ACCEPTED, fetch_folder, load_tokenizer, read_model
from laval.models.configuration import AdaptiveConfig
from laval.models.learned import known
from laval.models.modeling import AdaptiveForCausalLM
from laval.models.plugin import load_plugin
from laval.models.quantise import quantise
from laval.models.record import RECORD
from laval.models.released import MODEL_TYPE, load_released
from laval.models.shortened import ShortenedForCausalLM
from laval.models.shortened_config import ShortenedConfig
from laval.models.smollm2 import quiet
from laval.models.weights import explained, read_json
from laval.skip import DropLayers

DEFAULT, SHIPPED = "smollm2", "smollm2-135m-instruct"
WEIGHTS = (None, "int8")


def load(
    name_or_folder: str | Path,
    base: PreTrainedModel | None = None,
    dtype: torch.dtype = torch.float32,
    weights: str | None = None,
) -> AdaptiveForCausalLM | ShortenedForCausalLM:
    """An adaptive or shortened model in eval mode, with `.tokenizer` where there is one.

    name_or_folder: "smollm2" (the default model with its shipped plug-in), a plug-in, a whole adaptive or shortened
    model, the released FlexiDepth layout, or a stock model of a known family (which skips nothing); a folder, or
    OWNER/NAME on the hub. base: for plug-ins only, instead of the one they name. weights: "int8" to `quantise` them
    (inference only), None to leave them in dtype. Where this machine has learned a break-even rule for the model, it
    is in force.
    ValueError that says what was looked for.
    """
    if weights not in WEIGHTS:
        raise ValueError(f'weights is {weights!r}; expected "int8"; leave it out to keep them as they are')
    model = load_any(name_or_folder, base, dtype)
    model = model if weights is None else quantise(model)
    if isinstance(model, AdaptiveForCausalLM):
        model.break_even = known(model)
    return model


def load_any(name_or_folder: str | Path, base: PreTrainedModel | None, dtype: torch.dtype) -> AdaptiveForCausalLM:
    """What `load` loads, in dtype."""
    if str(name_or_folder) == DEFAULT:
        return load_plugin(shipped_folder(), base, dtype=dtype)
    folder = fetch_folder(name_or_folder)
    if (folder / RECORD).is_file():
        return load_plugin(folder, base, dtype=dtype)
    if base is not None:
        raise ValueError(f"base: only plug-ins take one, and {folder} has no {RECORD}; leave base out")
    model = read_folder(folder, dtype, str(name_or_folder))
    model.tokenizer = load_tokenizer(folder)
    return model


def shipped_folder() -> Path:
    """The plug-in that comes with the package. ValueError when this copy of the package has none."""
    folder = Path(str(files("laval") / "plugins" / SHIPPED))
    if not (folder / RECORD).is_file():
        raise ValueError(
            f"{DEFAULT}: this copy of laval has no plug-in for it (expected {folder}). Train one with: laval train "
            "RECIPE.yaml (recipes/smollm2-flexidepth.yaml in the repository), and load the folder it names"
        )
    return folder


def read_folder(folder: Path, dtype: torch.dtype, name: str) -> AdaptiveForCausalLM:
    """The model in `folder`, of the kind that the model_type in its config.json says."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{name}: {folder} has neither {RECORD} nor config.json. Accepted: {ACCEPTED}")
    kind = read_json(folder / "config.json").get("model_type")
    if kind == AdaptiveConfig.model_type:
        return load_whole(folder, dtype)
    if kind == ShortenedConfig.model_type:
        return load_whole(folder, dtype, ShortenedForCausalLM)
    if kind == MODEL_TYPE:
        return load_released(folder, dtype)
    return attach(read_model(folder, dtype, name), DropLayers(()))


def load_whole(folder: Path, dtype: torch.dtype, kind: type[PreTrainedModel] = AdaptiveForCausalLM):
    """A model of a kind saved with `save_pretrained`, base included."""
    with quiet(), explained(folder):
        return kind.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()
