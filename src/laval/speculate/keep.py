"""A trained draft on disk, beside the plug-in of its model: draft.safetensors."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from laval.files import atomic_folder
from laval.models import AdaptiveForCausalLM
from laval.models.plugin import short
from laval.models.weights import check_tensors, read_tensors
from laval.speculate.head import DRAFT, DraftHead


def save_draft(
    head: DraftHead, model: AdaptiveForCausalLM, folder: str | Path, dtype: torch.dtype = torch.bfloat16
) -> Path:
    """Write the head to draft.safetensors in `folder`, weights in `dtype`; other files there stay. Returns its path.

    ValueError for weights that are not finite, or that `dtype` cannot hold; OSError for a full disk.
    """
    whole = {name: tensor for name, tensor in head.state_dict().items() if name != "vocabulary"}
    tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in whole.items()}
    check_tensors(whole, tensors, "the draft, not saved")
    tensors["vocabulary"] = head.vocabulary.to("cpu", torch.int32)
    with atomic_folder(folder, bytes_needed=sum(tensor.nbytes for tensor in tensors.values())) as new:
        save_file(tensors, new / DRAFT, metadata={"format": "pt", "base": model.config.base_name or ""})
    return Path(folder) / DRAFT


def load_draft(model: AdaptiveForCausalLM, folder: str | Path) -> DraftHead:
    """The head in `folder`, in the dtype and on the device of `model`, for inference.

    ValueError that names the file for one that is missing, damaged, or made for another base.
    """
    path = Path(folder) / DRAFT
    tensors = read_tensors(path)
    with safe_open(path, "pt") as file:
        base = (file.metadata() or {}).get("base")
    name = model.config.base_name
    if base and name and short(base) != short(name):
        raise ValueError(f"{path} was made for {base}; the model is {name}: take the draft out, or train one for it")
    vocabulary = checked_vocabulary(tensors.pop("vocabulary", None), model.config.text_config.vocab_size, path)
    head = DraftHead(model.backbone, vocabulary)
    expected = {name: tensor for name, tensor in head.state_dict().items() if name != "vocabulary"}
    check_tensors(tensors, expected, path)
    head.load_state_dict(tensors, strict=False)
    return head.to(model.device, model.base.dtype).requires_grad_(False).eval()


def draft_beside(model: AdaptiveForCausalLM) -> DraftHead | None:
    """The head that lies beside the plug-in which `model` was loaded from, if there is one."""
    folder = getattr(model, "folder", None)
    return load_draft(model, folder) if folder is not None and (Path(folder) / DRAFT).is_file() else None


def checked_vocabulary(ids: torch.Tensor | None, size: int, path: Path) -> torch.Tensor:
    if ids is None or ids.dim() != 1 or ids.is_floating_point() or not len(ids):
        raise ValueError(f"{path}: vocabulary: expected one row of token ids")
    if ids.min() < 0 or ids.max() >= size:
        raise ValueError(f"{path}: vocabulary: expected ids from 0 to {size - 1}, found {int(ids.max())}")
    return ids.long()
