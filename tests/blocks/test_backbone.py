"""Finding the family, and the steps around the layers."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig, GPT2Config
from transformers.models.gemma3 import Gemma3Config, Gemma3ForConditionalGeneration

from laval.blocks import KNOWN_FAMILIES, Backbone, Context, backbone_of
from laval.compat import cache_argument, output_cache, pick_cache
from tests.blocks.script import new_cache, prompt, through_blocks
from tests.tiny import FAMILIES, tiny_config, tiny_model


def composed(model):
    """The same model, but every layer runs as composed steps."""
    for block in backbone_of(model).blocks:

        def forward(
            x,
            attention_mask,
            position_ids,
            position_embeddings,
            cache=None,
            past_key_values=None,
            use_cache=None,
            block=block,
            **kwargs,
        ):
            cache = pick_cache(cache, past_key_values)
            return block.compose(x, Context(attention_mask, *position_embeddings, position_ids, cache, kwargs))

        block.layer.forward = forward
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_generate_through_composed_layers(family):
    ids, mask = prompt(True)
    arguments = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False, "num_beams": 2, "eos_token_id": None}
    expected = tiny_model(family).generate(ids, **arguments)
    assert torch.equal(composed(tiny_model(family)).generate(ids, **arguments), expected)


def test_generate_batch_through_composed_layers():
    settings = GenerationConfig(max_new_tokens=3, do_sample=False, eos_token_id=-1, pad_token_id=0)
    memory = ContinuousBatchingConfig(page_size=8, num_blocks=8, max_batch_tokens=32, max_requests_per_batch=4)
    prompts = [[5, 6, 7, 8], [9, 10]]

    def answers(model):
        outputs = model.generate_batch(prompts, settings, memory)
        return sorted((output.prompt_ids, output.generated_tokens) for output in outputs.values())

    expected = answers(tiny_model("llama", attn_implementation="sdpa"))
    assert len(expected[0][1]) == 3
    assert answers(composed(tiny_model("llama", attn_implementation="sdpa"))) == expected


def test_unknown_family_lists_the_known_ones():
    model = AutoModelForCausalLM.from_config(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=8))
    with pytest.raises(ValueError, match="gpt2.*llama, mistral, .*phi3.*CONTRIBUTING.md"):
        backbone_of(model)


def test_a_model_without_a_head_is_refused():
    with pytest.raises(ValueError, match="LlamaModel has no language-model head.*AutoModelForCausalLM"):
        backbone_of(AutoModel.from_config(tiny_config("llama")))


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text"])
def test_bidirectional_gemma_is_refused(family):
    with pytest.raises(ValueError, match="use_bidirectional_attention"):
        backbone_of(tiny_model(family, use_bidirectional_attention=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_backbone_shares_the_models_own_modules(family):
    model = tiny_model(family)
    backbone = backbone_of(model)
    assert isinstance(backbone, KNOWN_FAMILIES[family]) and isinstance(backbone, Backbone)
    assert backbone.model is model
    assert [block.index for block in backbone.blocks] == [0, 1, 2, 3]
    assert all(block.layer is layer for block, layer in zip(backbone.blocks, model.model.layers, strict=True))


@torch.no_grad()
def test_the_text_model_inside_a_multimodal_one():
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision.update(image_size=8, patch_size=4)
    config = Gemma3Config(
        text_config=tiny_config("gemma3_text").to_dict(), vision_config=vision, mm_tokens_per_image=4
    )
    model = Gemma3ForConditionalGeneration(config).eval()
    ids, mask = prompt(True)
    expected = model(input_ids=ids, attention_mask=mask).logits
    assert torch.equal(through_blocks(backbone_of(model), "compose", ids, mask, None, None), expected)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_positions_default_to_counting_on_from_the_cache(family):
    model = tiny_model(family)
    backbone, (ids, _) = backbone_of(model), prompt(False)
    cache, expected = new_cache(model, True), model(input_ids=ids).logits
    got = [through_blocks(backbone, "compose", piece, None, None, cache) for piece in ids.split(7, dim=1)]
    torch.testing.assert_close(torch.cat(got, dim=1), expected)


def test_embed_takes_exactly_one_input():
    backbone = backbone_of(tiny_model("gemma2"))
    ids, _ = prompt(False)
    x = backbone.embed(input_ids=ids)
    assert backbone.embed(inputs_embeds=x) is x
    torch.testing.assert_close(x, backbone.decoder.embed_tokens.weight[ids] * 8.0)  # the normaliser: sqrt(64)
    for both in ({}, {"input_ids": ids, "inputs_embeds": x}):
        with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
            backbone.embed(**both)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@torch.no_grad()
def test_head_keeps_the_rows_that_need_logits(family):
    backbone = backbone_of(tiny_model(family, torch.float64))
    x = backbone.embed(prompt(False)[0])
    every = backbone.head(x)
    chosen = torch.tensor([[1, 3], [0, 13]])
    mask = torch.zeros(2, 14, dtype=torch.bool).scatter_(1, chosen, True)
    torch.testing.assert_close(backbone.head(x, 2), every[:, -2:])
    torch.testing.assert_close(backbone.head(x, chosen[0]), every[:, chosen[0]])
    torch.testing.assert_close(backbone.head(x, chosen), every[torch.arange(2)[:, None], chosen])
    torch.testing.assert_close(backbone.head(x, mask), every[mask])


@torch.no_grad()
def test_masks_may_come_ready_made_by_layer_type():
    backbone = backbone_of(tiny_model("gemma3_text"))
    ids, mask = prompt(True)
    x = backbone.embed(ids)
    masks = backbone.masks(x, mask, torch.arange(14)[None], None)
    assert set(masks) == {"full_attention", "sliding_attention"}
    contexts = backbone.contexts(x, masks)
    assert all(context.mask is masks[kind] for context, kind in zip(contexts, backbone.layer_types(), strict=True))


def test_the_cache_has_one_name():
    model = tiny_model("llama")
    cache = new_cache(model, True)
    assert pick_cache(cache) is pick_cache(past_key_values=cache) is cache
    assert pick_cache() is None
    with pytest.raises(ValueError, match="both given"):
        pick_cache(cache, cache)
    output = model(input_ids=prompt(False)[0], use_cache=True, **cache_argument(cache))
    assert output_cache(output) is cache and cache.get_seq_length() == 14


def test_every_layer_has_arguments_of_its_own():
    backbone = backbone_of(tiny_model("llama"))
    first, second, *_ = backbone.contexts(backbone.embed(prompt(False)[0]), softcap=None)
    assert first.kwargs == second.kwargs == {"softcap": None}
    assert first.kwargs is not second.kwargs  # a paged cache rewrites them
