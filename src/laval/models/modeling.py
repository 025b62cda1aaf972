"""A stock base model and a skip policy beside it, as one Hugging Face model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from laval.blocks import FEW_ROWS, MANY_ROWS, backbone_of
from laval.compat import cache_argument, output_field, pick_cache
from laval.files import atomic_folder
from laval.models.calls import attention_options, check_routes
from laval.models.configuration import AdaptiveConfig
from laval.models.generation import WithinContext
from laval.models.loop import OneSequence
from laval.models.record import check_saved
from laval.models.safe import FromSafetensors
from laval.models.thresholds import taus_of
from laval.models.weights import WEIGHT_FILES
from laval.runtime import STEPS, BreakEven, Choice, Recording, check_runtime, choose, give_room
from laval.runtime.decoder import Decoder, Decoders, suits
from laval.skip import Route, SkipPolicy


@dataclass
class AdaptiveOutput(CausalLMOutputWithPast):
    """The base model's output, and the routes taken: one per routed layer, in order of `policy.layers`."""

    routes: tuple[Route, ...] | None = None


class AdaptiveForCausalLM(FromSafetensors, PreTrainedModel, WithinContext, OneSequence, GenerationMixin):
    """`base`: the untouched transformers model, under its own weight names. `policy`: who skips what.

    `runtime` says how a forward is carried out: auto, masked, grouped, conditional, agreed (sequences skip a
    layer together or not at all), full (every layer runs) or dense (the untouched base). All but masked and dense use
    quick kernels on a CPU without gradients, equal up to rounding.
    `break_even`, where one was learned, has auto run every layer in calls with a cache given (as `generate` does) of
    sizes at which skipping lost.
    """

    config_class = AdaptiveConfig
    base_model_prefix = "base"
    supports_gradient_checkpointing = True
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: AdaptiveConfig, base: PreTrainedModel | None = None):
        super().__init__(config)
        self.policy: SkipPolicy = config.build_method().build(config.text_config)
        if config.taus:
            self.policy.set_thresholds(config.taus)
        self.base = AutoModelForCausalLM.from_config(config.text_config) if base is None else base
        self.backbone = backbone_of(self.base)
        self.quick = backbone_of(self.base, FEW_ROWS)
        self.many = backbone_of(self.base, MANY_ROWS)
        self.decoders = Decoders()
        self.runtime = "auto"
        self.break_even: BreakEven | None = None
        self.recording: Recording | None = None
        self.tokenizer = None
        self.folder: Path | None = None  # of the plug-in, where it was loaded from one
        self.keep_made()
        self.post_init()

    def save_pretrained(self, save_directory, is_main_process=True, **options) -> None:
        """The whole model, base included, as safetensors, and its tokenizer if it has one; all or nothing.

        ValueError for a budget curve with a point that says nothing.
        """
        check_saved(self.config, self.policy)
        self.config.taus = taus_of(self.policy)
        if not is_main_process:  # takes part in gathering, writes nothing
            return super().save_pretrained(save_directory, is_main_process=False, **options)
        if options.get("push_to_hub"):
            options.setdefault("repo_id", Path(save_directory).name)
        with atomic_folder(save_directory, discard=WEIGHT_FILES) as new:
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(new)
            super().save_pretrained(new, **options)

    def get_input_embeddings(self):
        return self.base.get_input_embeddings()

    def set_input_embeddings(self, value) -> None:
        self.base.set_input_embeddings(value)

    def get_output_embeddings(self):
        return self.base.get_output_embeddings()

    def set_output_embeddings(self, value) -> None:
        self.base.set_output_embeddings(value)

    def get_decoder(self):
        return self.base.get_decoder()

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        cache=None,
        inputs_embeds=None,
        labels=None,
        use_cache=None,
        logits_to_keep=0,
        past_key_values=None,
        routes=None,
        num_items_in_batch=None,
        **kwargs,
    ) -> AdaptiveOutput:
        """Logits of input_ids [B, T]. `routes`: bool [routed layers, B, T] to replay instead of deciding.

        `cache` and `past_key_values` are one argument under its new and its old name. kwargs go to attention.
        """
        kwargs = attention_options(kwargs)
        given = pick_cache(cache, past_key_values)
        cache = self.open_cache(given, use_cache)
        if check_runtime(self.runtime) == "dense":
            logits, taken = (
                self.run_dense(input_ids, inputs_embeds, attention_mask, position_ids, cache, logits_to_keep, kwargs),
                (),
            )
        else:
            give_room(cache)
            x = self.backbone.embed(input_ids, inputs_embeds)  # [B, T, D]
            step = cache is not None and x.shape[1] == 1
            way = self.way(x.shape[0] * x.shape[1], step, x.device.type, given is not None and routes is None)
            backbone = {"stock": self.backbone, "few": self.quick, "many": self.many}[way.kernels]
            contexts = backbone.contexts(x, attention_mask, position_ids, cache, **kwargs)
            decoder = self.decoder(way, x, contexts, cache) if routes is None else None
            if decoder is None:
                x, taken = self.run_layers(way, backbone.blocks, x, contexts, routes)
            else:
                x, taken = decoder(way.step, x, contexts, cache)
            logits = backbone.head(x, logits_to_keep)  # [B, kept, V]
        self.note(taken, input_ids if inputs_embeds is None else inputs_embeds)
        loss = self.language_loss(logits, labels, num_items_in_batch)
        return AdaptiveOutput(loss=loss, logits=logits, routes=taken, **output_field(cache))

    def way(self, rows: int, step: bool, device: str, generating: bool = True) -> Choice:
        """How to carry out a call of B * T rows; step: a single one with a cache.

        generating: with the caller's cache, as `generate` calls, and no routes given. Elsewhere the break-even rule
        is not heard: who hands in tokens alone wants to see what the model does with them, routes included.
        """
        # keys that hide can be read only by layers that hide
        rule = self.break_even if generating and self.policy.keeps_kv else None
        return choose(self.runtime, rows, torch.is_grad_enabled() or self.training, device, rule, step)

    def run_layers(self, way: Choice, blocks, x, contexts, routes=None) -> tuple[torch.Tensor, tuple[Route, ...]]:
        """All decoder layers on x [B, T, D], and the routes of those that may be skipped."""
        routed = () if way.step == "full" else self.policy.layers
        decided = {} if routes is None else check_routes(routes, routed, x)
        taken = []
        for block, context in zip(blocks, contexts, strict=True):
            if block.index in routed:
                step = self.remat(block, STEPS[way.step])
                x, route = step(block, self.policy, x, context, decided.get(block.index))
                taken.append(route)
            else:
                x = block(x, context)
        return x, tuple(taken)

    def decoder(self, way: Choice, x, contexts, cache) -> Decoder | None:
        """What carries out this token, or these few, quickest; None where that is no special case."""
        if not way.quick or not suits(way.step, x, contexts, cache):
            return None
        return self.decoders.of(self, cache)

    def remat(self, block, step):
        """The step itself, or under gradient checkpointing the step computed again in the backward pass."""
        layer = block.layer
        if not (self.training and getattr(layer, "gradient_checkpointing", False)):
            return step

        def tensors(*arguments):
            x, route = step(*arguments)
            return x, route.run, route.score

        def again(*arguments):
            # Reentrant checkpointing gives gradients to plain tensors only, and a depth penalty needs the score's.
            x, run, score = layer._gradient_checkpointing_func(tensors, *arguments)
            return x, Route(run, score)

        return again

    def run_dense(self, ids, embeds, mask, positions, cache, logits_to_keep, kwargs) -> torch.Tensor:
        """The untouched base model, bit for bit."""
        return self.base(
            input_ids=ids,
            inputs_embeds=embeds,
            attention_mask=mask,
            position_ids=positions,
            use_cache=cache is not None,
            logits_to_keep=logits_to_keep,
            **cache_argument(cache),
            **kwargs,
        ).logits

    def open_cache(self, cache, use_cache):
        """The caller's cache, a new one where the base would open one, or None."""
        wanted = self.config.text_config.use_cache if use_cache is None else use_cache
        if cache is not None or not wanted or self.training:
            return cache
        return DynamicCache(config=self.config.text_config)

    def language_loss(self, logits, labels, items) -> torch.Tensor | None:
        if labels is None:
            return None
        counted = {} if items is None else {"num_items_in_batch": items}
        return self.base.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], **counted)

    def note(self, taken, inputs) -> None:
        """Hand what ran to the recording, if one is open."""
        if self.recording is None:
            return
        run = torch.ones(len(self.backbone.blocks), *inputs.shape[:2], dtype=torch.bool, device=inputs.device)
        gate = torch.full(run.shape, torch.nan, device=inputs.device)
        for layer, route in zip(self.policy.layers if taken else (), taken, strict=True):
            run[layer] = route.run
            if route.gate is not None:
                gate[layer] = route.gate.detach()
        self.recording.add(run.cpu(), gate.cpu())
