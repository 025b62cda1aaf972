"""What all our models share: weights made by themselves, and read from safetensors alone."""

from __future__ import annotations

from laval.models.weights import check_names


class FromSafetensors:
    """In front of `PreTrainedModel`: nothing is initialised behind a model's back, and nothing read goes unchecked."""

    def _init_weights(self, module) -> None:
        """Nothing: every part starts itself."""

    def keep_made(self) -> None:
        """All parameters are made or loaded already: post_init must not draw them again."""
        for parameter in self.parameters():
            parameter._is_hf_initialized = not parameter.is_meta

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *arguments, output_loading_info=False, **options):
        """As in transformers, but from safetensors alone, and ValueError for a tensor missing or left over."""
        options["use_safetensors"] = True
        name = pretrained_model_name_or_path
        model, report = super().from_pretrained(name, *arguments, output_loading_info=True, **options)
        check_names(report["missing_keys"], report["unexpected_keys"], name)
        return (model, report) if output_loading_info else model
