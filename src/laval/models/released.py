"""Reader of the released FlexiDepth checkpoint layout (model_type ddllama): a Llama with routers and adapters."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from laval.models import smollm2
from laval.models.attach import attach
from laval.models.modeling import AdaptiveForCausalLM
from laval.models.weights import check_names, check_tensors, explained, read_json, read_model_tensors
from laval.skip import FlexiDepth, FlexiDepthPolicy

MODEL_TYPE = "ddllama"
OWN_FIELDS = ("routing_layers", "proj_reduction_factor", "router_reduction_factor")
NOT_LLAMA = ("model_type", "architectures", "auto_map", "transformers_version", "torch_dtype", "dtype", *OWN_FIELDS)
EXTRA = re.compile(r"model\.layers\.\d+\.router")
NAMES = {
    "router.router_enc.weight": "routers.{}.down.weight",
    "router.router_norm.weight": "routers.{}.norm",
    "router.router_dec.weight": "routers.{}.up.weight",
    "router.router_head.weight": "routers.{}.head.weight",
    "router_proj.gate_proj.weight": "adapters.{}.gate_proj.weight",
    "router_proj.down_proj.weight": "adapters.{}.down_proj.weight",
    "router_proj.up_proj.weight": "adapters.{}.up_proj.weight",
}


def load_released(folder: str | Path, dtype: torch.dtype = torch.float32) -> AdaptiveForCausalLM:
    """The checkpoint in `folder` as an adaptive model: norm before tanh, branches scaled by g and 1 - g, tau 0.5.

    Whole or sharded safetensors. ValueError for a missing config field, or tensors missing, unexpected or misshapen.
    Source: FlexiDepth (arXiv 2503.23798), tensor names of its released checkpoint. None of its code is run.
    """
    folder = Path(folder)
    fields = read_json(folder / "config.json")
    method = released_method(fields, folder)
    tensors = read_model_tensors(folder)
    extra = {name: tensors.pop(name) for name in list(tensors) if EXTRA.match(name)}
    model = attach(build_base(fields, tensors, folder, dtype), method)
    fill(model.policy, extra, folder)
    return model.eval()


def fill(policy: FlexiDepthPolicy, extra: dict[str, torch.Tensor], folder: Path) -> None:
    """Put the routers and adapters of the checkpoint into ours; head biases, which it lacks, are zero."""
    state = policy.state_dict()
    ours = {
        f"model.layers.{layer}.{part}": name.format(layer) for layer in policy.layers for part, name in NAMES.items()
    }
    check_tensors(extra, {name: state[our_name] for name, our_name in ours.items()}, folder)
    policy.load_state_dict({**state, **{ours[name]: tensor for name, tensor in extra.items()}})


def released_method(fields: dict, folder: Path) -> FlexiDepth:
    missing = [name for name in OWN_FIELDS if name not in fields]
    if missing:
        raise ValueError(f"{folder / 'config.json'}: {', '.join(missing)} missing; expected in the released layout")
    return FlexiDepth(
        layers=tuple(fields["routing_layers"]),
        router="norm_tanh",
        router_width=fields["hidden_size"] // fields["router_reduction_factor"],
        adapter_width=fields["intermediate_size"] // fields["proj_reduction_factor"],
        gate="released",
        tau=0.5,
        start=0.0,
    )


def build_base(fields: dict, tensors: dict, folder: Path, dtype: torch.dtype) -> LlamaForCausalLM:
    config = LlamaConfig.from_dict({key: value for key, value in fields.items() if key not in NOT_LLAMA})
    with smollm2.quiet(), explained(folder):
        model, report = LlamaForCausalLM.from_pretrained(
            None, config=config, state_dict=tensors, dtype=dtype, output_loading_info=True
        )
    check_names(report["missing_keys"], report["unexpected_keys"], folder)
    model.config._name_or_path = fields.get("_name_or_path") or ""
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model.eval()
