"""A model whose weights take 8 bits: for inference, where decoding waits for weights to be read."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from laval.models.checks import check_adaptive
from laval.models.modeling import AdaptiveForCausalLM
from laval.ops import int8
from laval.ops.one_row import Map


class Int8Linear(nn.Module):
    """`nn.Linear` over weights of 8 bits, packed as `ops.int8` says; the bias stays as it was. Inference only.

    ValueError when a gradient is asked for, or its state, which nobody could load again.
    """

    def __init__(self, table: torch.Tensor, scale: torch.Tensor, in_features: int, bias: nn.Parameter | None = None):
        super().__init__()
        self.in_features, self.out_features = in_features, len(scale)
        self.register_buffer("weight", table)
        self.register_buffer("scale_bytes", scale.view(torch.uint8))  # no `to(dtype)` may round it
        self.register_parameter("bias", bias)

    @classmethod
    def of(cls, linear: nn.Linear) -> Int8Linear:
        """What `linear` is in 8 bits."""
        return cls(*int8.pack(linear.weight), linear.in_features, linear.bias)

    @property
    def scale(self) -> torch.Tensor:
        """Each output's greatest weight, float32 [O]."""
        return self.scale_bytes.view(torch.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            raise ValueError(
                "weights are int8, for inference only, and a gradient is asked for; expected torch.no_grad(), or, to "
                "train, the model before laval.quantise"
            )
        return int8.linear(x, self.weight, self.scale, self.bias)

    def part(self, x: torch.Tensor, start: int, count: int) -> torch.Tensor:
        """Outputs `start` to `start + count` alone, x [..., I] -> [..., count]; the others' weights are not read."""
        y = int8.part_linear(x, self.weight, self.scale, start, count)
        return y if self.bias is None else y + self.bias[start : start + count]

    def row_map(self) -> Map:
        """The same for one row [I] -> [O], in the fewest operations."""
        bias = None if self.bias is None else self.bias.detach()
        return int8.row_map(self.weight, self.scale, self.in_features, bias)

    def joined(self, second: nn.Module) -> Int8Linear | None:
        """This and `second` side by side, by a copy of their weights; None where they cannot be."""
        alike = type(second) is Int8Linear and (self.bias is None) == (second.bias is None)
        if not alike or self.out_features % int8.WIDTH:
            return None
        bias = None if self.bias is None else nn.Parameter(torch.cat((self.bias, second.bias)), requires_grad=False)
        table, scale = torch.cat((self.weight, second.weight)), torch.cat((self.scale, second.scale))
        return Int8Linear(table, scale, self.in_features, bias)

    def weights_of(self, outputs: torch.Tensor) -> torch.Tensor:
        """The weights float32 [n, I] of some outputs, by their indices [n]."""
        return int8.unpack(self.weight, self.scale, self.in_features)[outputs]

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        raise ValueError(
            f"{prefix}weight is int8, and models are saved as they were trained; expected the model before "
            'laval.quantise. A plug-in alone can be saved, and laval.load(NAME, weights="int8") quantises as it loads'
        )


def quantise(model: AdaptiveForCausalLM) -> AdaptiveForCausalLM:
    """A copy of `model` for inference whose matrices take 8 bits a weight; `model` is left as it was.

    Quantised: every linear module of the base, the head's copy of a tied embedding too. As they were, and shared with
    `model`: embeddings, norms and biases. Routers and adapters are copied, for they are small and decide. Inside
    `laval.dense(...)` the copy is its own base, quantised. On a GPU it saves memory and no time.
    Errors: TypeError for a model that is not adaptive, ValueError for one that is quantised already.
    """
    check_adaptive(model)
    if is_quantised(model):
        raise ValueError("model is quantised already; expected one with weights as they were trained")
    copied = deepcopy(model, kept(model)).eval()
    copied.break_even = None  # learned with other weights
    copied.policy.requires_grad_(False)
    untie(copied)
    for module in list(copied.base.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, Int8Linear.of(child))
    return copied


def untie(model: AdaptiveForCausalLM) -> None:
    """Head and embedding go separate ways, also when a model is made anew around the base."""
    for config in (model.config, model.config.text_config, model.base.config):
        config.tie_word_embeddings = False
    for each in (model, model.base):
        each.all_tied_weights_keys = {}


def kept(model: AdaptiveForCausalLM) -> dict:
    """What a copy of `model` shares with it, as `deepcopy` wants to be told: the base's tensors, without gradients."""
    shared = {id(each): each for each in (*model.base.buffers(), model.tokenizer)}
    return shared | {id(each): nn.Parameter(each.detach(), requires_grad=False) for each in model.base.parameters()}


def is_quantised(model) -> bool:
    return any(isinstance(module, Int8Linear) for module in model.modules())
