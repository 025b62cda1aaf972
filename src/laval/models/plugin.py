"""The trained extra weights alone: routers and adapters, the method, and which base model they belong to."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

import laval
from laval.files import atomic_folder, recover_folder
from laval.models.attach import attach
from laval.models.base import load_base
from laval.models.checks import check_adaptive, check_base_model
from laval.models.modeling import AdaptiveForCausalLM
from laval.models.record import FORMAT, RECORD, Record, Shape, check_budgets, check_saved, read_record
from laval.models.thresholds import taus_of
from laval.models.weights import check_tensors, read_tensors

WEIGHTS, CARD = "plugin.safetensors", "README.md"


def save_plugin(
    model: AdaptiveForCausalLM, folder: str | Path, dtype: torch.dtype | None = None, card: str | None = None
) -> None:
    """Write the policy of `model` to `folder`, without the base: laval.json, plugin.safetensors, README.md.

    dtype: of the weights on disk (None: as they are). card: Markdown for README.md (None: a short one is written).
    All or nothing: an older plug-in in `folder` stays until the new one is whole.
    Errors: ValueError for weights that `dtype` cannot hold, or a budget curve with a point that says nothing; OSError
    for a full disk; TypeError for a model that is not adaptive.
    """
    check_adaptive(model)
    tensors = {
        name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in model.policy.state_dict().items()
    }
    check_tensors(model.policy.state_dict(), tensors, "the policy, not saved")
    check_saved(model.config, model.policy)
    record = record_of(model, tensors)
    with atomic_folder(folder, bytes_needed=sum(tensor.nbytes for tensor in tensors.values())) as new:
        (new / RECORD).write_text(json.dumps(asdict(record), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        save_file(tensors, new / WEIGHTS, metadata={"format": "pt"})
        shutil.copymode(new / RECORD, new / WEIGHTS)  # it was written private
        (new / CARD).write_text(default_card(record) if card is None else card, encoding="utf-8")


def load_plugin(
    folder: str | Path,
    base: PreTrainedModel | None = None,
    any_base: bool = False,
    dtype: torch.dtype = torch.float32,
) -> AdaptiveForCausalLM:
    """The plug-in in `folder` on `base`, in the dtype and on the device of `base`.

    base: None fetches the model the plug-in was made for, in `dtype`, with its tokenizer. any_base: a base of another
    name will do, if the sizes agree. ValueError that names file and fix for a plug-in that is damaged, made for
    another base, or written by a newer laval, TypeError for a base that is no model; it is untouched then.
    """
    if base is not None:
        check_base_model(base)
    folder = Path(folder)
    recover_folder(folder)
    record, method = read_record(folder / RECORD)
    tensors = read_tensors(folder / WEIGHTS)
    tokenizer = getattr(base, "tokenizer", None)
    if base is None:
        base, tokenizer = load_base(named_base(record, folder), dtype)
    check_base(record, base, any_base, folder)
    text = base.config.get_text_config()
    policy = method.build(text).to(base.dtype)
    check_tensors(tensors, policy.state_dict(), folder / WEIGHTS)
    check_budgets(record, policy, text, folder / RECORD)
    model = attach(base, method)  # from here on nothing can fail: it freezes the base
    model.policy.load_state_dict(tensors)
    restore(model, record)
    model.tokenizer, model.folder = tokenizer, folder
    return model


def record_of(model: AdaptiveForCausalLM, tensors: dict[str, torch.Tensor]) -> Record:
    config = model.config
    dtypes = {str(tensor.dtype).split(".")[1] for tensor in tensors.values()}
    return Record(
        format=FORMAT,
        method=config.method,
        base_shape=Shape(**config.base_shape),
        base_name=config.base_name,
        taus=taus_of(model.policy),
        curve=config.curve,
        dtype=dtypes.pop() if len(dtypes) == 1 else None,
        laval=laval.__version__,
    )


def named_base(record: Record, folder: Path) -> str:
    if record.base_name is None:
        raise ValueError(f"{folder / RECORD}: names no base model (base_name); load it yourself and pass it as base=")
    return record.base_name


def check_base(record: Record, base: PreTrainedModel, any_base: bool, folder: Path) -> None:
    """ValueError unless the plug-in was made for a model of these sizes and, except for `any_base`, of this name."""
    stock = getattr(base, "base", base)
    text = stock.config.get_text_config()
    wrong = [
        f"{size} is {getattr(text, size, None)!r}, expected {wanted!r}"
        for size, wanted in asdict(record.base_shape).items()
        if getattr(text, size, None) != wanted
    ]
    if wrong:
        made_for = f" (made for {record.base_name})" if record.base_name else ""
        raise ValueError(f"base: the plug-in {folder}{made_for} does not fit: {'; '.join(wrong)}; load its own base")
    name = getattr(stock.config, "_name_or_path", "")
    if name and record.base_name and not any_base and short(name) != short(record.base_name):
        raise ValueError(
            f"base is {name}; the plug-in {folder} was made for {record.base_name}. Load that one, or pass "
            "any_base=True if this is the same model under another name"
        )


def short(name: str) -> str:
    """What two names of one model have in common: the last part, in lower case."""
    return name.rstrip("/\\").replace("\\", "/").rpartition("/")[2].lower()


def restore(model: AdaptiveForCausalLM, record: Record) -> None:
    """Thresholds and budget curve."""
    model.config.taus, model.config.curve = record.taus, record.curve
    if record.taus:
        model.policy.set_thresholds(record.taus)


def default_card(record: Record) -> str:
    """A model card with what the record says."""
    header = ["---", "library_name: laval", "tags: [laval, layer-skipping]"]
    if record.base_name:
        header.append(f"base_model: {json.dumps(record.base_name)}")
    fields = "\n".join(f"- {key}: {value}" for key, value in record.method.items())
    return "\n".join(header) + (
        f"\n---\n\nA laval plug-in: extra weights that let {record.base_name or 'its base model'} skip layers per "
        f'token.\n\n```python\nimport laval\nmodel = laval.load("FOLDER")\n```\n\nMethod:\n\n{fields}\n'
    )
