"""What holds for every way of generating text."""

from __future__ import annotations

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from tests.invariants import harness
from tests.invariants.subjects import Subject, parameters

QUICK = {
    ("llama", "hard_mask"),
    ("qwen3", "hard_mask"),
    ("gemma2", "released"),
    ("llama", "no_kv"),
    ("phi3", "random"),
}
# Without limits, transformers reserves a large part of the memory.
SMALL = ContinuousBatchingConfig(page_size=16, num_blocks=16, max_batch_tokens=32, max_requests_per_batch=4)
PROMPTS = [[5, 6, 7, 8], list(range(9, 18))]


@pytest.mark.parametrize("check", harness.GENERATION, ids=lambda check: check.__name__)
@pytest.mark.parametrize("subject", parameters(quick=QUICK))
def test_generation(check, subject):
    check(subject)


def continuous(model):
    """What `generate_batch` says of each prompt, in order."""
    plan = GenerationConfig(max_new_tokens=harness.NEW, do_sample=False, eos_token_id=-1, pad_token_id=0)
    found = model.generate_batch(PROMPTS, generation_config=plan, continuous_batching_config=SMALL)
    return [found[name] for name in sorted(found)]


# Gemma 2 has no sdpa, and transformers' paged eager attention leaves out its soft-cap.
@pytest.mark.parametrize(
    "family",
    [
        "llama",
        "gemma3_text",
        *(pytest.param(f, marks=pytest.mark.slow) for f in ("mistral", "qwen2", "qwen3", "phi3")),
    ],
)
@pytest.mark.parametrize("method", ["hard_mask", pytest.param("random", marks=pytest.mark.slow)])
def test_generate_batch_equals_generate(family, method):
    model = Subject(family, method, "sdpa")(torch.float32)
    endless = {"min_new_tokens": 0, "eos_token_id": -1}
    alone = [harness.generate(model, torch.tensor([ids]), **endless)[0].tolist() for ids in PROMPTS]
    assert [answer.generated_tokens for answer in continuous(model)] == alone


def test_generate_batch_without_keys_is_refused():
    answers = continuous(Subject("llama", "no_kv", "sdpa")(torch.float32))
    assert all("keep_kv is False" in answer.error and "use generate" in answer.error for answer in answers)
