"""What one generation of a soak is, and the slow and simple text it is compared with.

A plan is drawn from its seed alone, so that a failure can be run again. In float64 the reference is free: the masked
runtime reads the whole text in one forward, decides by itself, and must choose the same tokens. In float32 and int8 a
near-tie may fall either way, so routes are recorded and replayed, and logits compared up to rounding.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tests.invariants.subjects import build, randomise
from tests.tiny import FAMILIES, implementations, tiny_model
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

import laval
from laval.compat import cache_argument, output_cache
from laval.evaluate import calibrate
from laval.models import recording, using
from laval.models.plugin import load_plugin, save_plugin

WIDE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 6, "max_position_embeddings": 256}
DTYPES = {"float64": torch.float64, "float32": torch.float32}
TOLERANCE = {"float64": 1e-9, "float32": 3e-4, "int8": 3e-4}  # of the largest logit
ROUNDED = 1e-6  # what transformers loses when it hands out logits in float32
NEAR = 1e-3  # of a threshold: a score that rounding may have moved across
SKIPPING, DENSE = ("auto", "grouped", "conditional", "masked"), ("full", "dense")
NEVER = 1_000_000  # a token that no model knows
DRAFTS = ("auto", "skip", "exit", "lookup", "none")
PAGES = ContinuousBatchingConfig(page_size=16, num_blocks=32, max_batch_tokens=64, max_requests_per_batch=6)


@dataclass(frozen=True)
class Plan:
    """One generation. depth: a share of the budget curve, None for the plug-in's own thresholds. end: a token."""

    seed: int
    subject: tuple[str, str, str]  # family or size, method, number type
    way: str
    runtime: str
    lengths: tuple[int, ...]  # of the prompts, one a row
    new: int
    depth: float | None
    end: int
    draft: str
    sampled: bool
    recorded: bool
    wants_logits: bool
    reload: bool

    @property
    def tolerance(self) -> float:
        return TOLERANCE[self.subject[2]]

    @property
    def exact(self) -> bool:
        return self.subject[2] == "float64"

    @property
    def reference(self) -> str:
        return "dense" if self.runtime in DENSE or self.way == "lossless" else "masked"


@dataclass
class Made:
    """ids [B, P + N]; start: P; logits [B, N, V] where they were asked for; run [L, B, P + N - 1] where recorded."""

    ids: torch.Tensor
    mask: torch.Tensor
    start: int
    logits: torch.Tensor | None = None
    run: torch.Tensor | None = None


class Mismatch(AssertionError):
    """Something else than the reference says."""


def plan_of(seed: int, small: bool = False, real: bool = False) -> Plan:
    """The plan of a seed. small: tiny models and short texts only; real: the shipped model."""
    draw = random.Random(seed)
    kind = "tiny" if small else draw.choices(("wide", "tiny"), (7, 3))[0]
    number = draw.choices(("float64", "float32", "int8"), (6, 3, 1))[0]
    family = draw.choice(FAMILIES) if kind == "tiny" else "wide"
    method = draw.choice(("hard_mask", "released")) if kind == "tiny" else "hard_mask"
    way = draw.choices(tuple(WAYS), (35, 15, 10, 4, 20, 16))[0]
    if way == "paged":  # transformers' paged attention knows no soft-cap, and its kernels are slow in float64
        family, number = "llama" if kind == "tiny" else "wide", "float32"
    runtime = draw.choices((*SKIPPING, *DENSE, "agreed"), (8, 3, 3, 2, 2, 2, 2))[0]
    rows = 1 if way == "lossless" else draw.choices(range(1, 7), (6, 2, 2, 2, 1, 1))[0]
    agreed = runtime == "agreed"
    if agreed and way != "greedy":
        runtime, agreed = "auto", False
    return Plan(
        seed=seed,
        subject=("smollm2", "", "float32") if real else (family, method, number),
        way="greedy" if real and way == "paged" else way,
        runtime=runtime,
        lengths=tuple(draw.randint(1, 24 if small else 48) for _ in range(rows)),
        new=draw.randint(1, 8 if small else 28),
        depth=draw.choice((None, None, draw.random())),
        end=draw.choice((NEVER, draw.randrange(3, 128))),
        draft=draw.choice(DRAFTS),
        sampled=draw.random() < 0.3,
        recorded=agreed or number != "float64" or real or draw.random() < 0.5,
        wants_logits=draw.random() < 0.5,
        reload=draw.random() < 0.03 and number != "int8" and not real,
    )


# Models.


@cache
def subject(family: str, method: str, number: str):
    """A model with routers that really decide, and a budget curve."""
    if family == "smollm2":
        return laval.load("smollm2")
    if number == "int8":
        return laval.quantise(subject(family, method, "float32"))
    dtype = DTYPES[number]
    if family == "wide":
        fields = {"layers": (1, 2, 3, 4, 5), "router_width": 8, "adapter_width": 16}
        model = laval.attach(tiny_model("llama", dtype, **WIDE), laval.FlexiDepth(**fields))
        randomise(model)
    else:
        model = deepcopy(build(family, method, implementations(family)[-1], dtype))  # tests share the other
    text = torch.randint(3, 128, (2, 48), generator=torch.Generator().manual_seed(5))
    routed = len(model.policy.layers)
    top = model.config.text_config.num_hidden_layers
    model.config.curve = calibrate(model, [text], [top - 0.7 * routed, top - 0.3 * routed], 0.2, progress=False)
    model.config.taus = []
    return model


