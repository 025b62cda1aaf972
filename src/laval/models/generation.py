"""Generation stays within the context that a model was built for; beyond it transformers goes on and makes noise."""

from __future__ import annotations

from transformers import GenerationMixin


class WithinContext(GenerationMixin):
    """`generate` refuses a prompt and new tokens that exceed the base model's context length, before any work."""

    def _prepare_generated_length(self, generation_config, **found):
        asked = generation_config.max_new_tokens
        generation_config = super()._prepare_generated_length(generation_config, **found)
        context = self.config.text_config.max_position_embeddings
        apart = embedded(found)  # tokens of the prompt that max_length does not count
        if found["has_default_max_length"] and asked is None:  # nobody asked: as many as fit, as in a stock model
            generation_config.max_length = min(generation_config.max_length, context - apart)
        prompt = found["input_ids_length"] + apart
        check_room(prompt, generation_config.max_length + apart - prompt, context)
        return generation_config


def embedded(found: dict) -> int:
    """Tokens given as inputs_embeds [B, T, D] alone."""
    tensor = found["inputs_tensor"]
    apart = found["model_input_name"] == "inputs_embeds" and found["input_ids_length"] != tensor.shape[1]
    return tensor.shape[1] if apart else 0


def check_room(prompt: int, new: int, context: int) -> None:
    """ValueError unless a prompt and `new` tokens fit into the context length."""
    if prompt > context:
        raise ValueError(
            f"prompt has {prompt} tokens; expected at most {context}, the model's context length: shorten it"
        )
    if prompt + new > context:
        raise ValueError(
            f"prompt ({prompt} tokens) and {new} new tokens exceed the model's context length of {context}; "
            f"ask for at most {context - prompt} new tokens, or shorten the prompt"
        )
