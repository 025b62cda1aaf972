"""The config of an adaptive model: a base config, a method, and where the base came from."""

from __future__ import annotations

from copy import deepcopy
from difflib import get_close_matches

from transformers import AutoConfig, PreTrainedConfig

from laval.config import load_config, to_mapping
from laval.skip import METHODS, method_name


class AdaptiveConfig(PreTrainedConfig):
    """`text_config`: the base model's own config. `method`: name and fields of the skipping method, nothing left out.

    `base_name` and `base_shape` identify the base model that the plug-in was made for. `taus` are calibrated
    thresholds, one per routed layer (empty: the method's tau). `curve` is the calibrated budget curve.
    """

    model_type = "laval_adaptive"
    sub_configs = {"text_config": AutoConfig}
    keys_to_ignore_at_inference = ["past_key_values", "cache", "routes"]  # the Trainer gathers tensors only

    def __init__(self, text_config=None, method=None, base_name=None, taus=(), curve=(), **kwargs):
        if isinstance(text_config, dict):
            text_config = AutoConfig.for_model(**text_config)
        self.text_config = text_config
        self.method = dict(method or {})
        self.base_name = base_name
        self.taus = list(taus)
        self.curve = list(curve)
        super().__init__(**kwargs)

    @classmethod
    def of(cls, model, method) -> AdaptiveConfig:
        """The config of `model` with `method` attached."""
        text = deepcopy(model.config.get_text_config())  # the base keeps its own
        resolved = method.resolve(text)
        fields = {"name": method_name(method), **to_mapping(resolved)}
        special = {key: getattr(text, key, None) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        return cls(
            text_config=text,
            method=fields,
            base_name=getattr(model.config, "_name_or_path", None) or None,
            tie_word_embeddings=text.tie_word_embeddings,
            attn_implementation=text._attn_implementation,
            **special,
        )

    def build_method(self):
        """The method as its frozen dataclass. ValueError for an unknown name or field."""
        fields = dict(self.method)
        name = fields.pop("name", None)
        if not isinstance(name, str) or name not in METHODS:
            near = get_close_matches(str(name), METHODS, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"method.name is {name!r}; expected one of {', '.join(METHODS)}{hint}")
        return load_config(METHODS[name], fields)

    @property
    def base_shape(self) -> dict[str, int]:
        """What must agree between a plug-in and its base."""
        text = self.text_config
        names = ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
        return {name: getattr(text, name) for name in names}