def set_up(plan: Plan):
    """The model of a plan at its depth, from disk again where it says so."""
    model = subject(*plan.subject)
    if plan.depth is None:
        model.policy.set_thresholds([0.5] * len(model.policy.layers))
    else:
        low, high = (model.config.curve[i]["depth"] for i in (0, -1))
        laval.set_depth(model, low + plan.depth * (high - low))
    return reloaded(model) if plan.reload else model


def reloaded(model):
    """The plug-in, saved and loaded onto the same base."""
    with TemporaryDirectory() as folder:
        save_plugin(model, Path(folder) / "plugin")
        return load_plugin(Path(folder) / "plugin", model.base, any_base=True)


def prompts(plan: Plan, model) -> tuple[torch.Tensor, torch.Tensor]:
    """Left-padded ids and mask [B, T]."""
    longest, dice = max(plan.lengths), torch.Generator().manual_seed(plan.seed)
    most = min(128, model.config.text_config.vocab_size)
    ids = torch.randint(3, most, (len(plan.lengths), longest), generator=dice)
    mask = (torch.arange(longest) >= longest - torch.tensor(plan.lengths)[:, None]).long()
    return ids * mask, mask


# Ways to generate, and what each is held against.


def options(plan: Plan, mask: torch.Tensor, **more) -> dict:
    found = {"attention_mask": mask, "max_new_tokens": plan.new, "eos_token_id": plan.end, "pad_token_id": 0}
    greedy = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    return found | greedy | more


def generated(plan: Plan, model, ids, mask, runtime: str | None = None, **more) -> Made:
    """By transformers' `generate`, as tokens alone or with logits and routes."""
    full = {"return_dict_in_generate": True, "output_logits": True} if plan.wants_logits else {}
    with using(model, runtime or plan.runtime):
        if not plan.recorded or plan.reference == "dense":
            return made_of(model.generate(ids, **options(plan, mask, **full, **more)), ids, mask)
        with recording(model) as seen:
            made = made_of(model.generate(ids, **options(plan, mask, **full, **more)), ids, mask)
        made.run = seen.run
        return made


def made_of(output, ids: torch.Tensor, mask: torch.Tensor) -> Made:
    whole = output if isinstance(output, torch.Tensor) else output.sequences
    logits = None if isinstance(output, torch.Tensor) else torch.stack(output.logits, dim=1)
    return Made(whole, longer(mask, whole), ids.shape[1], logits)


