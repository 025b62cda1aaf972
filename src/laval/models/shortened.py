"""A shortened model as a Hugging Face causal language model: position t holds token t and predicts the next."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from laval.compat import CACHE, keep_rows, output_field, pick_cache
from laval.files import atomic_folder
from laval.models.calls import NOT_KEPT
from laval.models.safe import FromSafetensors
from laval.models.shortened_cache import ShortenedCache, as_shortened
from laval.models.shortened_config import ShortenedConfig
from laval.models.weights import WEIGHT_FILES
from laval.ops.segments import gather_left, scatter_back
from laval.shorten import Commits, Level, Memory, Nothing, Rows, build_stacks
from laval.shorten.factor import threshold_for
from laval.shorten.kinds import ModernKind, PaperKind
from laval.shorten.predictor import EntropyRule


@dataclass
class ShortenedOutput(CausalLMOutputWithPast):
    """loss: language loss plus what the commit rules add. boundaries, chances: of level 0, at the tokens' places
    [B, T]; None where nothing shortens, or the rule has no chances. commits: of every level, outermost first, with
    the streams' rows at the left (see `Commits`).
    """

    language_loss: torch.Tensor | None = None
    commit_loss: torch.Tensor | None = None
    boundaries: torch.Tensor | None = None
    chances: torch.Tensor | None = None
    commits: tuple[Commits, ...] | None = None


class ShortenedForCausalLM(FromSafetensors, PreTrainedModel, GenerationMixin):
    """`kind`: embedding and head. `stacks`: the hierarchy between them (see `Level`). `base`: the model whose layers
    the stacks call, under its own weight names; None for published layers.
    """

    config_class = ShortenedConfig
    base_model_prefix = "stacks"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    accepts_loss_kwargs = False  # the commit loss is a mean of its own: the Trainer must divide by accumulation steps

    def __init__(self, config: ShortenedConfig, base: PreTrainedModel | None = None):
        super().__init__(config)
        wanted = config.text_config is not None
        self.base = AutoModelForCausalLM.from_config(config.text_config) if wanted and base is None else base
        self.kind = ModernKind(self.base) if wanted else PaperKind(config.read_paper, config.vocab_size)
        self.stacks = build_stacks(config.read_plan, config.read_levels, self.kind)
        self.tokenizer = None
        self.keep_made()
        self.post_init()

    def save_pretrained(self, save_directory, is_main_process=True, **options) -> None:
        """Config and weights as safetensors, and the tokenizer if there is one; all or nothing."""
        self.note_thresholds()
        if not is_main_process:  # takes part in gathering, writes nothing
            return super().save_pretrained(save_directory, is_main_process=False, **options)
        if options.get("push_to_hub"):
            options.setdefault("repo_id", Path(save_directory).name)
        with atomic_folder(save_directory, discard=WEIGHT_FILES) as new:
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(new)
            super().save_pretrained(new, **options)

    @torch.no_grad()
    def set_shorten_factor(self, input_ids, factor: float, attention_mask=None, level: int = 0) -> float:
        """The threshold at which a level's learned rule shortens input_ids [B, T] by `factor`, put in force.

        It is saved with the model. ValueError for a rule without threshold, or a factor out of range.
        """
        rules = self.rules()
        if not 0 <= level < len(rules):
            raise ValueError(f"level is {level}; expected below {len(rules)}, the levels that shorten")
        training = self.training
        commits = self.eval()(input_ids, attention_mask=attention_mask, use_cache=False).commits[level]
        self.train(training)
        rules[level].threshold = threshold_for(rules[level], commits, factor)
        self.note_thresholds()
        return rules[level].threshold

    def note_thresholds(self) -> None:
        """Thresholds as they are now into the config."""
        for rule, level in zip(self.rules(), self.config.levels, strict=True):
            if hasattr(rule, "threshold"):
                level["rule"]["threshold"] = rule.threshold

    def get_input_embeddings(self):
        return self.kind.embedding

    def set_input_embeddings(self, value) -> None:
        self.kind.embedding = value

    def get_output_embeddings(self):
        return self.kind.output

    def set_output_embeddings(self, value) -> None:
        self.kind.output = value

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
        boundaries=None,
        boundary_targets=None,
        **kwargs,
    ) -> ShortenedOutput:
        """Logits of input_ids [B, T], or of what follows the cache. Positions are counted by the model itself.

        attention_mask [B, S]: 0 at pads, wherever they are. boundaries [B, T]: commits of level 0 to replay (or a
        tuple of such, one per level); as numbers that want a gradient they get it. boundary_targets [B, T]: where a
        supervised rule should commit; labels [B, T] as in transformers. ValueError for shapes that do not fit.
        """
        check_kept(kwargs)
        cache = self.open_cache(pick_cache(cache, past_key_values), use_cache)
        embeds, ids = self.inputs(input_ids, inputs_embeds)
        mask = pads(attention_mask, ids)
        x, commits = self.shorten(self.kind.enter(embeds), ids, mask, memory_of(cache), replayed(boundaries))
        if cache is not None:
            cache.seen(ids.shape[1])
        logits = self.kind.head(keep_rows(x, logits_to_keep))  # [B, kept, V]
        language, committed = self.losses(logits, labels, commits, mask, boundary_targets)
        return ShortenedOutput(
            loss=language if committed is None or language is None else language + committed,
            logits=logits,
            language_loss=language,
            commit_loss=committed,
            boundaries=placed(commits, "bits", mask),
            chances=placed(commits, "chance", mask),
            commits=commits,
            **output_field(cache),
        )

    def inputs(self, ids, embeds) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeddings [B, T, D], and ids [B, T]: -1 where none are known."""
        if (ids is None) == (embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        if ids is not None:
            check_ids(ids, self.config.vocab_size)
            return self.kind.embed(ids), ids
        return embeds, embeds.new_full(embeds.shape[:2], -1, dtype=torch.long)

    def shorten(self, x, ids, mask, memory: Memory, given) -> tuple[torch.Tensor, tuple[Commits, ...]]:
        """The whole hierarchy: x [B, T, D] -> [B, T, D]. Inside, every stream stands at the left."""
        if mask is not None:
            x, ids, given = gather_left(x, mask), gather_left(ids, mask), left(given, mask)
        rows = Rows(x, *counted(ids, mask, memory), ids)
        rows, commits = self.stacks(rows, memory, given)
        return (rows.x if mask is None else scatter_back(rows.x, mask)), commits

    def losses(
        self, logits, labels, commits, mask, boundary_targets
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The language loss, and the sum of what the rules add; None for what nothing asks for."""
        if labels is None and boundary_targets is None:
            return None, None
        language = None
        if labels is not None:
            language = self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1])
        wanted = self.boundary_targets(logits, mask, boundary_targets)
        found = [
            rule.loss(taken, wanted if number == 0 else None)
            # inner levels that nothing reached have no commits
            for number, (rule, taken) in enumerate(zip(self.rules(), commits, strict=False))
        ]
        found = [loss for loss in found if loss is not None]
        return language, sum(found) if found else None

    def boundary_targets(self, logits, mask, given) -> torch.Tensor | None:
        """Labels of level 0, with the streams at the left: those given, or the spikes of the model's own entropy."""
        rules = self.rules()
        if given is None and rules and isinstance(rules[0], EntropyRule):
            return rules[0].labels(logits if mask is None else gather_left(logits, mask))
        return given if given is None or mask is None else gather_left(given, mask)

    def rules(self):
        """The commit rule of each level, outermost first."""
        return self.stacks.rules() if isinstance(self.stacks, Level) else []

    def open_cache(self, cache, use_cache) -> ShortenedCache | None:
        """The caller's cache, a new one if one is wanted, or None. Without gradients one is wanted by default."""
        wanted = not torch.is_grad_enabled() and not self.training if use_cache is None else use_cache
        return as_shortened(cache) if wanted or cache is not None else None

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *arguments, **options):
        given = model_kwargs.get(CACHE)
        if generation_config.cache_implementation is not None:
            raise ValueError(
                f"cache_implementation is {generation_config.cache_implementation!r}; a shortened model has its own "
                "cache: leave it out"
            )
        if given is not None or generation_config.use_cache is not False:
            model_kwargs[CACHE] = as_shortened(given)


def check_kept(kwargs: dict) -> None:
    for name in NOT_KEPT:
        if kwargs.get(name):
            raise ValueError(f"{name} is {kwargs[name]}; a shortened model does not keep them, expected False")


def memory_of(cache: ShortenedCache | None) -> Memory:
    return Nothing() if cache is None else cache.memory


def counted(ids, mask, memory: Memory) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of each stream in this call, and before it: int64 [B] each."""
    lengths = ids.new_full(ids.shape[:1], ids.shape[1]) if mask is None else mask.sum(1)
    first = memory.recall("tokens")
    first = torch.zeros_like(lengths) if first is None else first
    memory.keep("tokens", first + lengths)
    return lengths, first


def pads(attention_mask, ids) -> torch.Tensor | None:
    """False at the pads among these tokens: bool [B, T]; None where there are none."""
    if attention_mask is None:
        return None
    if attention_mask.ndim != 2 or attention_mask.shape[0] != ids.shape[0] or attention_mask.shape[1] < ids.shape[1]:
        raise ValueError(
            f"attention_mask has the shape {list(attention_mask.shape)}; expected [{ids.shape[0]}, {ids.shape[1]} or "
            "more]: batch, tokens so far"
        )
    mask = attention_mask[:, -ids.shape[1] :].bool()
    return None if bool(mask.all()) else mask


def replayed(boundaries) -> tuple[torch.Tensor | None, ...]:
    """Commits to replay, one per level."""
    if boundaries is None:
        return ()
    return tuple(boundaries) if isinstance(boundaries, (tuple, list)) else (boundaries,)


def left(given, mask) -> tuple[torch.Tensor | None, ...]:
    """Commits at the tokens' places moved to where the streams stand; those of inner levels stand there already."""
    return tuple(
        gather_left(bits, mask) if not level and bits is not None else bits for level, bits in enumerate(given)
    )


def placed(commits, name: str, mask) -> torch.Tensor | None:
    """What level 0 decided, at the tokens' places."""
    found = getattr(commits[0], name) if commits else None
    return found if found is None or mask is None else scatter_back(found, mask)


def check_ids(ids: torch.Tensor, vocabulary: int) -> None:
    if not ids.shape[1]:
        raise ValueError("input_ids is empty; expected at least one token in each row")
    if ids.device.type == "cpu" and (int(ids.min()) < 0 or int(ids.max()) >= vocabulary):
        raise ValueError(
            f"input_ids go from {int(ids.min())} to {int(ids.max())}; expected 0 to {vocabulary - 1}: the text has "
            "tokens that the model's vocabulary lacks"
        )
