"""From a model and a text to a Trace: one forward, or a generation with the routes it really took."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from laval import compat
from laval.models import AdaptiveForCausalLM, recording, skipping
from laval.models.checks import check_adaptive
from laval.models.thresholds import taus_of
from laval.report.pieces import token_pieces
from laval.report.trace import Trace
from laval.runtime import Recording


@dataclass(frozen=True, eq=False)
class Generation:
    """What was generated: ids [B, prompt + new] with the prompt, the new text of each row, and the trace of it all."""

    ids: torch.Tensor
    texts: list[str]
    trace: Trace


def trace(
    model: AdaptiveForCausalLM,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    new_from: list[int] | None = None,
) -> Trace:
    """The layers that run for each token of input_ids [B, T] in one forward, as the model stands.

    attention_mask [B, T]: 0 at pads, which are left out. new_from: for each row where generated text starts.
    ValueError for ids that are not [B, T], or no tokens at all; TypeError for a model that is not adaptive.
    """
    check_adaptive(model)
    ids = checked(input_ids).to(model.device)
    mask = torch.ones_like(ids) if attention_mask is None else attention_mask.to(ids)
    positions = (mask.cumsum(1) - 1).clamp(min=0)  # pads on the left do not count
    with watching(model) as record:
        model(ids, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=1)
    return made_of(model, record, ids, mask.bool().cpu(), new_from)


def trace_generation(
    model: AdaptiveForCausalLM, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **options
) -> Generation:
    """Generate after prompts input_ids [B, T] with `options` of `generate`; routes are those taken, step by step.

    The last token is read too, in a step of its own, so that every token has its depth.
    ValueError for beams or several answers per prompt, where rows change places; TypeError as `trace`.
    """
    check_adaptive(model)
    ids = checked(input_ids).to(model.device)
    mask = torch.ones_like(ids) if attention_mask is None else attention_mask.to(ids)
    check_rows(model, options)
    with watching(model) as record:
        made = model.generate(ids, attention_mask=mask, return_dict_in_generate=True, use_cache=True, **options)
        full, start = made.sequences, ids.shape[1]
        valid = torch.cat([mask.bool(), until_end(full[:, start:], stop_tokens(model, options))], dim=1)  # [B, T + N]
        closing_step(model, full, valid, compat.output_cache(made))
    return Generation(
        ids=full,
        texts=[text_of(model, row[start:][kept[start:]]) for row, kept in zip(full, valid, strict=True)],
        trace=made_of(model, record, full, valid.cpu(), [start] * len(full)),
    )


@contextmanager
def watching(model: AdaptiveForCausalLM) -> Iterator[Recording]:
    """Inside, forwards are recorded, in eval mode, without gradients, and with no break-even rule to hide routes."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), skipping(model), recording(model) as record:
            yield record
    finally:
        model.train(training)


def closing_step(model, ids: torch.Tensor, valid: torch.Tensor, cache) -> None:
    position = valid.sum(1, keepdim=True) - 1
    model(ids[:, -1:], attention_mask=valid.long(), position_ids=position, **compat.cache_argument(cache))


def made_of(model, record: Recording, ids: torch.Tensor, valid: torch.Tensor, new_from) -> Trace:
    gate = record.gate
    return Trace(
        tokens=[pieces_of(model, row) for row in ids.tolist()],
        run=record.run,
        valid=valid,
        gate=None if gate.isnan().all() else gate,
        tau=taus_by_layer(model),
        new_from=new_from,
        facts=facts_of(model),
    )


def pieces_of(model, ids: list[int]) -> list[str]:
    return [str(i) for i in ids] if model.tokenizer is None else token_pieces(model.tokenizer, ids)


def text_of(model, ids: torch.Tensor) -> str:
    if model.tokenizer is None:
        return " ".join(map(str, ids.tolist()))
    return model.tokenizer.decode(ids, skip_special_tokens=True)


def taus_by_layer(model) -> torch.Tensor:
    """One threshold per layer, float64 [L]; what stands at layers without a router is not looked at."""
    taus = torch.full((len(model.backbone.blocks),), 0.5, dtype=torch.float64)
    for layer, tau in zip(model.policy.layers, taus_of(model.policy), strict=False):
        taus[layer] = tau
    return taus


def facts_of(model) -> dict[str, str]:
    """What a report says beside its numbers."""
    import laval

    config, method = model.config, dict(model.config.method)
    layers, routed = len(model.backbone.blocks), model.policy.layers
    facts = {"Model": config.base_name or config.text_config.model_type, "Method": method.get("name", "none")}
    facts["Routed layers"] = f"{', '.join(map(str, routed)) or 'none'} (of {layers}, counted from 0)"
    if "gate" in method:
        facts["Gate mode"] = method["gate"]
    facts["Runtime"] = model.runtime
    facts["Number type"] = str(model.base.dtype).removeprefix("torch.")
    return facts | {"laval": laval.__version__}


def checked(ids: torch.Tensor) -> torch.Tensor:
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or not ids.numel():
        found = list(ids.shape) if isinstance(ids, torch.Tensor) else type(ids).__name__
        raise ValueError(f"input_ids is {found}; expected a tensor [rows, tokens] with at least one token")
    return ids


def check_rows(model, options: dict) -> None:
    for name in ("num_beams", "num_return_sequences"):
        value = options.get(name, getattr(model.generation_config, name, 1)) or 1
        if value != 1:
            raise ValueError(f"{name} is {value}; expected 1, for a trace follows each row from step to step")


def stop_tokens(model, options: dict) -> list[int]:
    found = options.get("eos_token_id", model.generation_config.eos_token_id)
    return [] if found is None else [found] if isinstance(found, int) else list(found)


def until_end(new: torch.Tensor, stops: list[int]) -> torch.Tensor:
    """True for new tokens [B, N] up to the first stop token of each row, that token included."""
    stopped = torch.isin(new, torch.tensor(stops, dtype=new.dtype, device=new.device)).long()
    return stopped.cumsum(1) - stopped == 0