def longer(mask: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.cat((mask, mask.new_ones(len(ids), ids.shape[1] - mask.shape[1])), dim=1)


@torch.no_grad()
def read(plan: Plan, model, ids, mask, run=None) -> torch.Tensor:
    """Logits [B, T - 1, V] of all tokens but the last: one forward, no cache, by the reference runtime."""
    seen, positions = mask[:, :-1], (mask.cumsum(-1) - 1).clamp(min=0)[:, :-1]
    routes = {} if run is None else {"routes": run[list(model.policy.layers)]}
    with using(model, plan.reference):
        found = model(ids[:, :-1], attention_mask=seen, position_ids=positions, use_cache=False, **routes)
    if run is not None:
        check_routes(plan, model, found.routes, seen.bool())
    return found.logits


def check_routes(plan: Plan, model, routes, valid) -> None:
    """Recorded decisions are those of the scores, but near a threshold (agreeing rows decide otherwise)."""
    if plan.runtime == "agreed" or not hasattr(model.policy, "thresholds"):
        return
    near = 1e-9 if plan.exact else NEAR
    for layer, route in zip(model.policy.layers, routes, strict=True):
        above = route.score - model.policy.thresholds[layer]
        wrong = ((above > 0) != route.run) & (above.abs() > near) & valid
        if wrong.any():
            raise Mismatch(f"layer {layer} decided otherwise than its score, {float(above[wrong][0]):.2e} away")


def check_made(plan: Plan, model, made: Made, choices: int = 1) -> None:
    """Each new token is among the `choices` likeliest of the reference, up to rounding; logits are the reference's."""
    logits = read(plan, model, made.ids, made.mask, made.run)[:, made.start - 1 :]  # [B, N, V]
    tokens, slack = made.ids[:, made.start :], plan.tolerance * float(logits.abs().max())
    ended = (tokens == plan.end).cumsum(1).cumsum(1) > 1
    least = logits.topk(choices, dim=-1).values[..., -1]
    short = (least - logits.gather(-1, tokens[..., None])[..., 0])[~ended]
    if len(short) and short.max() > slack:
        raise Mismatch(f"a token lies {float(short.max()):.2e} below the reference's choice (allowed {slack:.1e})")
    if ended.any() and tokens[ended].any():
        raise Mismatch("text goes on behind its end")
    if made.logits is not None:
        apart = float((made.logits - logits)[~ended].abs().max())
        allowed = max(plan.tolerance, ROUNDED) * float(logits.abs().max())
        if apart > allowed:
            raise Mismatch(f"logits are {apart:.2e} from the reference's (allowed {allowed:.1e})")


def greedy(plan: Plan, model, ids, mask) -> None:
    check_made(plan, model, generated(plan, model, ids, mask))


def sampled(plan: Plan, model, ids, mask) -> None:
    """In float64 the same tokens as the reference draws with this seed; in others, tokens that it might draw."""
    warped = {"do_sample": True, "temperature": 1.3, "top_k": 5}
    torch.manual_seed(plan.seed)
    made = generated(plan, model, ids, mask, **warped)
    check_made(plan, model, made, choices=5)
    if plan.exact:
        torch.manual_seed(plan.seed)
        same(made.ids, generated(plan, model, ids, mask, plan.reference, **warped).ids, "sampled text")


def beams(plan: Plan, model, ids, mask) -> None:
    """The score of every beam is that of its text; in float64 the beams are the reference's."""
    search = {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.0, "eos_token_id": NEVER}
    more = {"return_dict_in_generate": True, "output_scores": True}
    with using(model, plan.runtime):
        made = model.generate(ids, **options(plan, mask, **search, **more))
    whole, start = made.sequences, ids.shape[1]
    known = longer(mask.repeat_interleave(3, 0), whole)
    chances = read(plan, model, whole, known)[:, start - 1 :].float().log_softmax(-1)
    scores = chances.gather(-1, whole[:, start:, None]).sum((1, 2))
    apart = float((scores - made.sequences_scores).abs().max())
    if apart > 0.02:
        raise Mismatch(f"the score of a beam is {apart:.2e} from that of its text")
    if plan.exact:
        with using(model, plan.reference):
            same(whole, model.generate(ids, **options(plan, mask, **search)), "beams")


def paged(plan: Plan, model, ids, mask) -> None:
    """`generate_batch`: every answer is greedy by the reference."""
    given = [row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True)]
    greedy = GenerationConfig(max_new_tokens=plan.new, do_sample=False, eos_token_id=NEVER, pad_token_id=0)
    with using(model, plan.runtime):
        found = model.generate_batch(given, generation_config=greedy, continuous_batching_config=PAGES)
    for prompt, name in zip(given, sorted(found, key=order), strict=True):
        whole = torch.tensor([prompt + found[name].generated_tokens])
        check_made(replace(plan, end=NEVER), model, Made(whole, torch.ones_like(whole), len(prompt)))


def order(name: str) -> tuple[int, str]:
    return len(name), name


def lossless(plan: Plan, model, ids, mask) -> None:
    """Greedy: the dense model's text, token for token; sampled: tokens that it might draw."""
    found = options(plan, mask)
    if plan.sampled:
        torch.manual_seed(plan.seed)
        found |= {"do_sample": True, "temperature": 1.3, "top_k": 5}
    made = laval.lossless(model, ids, plan.draft, **found).ids
    check_made(plan, model, Made(made, longer(mask, made), ids.shape[1]), 5 if plan.sampled else 1)
    if not plan.sampled:
        with using(model, "full"):
            same(made, model.generate(ids, **found), "lossless text")


def continued(plan: Plan, model, ids, mask) -> None:
    """A text, more words, and text again over the same cache, by another runtime."""
    group = DENSE if plan.runtime in DENSE else SKIPPING
    second = random.Random(plan.seed).choice(group)
    kept = plan.recorded and plan.reference != "dense"
    with recording(model) as seen:
        with using(model, plan.runtime):
            first = model.generate(ids, **options(plan, mask, return_dict_in_generate=True))
        words = torch.randint(3, 128, (len(ids), 5), generator=torch.Generator().manual_seed(plan.seed + 1))
        asked = torch.cat((first.sequences, words), dim=1)
        mask = longer(mask, asked)
        with using(model, second):
            whole = model.generate(asked, **options(plan, mask), **cache_argument(output_cache(first)))
    length = first.sequences.shape[1]
    before = Made(first.sequences, mask[:, :length], ids.shape[1], run=seen.run[..., : length - 1] if kept else None)
    check_made(plan, model, before)
    check_made(plan, model, Made(whole, longer(mask, whole), asked.shape[1], run=seen.run if kept else None))


def same(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    if found.tolist() != expected.tolist():
        raise Mismatch(f"{what} is not the reference's: {found.tolist()} against {expected.tolist()}")


WAYS: dict[str, Callable] = {
    "greedy": greedy,
    "sampled": sampled,
    "beams": beams,
    "paged": paged,
    "lossless": lossless,
    "continued": continued,
}


def run(plan: Plan) -> None:
    """Generate and compare. Mismatch, or whatever went wrong."""
    model = set_up(plan)
    WAYS[plan.way](plan, model, *prompts(plan, model))
