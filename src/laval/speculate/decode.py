"""Lossless decoding: drafts propose, the dense model verifies, and the text is the dense model's own."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from weakref import WeakKeyDictionary

import torch

from laval.compat import pick_cache
from laval.models import AdaptiveForCausalLM
from laval.models.checks import check_adaptive
from laval.models.loop import Stop
from laval.speculate.control import Controller, Plan
from laval.speculate.drafts import ExitDraft, SkipDraft, propose
from laval.speculate.keep import draft_beside
from laval.speculate.lookup import Habits, Lookup
from laval.speculate.proposal import NOTHING, Proposal, Verdict
from laval.speculate.reader import Reader
from laval.speculate.refuse import check_config, check_draft, check_inputs
from laval.speculate.result import Account, LosslessGeneration
from laval.speculate.states import States
from laval.speculate.trained import TrainedDraft, check_trained
from laval.speculate.trained import propose as propose_while
from laval.speculate.verify import Greedy, Sampling

MOST = 15  # proposed tokens, at one go


class Experience:
    """What is kept of a model from text to text: costs, acceptance, habits, its draft. No output depends on it."""

    def __init__(self):
        self.controller = Controller()
        self.habits = Habits()
        self.draft: TrainedDraft | None = None

    def trained(self, model) -> TrainedDraft | None:
        """The draft beside the plug-in, once there is one. ValueError for one that is damaged or does not fit."""
        if self.draft is None:
            head = draft_beside(model)
            self.draft = None if head is None else TrainedDraft(model, head)
        return self.draft


EXPERIENCE: WeakKeyDictionary = WeakKeyDictionary()


def lossless(
    model: AdaptiveForCausalLM, input_ids: torch.Tensor, draft: str = "auto", streamer=None, **options
) -> LosslessGeneration:
    """Generate after input_ids [1, T] what the dense model would, in fewer dense passes.

    Greedy: the same tokens. Sampling: the same distribution. draft: auto, head (one trained for the model, beside its
    plug-in), skip (the skipping model), exit (its first layers), lookup (what followed the same words before) or none.
    streamer, options: as of `generate`.
    ValueError for batches, pads, beams and whatever else cannot be followed exactly; TypeError for other models.
    """
    check_adaptive(model)
    decoder = Lossless(draft, streamer)
    ids = model.generate(input_ids, custom_generate=decoder, **options)
    return LosslessGeneration(ids, decoder.account)


class Lossless:
    """A decoding method for `generate(custom_generate=Lossless("auto"))`; `account` says how the last call went.

    streamer: given here, for transformers does not hand its own on to a method like this one. depth: of the skipping
    draft, on the budget curve. exit_layers: of the early exit.
    """

    def __init__(self, draft="auto", streamer=None, depth: float | None = None, exit_layers: int | None = None):
        self.draft, self.streamer = check_draft(draft), streamer
        self.depth, self.exit_layers = depth, exit_layers
        self.account = Account()

    @torch.no_grad()
    def __call__(
        self,
        model,
        input_ids,
        logits_processor=(),
        stopping_criteria=(),
        generation_config=None,
        **others,
    ) -> torch.Tensor:
        """As transformers' own decoding methods are called; returns ids [1, prompt + new]."""
        check_config(generation_config)
        cache = pick_cache(others.get("cache"), others.get("past_key_values"))
        check_inputs(input_ids, others.get("attention_mask"), cache, others.get("inputs_embeds"))
        sampled = generation_config.do_sample
        rule = Sampling(logits_processor) if sampled else Greedy(logits_processor, model.base.dtype)
        drafts = self.drafts(model)
        reader = Reader(model, cache, States() if "head" in drafts else None)
        run = Run(model, reader, rule, drafts, self.draft)
        self.account = run.account
        return run.text(input_ids, Stop(stopping_criteria), generation_config.max_length, self.streamer)

    def drafts(self, model) -> dict:
        """The drafts that the model itself can make, of those asked for."""
        drafts, learned = {}, EXPERIENCE.setdefault(model, Experience())
        if self.draft == "head" or (self.draft == "auto" and learned.trained(model)):
            drafts["head"] = check_trained(learned.trained(model), model)
        usable = model.policy.layers and model.policy.keeps_kv
        if self.draft == "skip" or (self.draft == "auto" and usable):
            drafts["skip"] = SkipDraft(model, self.depth)
        if self.draft == "exit" or (self.draft == "auto" and len(model.backbone.blocks) > 1):
            drafts["exit"] = ExitDraft(model, self.exit_layers)
        return drafts


