"""Shortened models around a base, their settings, and what is said of wrong input."""

from __future__ import annotations

import pytest
import torch

import laval
from laval.models import ShortenedConfig, ShortenedForCausalLM
from laval.models.presets import PRESETS, preset
from laval.models.shortened_cache import ShortenedCache
from laval.shorten.factor import shorten_factor
from tests.tiny import exact, tiny_config, tiny_model

PAPER = {"width": 16, "feed_forward": 24, "heads": 2}
FIXED = {"rule": {"name": "fixed"}}


def small(plan="1@1 1@3 1@1", levels=FIXED, **more) -> ShortenedForCausalLM:
    return ShortenedForCausalLM(ShortenedConfig(plan, levels, PAPER, vocab_size=20, **more)).eval()


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "phi3"])
def test_a_plan_that_shortens_nothing_is_the_base(family):
    base = tiny_model(family, torch.float64)
    model = ShortenedForCausalLM(ShortenedConfig.of(base, "4@1"), base).eval()
    ids = torch.randint(3, 128, (2, 14))
    torch.testing.assert_close(model(ids).logits, base(ids).logits, rtol=0, atol=1e-10)


def test_the_middle_of_a_base_is_shortened():
    base = tiny_model("llama")
    model = ShortenedForCausalLM(ShortenedConfig.of(base, "1@1 2@3 1@1"), base)
    lengths = []
    for layer in base.model.layers:
        layer.register_forward_pre_hook(lambda _, x: lengths.append(x[0].shape[1]))
    model(torch.randint(3, 128, (1, 12)))
    assert lengths == [12, 5, 5, 12]  # the start row and four segments


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json(name):
    config = preset(name)
    again = ShortenedConfig.from_dict(config.to_dict())
    assert (again.plan, again.levels, again.paper) == (config.plan, config.levels, config.paper)


def test_public_names():
    assert laval.ShortenedForCausalLM is ShortenedForCausalLM and laval.preset is preset
    assert callable(laval.load_dynamic_pooling)


@pytest.mark.parametrize(
    ("plan", "levels", "said"),
    [
        ("1@1 1@3", FIXED, "no palindrome"),
        ("1@1 1@2 1@3 1@2 1@1", FIXED, "2 does not divide 3"),
        ("1@1 1@2.5 1@1", FIXED, "shortens by 2.5"),
        ("1@1 1@3 1@1", {"rule": {"name": "gumble"}}, "did you mean 'gumbel'"),
        ("1@1 1@3 1@1", {"rule": {"name": "gumbel", "ratio": 1}}, "ratio.*unknown key"),
        ("1@1 1@3 1@1", {**FIXED, "reduse": "mean"}, "did you mean 'reduce'"),
        ("1@1 1@3 1@1", {**FIXED, "upsample": "nearest"}, "upsample.*expected one of 'repeat'"),
        ("1@1 1@3 1@1", {"rule": {"name": "gumbel"}, "distance": "tokens"}, "only a fixed rule"),
        ("1@1 1@3 1@1", {"rule": {"name": "fixed", "drop": [2, 3]}, "reduce": "linear"}, "draws the factor"),
        ("1@1 1@3 1@1", [FIXED, FIXED], "2 entries and plan .* shortens 1 times"),
        ("1@1 1@2 1@4 1@2 1@1", [FIXED, {"rule": {"name": "unigram"}}], "use it outermost"),
    ],
)
def test_settings_that_do_not_fit_are_refused(plan, levels, said):
    with pytest.raises(ValueError, match=said):
        small(plan, levels)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="16.*3 heads"):
        ShortenedConfig("1@1", (), {"width": 16, "heads": 3})
    with pytest.raises(ValueError, match="3 layers and the base model 4"):
        ShortenedConfig("1@1 1@3 1@1", FIXED, text_config=tiny_config("llama"))


def test_input_that_does_not_fit_is_refused():
    model, ids = small(), torch.randint(0, 20, (2, 6))
    for given, said in (
        (dict(input_ids=ids + 15), "expected 0 to 19"),
        (dict(input_ids=ids[:, :0]), "input_ids is empty"),
        (dict(), "exactly one of input_ids and inputs_embeds"),
        (dict(input_ids=ids, attention_mask=torch.ones(2, 5)), r"expected \[2, 6 or more\]"),
        (dict(input_ids=ids, boundaries=torch.ones(2, 5)), r"expected \[2, 6\]"),
        (dict(input_ids=ids, boundaries=torch.full((2, 6), torch.nan)), "NaN"),
        (dict(input_ids=ids, output_hidden_states=True), "output_hidden_states is True"),
    ):
        with pytest.raises(ValueError, match=said):
            model(**given)


def test_an_attention_that_takes_no_mask_is_refused():
    base = tiny_model("llama")
    model = ShortenedForCausalLM(ShortenedConfig.of(base, "1@1 2@3 1@1"), base)
    base.config._attn_implementation = "flex_attention"
    with pytest.raises(ValueError, match="'flex_attention'; expected 'sdpa' or 'eager'"):
        model(torch.randint(3, 128, (1, 5)))


