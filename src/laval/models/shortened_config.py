"""The config of a shortened model: a plan, how each level shortens, and the kind of its layers."""

from __future__ import annotations

from copy import deepcopy

from transformers import AutoConfig, PreTrainedConfig

from laval.blocks.paper import Paper
from laval.config import load_config, to_mapping
from laval.shorten import Plan, Shortening, check_depth, read_plan, read_shortening, write_shortening


class ShortenedConfig(PreTrainedConfig):
    """`plan`: "4@1 8@3 4@1". `levels`: one mapping of settings for each shortening, outermost first (one for all, if
    there is one only). `text_config`: the base whose layers are used (modern), or None: `paper`, sizes of published
    layers, and `vocab_size`. ValueError for a plan or settings that do not fit.
    """

    model_type = "laval_shortened"
    sub_configs = {"text_config": AutoConfig}
    keys_to_ignore_at_inference = [  # the Trainer gathers logits only
        "past_key_values",
        "cache",
        "language_loss",
        "commit_loss",
        "boundaries",
        "chances",
        "commits",
    ]

    def __init__(self, plan="2@1 8@4 2@1", levels=(), paper=None, text_config=None, vocab_size=256, **kwargs):
        if isinstance(text_config, dict):
            text_config = AutoConfig.for_model(**text_config)
        self.plan = str(plan)
        read = read_plan(self.plan)
        self.levels = [write_shortening(level) for level in each_level(levels, read)]
        self.text_config = text_config
        self.paper = None if text_config is not None else to_mapping(load_config(Paper, dict(paper or {})))
        if text_config is not None:
            check_depth(read, text_config.num_hidden_layers)
            vocab_size = text_config.vocab_size
            kwargs = {**special(text_config), **kwargs}
        self.vocab_size = vocab_size
        kwargs.setdefault("tie_word_embeddings", getattr(text_config, "tie_word_embeddings", False))
        super().__init__(**kwargs)

    @classmethod
    def of(cls, model, plan: str, levels=()) -> ShortenedConfig:
        """The config of a base model shortened in its middle."""
        text = deepcopy(model.config.get_text_config())
        return cls(plan=plan, levels=levels, text_config=text, attn_implementation=text._attn_implementation)

    @property
    def read_plan(self) -> Plan:
        return read_plan(self.plan)

    @property
    def read_levels(self) -> list[Shortening]:
        return [read_shortening(level) for level in self.levels]

    @property
    def read_paper(self) -> Paper:
        return load_config(Paper, self.paper)

    @property
    def num_hidden_layers(self) -> int:
        return self.read_plan.depth

    @property
    def hidden_size(self) -> int:
        return self.read_paper.width if self.text_config is None else self.text_config.hidden_size


def each_level(levels, plan: Plan) -> list[Shortening]:
    """Settings for each shortening of a plan."""
    found = [read_shortening(level) for level in ([levels] if isinstance(levels, dict) else levels)]
    found = found or [Shortening()]
    if not plan.levels:
        return []
    found = found * plan.levels if len(found) == 1 else found
    if len(found) != plan.levels:
        raise ValueError(
            f"levels has {len(found)} entries and plan {str(plan)!r} shortens {plan.levels} times; match them"
        )
    inner = [type(level.rule).__name__ for level in found[1:] if getattr(level.rule, "outermost_only", False)]
    if inner:
        raise ValueError(f"rule {inner[0]} is about tokens, which inner levels do not have; use it outermost")
    return found


def special(text_config) -> dict:
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: getattr(text_config, name, None) for name in names}
