"""What a given model costs on paper: its sizes, its plug-in, and the depth it is set to."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel

from laval.measure.cost import Cost, Rates, cost
from laval.measure.machine import machine_peaks
from laval.measure.shape import LayerShape, SkipShape
from laval.measure.storage import Int8Shape, WideSkip, with_bytes
from laval.models.checks import shown
from laval.models.depth import known_depth
from laval.models.quantise import is_quantised
from laval.skip import FlexiDepth
from laval.skip.policy import is_number


def model_cost(
    model,
    batch: int = 1,
    prompt: int = 512,
    new: int = 128,
    *,
    depth: float | None = None,
    run_share: float | Sequence[float] | None = None,
    peaks: Rates | None = None,
) -> Cost:
    """FLOPs, bytes and ideal seconds of a prompt of `prompt` tokens and `new` cached steps, for `batch` rows.

    model: adaptive, or any decoder of transformers. depth: mean layers per token, by default the one on the budget
    curve that the model is set to. run_share: instead of depth, the share of tokens that run a routed layer, one for
    all or one per routed layer. peaks: of the machine; by default this one's, measured once and kept.
    Errors: ValueError for a depth out of reach, or one that is neither given nor calibrated; TypeError for no model.
    """
    base = base_of(model)
    shape, skip, wide = LayerShape.from_config(base.config), skip_shape(model), base.dtype.itemsize
    share = shares(model, depth, run_share) if skip else 1.0
    peaks = machine_peaks(base.device, base.dtype) if peaks is None else peaks
    sizes = {"batch": batch, "prompt": prompt, "new": new, "kv_dtype_bytes": wide, "peaks": peaks}
    counted = cost(shape, skip, share, **sizes, dtype_bytes=wide)
    if not is_quantised(base):
        return counted
    stored = cost(Int8Shape.of(shape, wide), skip and WideSkip.of(skip, wide), share, **sizes, dtype_bytes=1)
    return with_bytes(counted, stored)


def base_of(model) -> PreTrainedModel:
    """The base of an adaptive model, or the model itself. TypeError for anything else."""
    base = getattr(model, "base", model)
    if not isinstance(base, PreTrainedModel):
        raise TypeError(
            f"model is {shown(model)}; expected a model of transformers or an adaptive one: load it with laval.load"
        )
    return base


def skip_shape(model) -> SkipShape | None:
    """The sizes of a model's plug-in; None where every token runs every layer."""
    layers = getattr(getattr(model, "policy", None), "layers", ())
    if not layers or model.runtime in ("full", "dense"):
        return None
    method = model.config.build_method()
    if not isinstance(method, FlexiDepth):
        return SkipShape(tuple(layers), keeps_kv=model.policy.keeps_kv)
    return SkipShape(
        tuple(layers),
        router_width=0 if method.router == "linear" else method.router_width,
        adapter_width=method.adapter_width if method.adapter else 0,
        keeps_kv=method.keep_kv,
    )


def shares(model, depth: float | None, run_share) -> float | Sequence[float]:
    """The share of tokens that run a routed layer, from whatever is known. ValueError when nothing is."""
    if run_share is not None:
        return check_share(run_share)
    depth = known_depth(model) if depth is None else depth
    if depth is None:
        raise ValueError(
            "depth and run_share are both missing, and the plug-in is not calibrated; expected depth=27 (mean layers "
            "per token), or a calibrated plug-in: laval calibrate"
        )
    layers, routed = model.config.text_config.num_hidden_layers, len(model.policy.layers)
    if not (is_number(depth) and layers - routed <= depth <= layers):
        raise ValueError(
            f"depth is {depth!r}; expected {layers - routed} to {layers} layers per token, for {routed} of {layers} "
            "are routed"
        )
    return (depth - layers + routed) / routed


def check_share(run_share) -> float | Sequence[float]:
    """ValueError unless it is a number or several; `cost` looks at how many and how large."""
    several = isinstance(run_share, Sequence) and not isinstance(run_share, str)
    if not all(map(is_number, run_share if several else (run_share,))):
        raise ValueError(
            f"run_share is {run_share!r}; expected the share of tokens that run a routed layer, from 0 to 1, or a "
            "list with one for each routed layer"
        )
    return run_share