@torch.no_grad()
def test_filler_beyond_a_window_spoils_nothing():
    """One row has many new tokens, the other two and then pads, further away than the sliding window."""
    base = tiny_model("gemma3_text", torch.float64)
    model = ShortenedForCausalLM(ShortenedConfig.of(base, "1@1 2@3 1@1", {**FIXED, "start": "zeros"}), base).eval()
    model = exact(model.double())
    ids, mask = torch.randint(3, 128, (2, 40)), torch.ones(2, 40).long()
    mask[1, 12:38] = 0
    cache = model(ids[:, :10], attention_mask=mask[:, :10], use_cache=True).past_key_values
    found = model(ids[:, 10:39], attention_mask=mask[:, :39], past_key_values=cache, use_cache=True)
    found = model(ids[:, 39:], attention_mask=mask, past_key_values=found.past_key_values, use_cache=True)
    alone = model(ids[1:, mask[1].bool()]).logits[0, -1]
    torch.testing.assert_close(found.logits[1, -1], alone, rtol=0, atol=1e-10)


def test_a_text_shorter_than_a_segment_works():
    model = small("1@1 1@7 1@1")
    whole = model(ids := torch.randint(0, 20, (2, 9))).logits
    torch.testing.assert_close(model(ids[:, :2]).logits, whole[:, :2])


def test_a_foreign_cache_is_refused_when_it_holds_something():
    from transformers import DynamicCache

    model, ids = small(), torch.randint(0, 20, (1, 4))
    filled = DynamicCache()
    filled.update(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2), 0)
    with pytest.raises(ValueError, match="DynamicCache that holds tokens"):
        model(ids, past_key_values=filled)
    with torch.no_grad():
        assert isinstance(model(ids, past_key_values=DynamicCache(), use_cache=True).past_key_values, ShortenedCache)
    with pytest.raises(ValueError, match="cache_implementation is 'static'"):
        model.generate(ids, max_new_tokens=2, cache_implementation="static")


def test_the_shorten_factor_is_set_and_saved(tmp_path):
    model, ids = small(levels={"rule": {"name": "gumbel", "hidden": 8}}), torch.randint(0, 20, (4, 50))
    for factor in (4.0, 2.0):
        threshold = model.set_shorten_factor(ids, factor)
        assert shorten_factor(model(ids).commits[0]) == pytest.approx(factor, rel=0.05)
    model.save_pretrained(tmp_path)
    for again in (ShortenedForCausalLM.from_pretrained(tmp_path), laval.load(tmp_path)):
        assert again.rules()[0].threshold == threshold and type(again) is ShortenedForCausalLM
    with pytest.raises(ValueError, match="factor is 1;"):
        model.set_shorten_factor(ids, 1.0)
    with pytest.raises(ValueError, match="level is 1"):
        model.set_shorten_factor(ids, 2.0, level=1)


def test_a_model_that_drops_factors_serves_any_of_them():
    """Its weights fit every factor, and setting one is as if the plan had it: distances and zeros in front follow."""
    level = {"rule": {"name": "fixed", "drop": [2, 3]}, "distance": "tokens", "start": "zeros"}
    model, ids = small("1@1 1@3 1@1", level), torch.randint(0, 20, (2, 13))
    drawn = {int(model.train()(ids, use_cache=False).boundaries[0].sum()) for _ in range(20)}
    assert drawn == {7, 5}
    for factor in (3, 2):
        planned = small(f"1@1 1@{factor} 1@1", {**level, "rule": {"name": "fixed"}})
        planned.load_state_dict(model.state_dict())
        model.eval().rules()[0].factor = factor
        torch.testing.assert_close(model(ids).logits, planned(ids).logits)


def test_losses_add_up():
    model = small(levels={"rule": {"name": "unigram", "hidden": 8}}).train()
    ids = torch.randint(0, 20, (2, 9))
    plain = model(ids, labels=ids)
    assert plain.commit_loss is None and plain.loss is plain.language_loss
    both = model(ids, labels=ids, boundary_targets=ids > 10)
    torch.testing.assert_close(both.loss, both.language_loss + both.commit_loss)
    assert model(ids).loss is None
    for rule in ("entropy", "gumbel", "cosine"):
        output = small(levels={"rule": {"name": rule, **({} if rule == "cosine" else {"hidden": 8})}})(ids, labels=ids)
        assert output.commit_loss > 0


def test_the_language_loss_reaches_gumbels_predictor_and_not_the_supervised_one():
    ids = torch.randint(0, 20, (2, 20))
    for rule, reached in (("gumbel", True), ("unigram", False)):
        model = small(levels={"rule": {"name": rule, "hidden": 8}}).train()
        model(ids, labels=ids).language_loss.backward()
        gradient = model.stacks.commit.head.weight.grad
        assert (gradient is not None and bool(gradient.abs().sum() > 0)) == reached


def test_the_trainer_trains_it(tmp_path):
    """Accumulating, saving and evaluating; the loss is divided by the accumulation steps, commit loss and all."""
    from transformers import Trainer, TrainingArguments

    model = small(levels={"rule": {"name": "gumbel", "hidden": 8}})
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 20, (8, 12))]
    arguments = TrainingArguments(
        output_dir=tmp_path,
        max_steps=4,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        logging_steps=1,
        save_steps=4,
        learning_rate=1e-3,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    with torch.no_grad():
        ids = torch.stack([row["labels"] for row in rows])
        alone = float(model.train()(ids, labels=ids).loss)
    assert abs(losses[0] - alone) < 0.3 * alone  # twice that, if something were not divided
    # the Trainer takes every argument with "label" in its name for one that must come
    assert sum("eval_loss" in entry for entry in trainer.state.log_history) == 2
    again = ShortenedForCausalLM.from_pretrained(tmp_path / "checkpoint-4").eval()
    torch.testing.assert_close(again(ids).logits, model.eval()(ids).logits, rtol=1e-4, atol=1e-4)