class Run:
    """One text being written."""

    def __init__(self, model, reader: Reader, rule, drafts: dict, wanted: str):
        self.model, self.reader, self.rule, self.drafts, self.wanted = model, reader, rule, drafts, wanted
        self.account = Account()
        learned = EXPERIENCE.setdefault(model, Experience())
        self.controller = learned.controller
        self.controller.start()
        self.must = wanted in ("skip", "exit", "head")
        self.lookup = Lookup(learned.habits, self.controller.free) if wanted in ("auto", "lookup") else None

    def text(self, ids: torch.Tensor, stop, longest: int, streamer) -> torch.Tensor:
        """The whole text [1, prompt + new]."""
        if streamer is not None:
            streamer.put(ids.cpu())
        with self.timed("prompt"):
            known = self.reader.length
            logits = self.reader.start(ids)
        if "head" in self.drafts:
            self.drafts["head"].start(known)
        if self.lookup:
            self.lookup.read(ids[0].tolist())
        verdict = self.rule.settle(ids, logits, NOTHING, exact=True)
        ids, done = self.write(ids, verdict.tokens, stop, streamer)
        while not done:
            start = time.perf_counter()
            tokens, plan, plain = self.round(ids, longest - ids.shape[1])
            ids, done = self.write(ids, tokens, stop, streamer)
            self.controller.settle(plan, len(tokens), time.perf_counter() - start, plain)
        if streamer is not None:
            streamer.end()
        return ids

    def write(self, ids: torch.Tensor, tokens, stop, streamer) -> tuple[torch.Tensor, bool]:
        """Put tokens behind the text, one by one, until something says stop."""
        for token in tokens:
            ids = torch.cat([ids, ids.new_tensor([[token]])], dim=1)
            self.account.new_tokens += 1
            if self.lookup:
                self.lookup.add(token)
            if streamer is not None:
                streamer.put(ids[0, -1:].cpu())
            if stop(ids):
                return ids, True
        return ids, False

    def round(self, ids: torch.Tensor, left: int) -> tuple[tuple[int, ...], Plan, bool]:
        """One proposal and its verification: the tokens that stand, at least one; whether plain decoding does so."""
        proposal, plan = self.proposal(ids, left)
        verdict = self.verify(ids, proposal)
        tokens = verdict.tokens
        if plan.draft in self.drafts:
            self.controller.learn(proposal.sources, verdict.accepted)
        self.account.note(plan.draft, len(proposal), verdict.accepted)
        if verdict.tied:
            tokens = (*tokens, self.settle_tie(ids, tokens))
        return tokens, plan, plan.draft == "none" and not verdict.tied

    def proposal(self, ids: torch.Tensor, left: int) -> tuple[Proposal, Plan]:
        if not (self.controller.open or self.must):
            return NOTHING, Plan()
        free, likely = self.lookup.propose(MOST) if self.lookup else (NOTHING, [])
        shares = {name: draft.share for name, draft in self.drafts.items()}
        plan = self.controller.plan(likely, shares, left, self.must)
        if plan.draft == "lookup":
            return Proposal(free.tokens[: plan.tokens], free.sources[: plan.tokens]), plan
        if plan.draft == "none":
            return NOTHING, plan
        with self.timed("draft") as spent:
            proposal, looks = self.drawn(ids, plan)
        self.controller.costs.note_draft(plan.draft, spent() / looks)
        return proposal, plan

    def drawn(self, ids: torch.Tensor, plan: Plan) -> tuple[Proposal, int]:
        """A proposal by the plan's draft, and how many tokens that draft looked ahead."""
        draft = self.drafts[plan.draft]
        if not isinstance(draft, TrainedDraft):
            return propose(draft, self.reader, ids, self.rule, plan.tokens), plan.tokens
        goes_on = partial(self.controller.goes_on, share=draft.share, must=self.must)
        return propose_while(draft, self.reader, ids, self.rule, plan.tokens, goes_on)

    def verify(self, ids: torch.Tensor, proposal: Proposal) -> Verdict:
        """The dense model reads the last token and the proposed ones at once; what does not stand is forgotten."""
        reader = self.reader
        with self.timed("verify") as spent:
            logits = reader.read([int(ids[0, -1]), *proposal.tokens])
            exact = reader.exact == reader.length
            verdict = self.rule.settle(ids, logits, proposal, exact)
            reader.forget(len(proposal) - verdict.accepted)
        self.controller.costs.note_pass(len(proposal) + 1, spent())
        return verdict

    def settle_tie(self, ids: torch.Tensor, tokens) -> int:
        """The token that plain decoding puts after the text and `tokens`, found as plain decoding would."""
        before = self.reader.length
        with self.timed("replay"):
            text = torch.cat([ids, ids.new_tensor([tokens])], dim=1) if tokens else ids
            logits = self.reader.replay(text)
            verdict = self.rule.settle(text, logits, NOTHING, exact=True)
        self.account.replays += 1
        self.account.replayed += before - self.reader.prompt
        return verdict.tokens[0]

    @contextmanager
    def timed(self, what: str):
        """Adds the seconds spent inside to the account; what is handed out tells them afterwards."""
        start = time.perf_counter()
        took = []
        yield lambda: took[0]
        took.append(time.perf_counter() - start)
        self.account.seconds[what] += took[0]
