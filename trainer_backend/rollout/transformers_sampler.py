"""Sampling with the model that is trained, in this process, without a second copy of it.

What makes it faster than `generate`, and changes no number that a completion depends on:

- **Completions that are the same so far are one row.** A prompt is computed once for its whole group, and so is every
  token until two completions of the group differ; then the cache row is copied and each goes on alone. A trained policy
  repeats itself, so a group of eight is often two or three rows. Greedy completions are always one row.
- What all prompts begin with (the shots, the system message) is computed once.
- A row whose completion ends leaves the batch at once, and waiting prompts take its room.
- Keys and values are written in place (`slots`); rows have their own lengths, so there is no padding.
- LoRA layers are computed without what only training needs (`folding`), and on a GPU a token is one launch (`graphs`).
- The head sees only the positions that are drawn from, in one piece of memory, and gives float32 logits.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn
from transformers.cache_utils import get_layer_types_and_kwargs

from rewardkit.errors import UsageError
from trainer_backend.data import Prompt
from trainer_backend.model.forward import Dense, base_of, decoder_of, precision, text_config
from trainer_backend.ops import Head
from trainer_backend.plan import PREFILL, SAMPLED_ROWS
from trainer_backend.rollout.attention import single_queries
from trainer_backend.rollout.draw import Drawn, draw, greedy, processors
from trainer_backend.rollout.folding import Folded, Slim
from trainer_backend.rollout.graphs import DecodingGraph, Record, cuda_graph
from trainer_backend.rollout.logits import head_logits
from trainer_backend.rollout.options import SamplingOptions, ends_of
from trainer_backend.rollout.slots import SlotCache
from trainer_backend.rollout.types import FinishReason, Rollout, Sampled

SHARED = 8
"""A common beginning of all prompts is computed once when it has at least so many tokens."""
LAYERS = ("full_attention", "sliding_attention")
"""The kinds of layers whose past is keys and values by position."""


@dataclass(frozen=True)
class _Past:
    """What a model keeps of the tokens before.

    Attributes:
        layers: How many layers keep keys and values.
        kinds: The kinds of layers there are.
        window: Tokens that a sliding layer sees, itself included; None where all layers see everything.
    """

    layers: int
    kinds: tuple[str, ...]
    window: int | None


class TransformersSampler:
    """Draws completions from a causal language model of transformers; see the module's text.

    The log-probs are those of the weights and precision of the trainer, and differ from its own only by rounding. With
    `fold`, the adapter is folded into a second copy of the weights that it changes (rounded to their dtype), made anew
    at every `update`; the model itself is never written to.

    Attributes:
        options: How completions are drawn.
        ends: When they end.
        max_rows: How many are decoded together.
        past: What the model keeps of the tokens before.
        device: Where the model is.
        record: Makes graphs of decoding steps; None on a CPU.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        options: SamplingOptions,
        *,
        head: Head | Dense,
        eos_ids: Iterable[int],
        version: int = 0,
        max_rows: int = SAMPLED_ROWS,
        fold: bool = False,
    ) -> None:
        """Make a sampler.

        Args:
            model: The model, or a PeftModel around it; its adapter, when enabled, is what samples.
            tokenizer: Turns ids into text.
            options: How to draw.
            head: What `model.forward.head_of` says.
            eos_ids: Every token that ends a completion.
            version: What the groups carry until the first `update`.
            max_rows: Completions that are decoded together; a whole group is, whatever this says.
            fold: See the class; for dense weights only.

        Raises:
            UnknownName, OptionError: Options that this sampler does not have.
            UsageError: The model keeps something else than keys and values (recurrent layers), or has nothing to fold.
        """
        eos = frozenset(eos_ids)
        self.options, self.ends, self.max_rows = options, ends_of(options, eos), max(1, max_rows)
        self.past, self._config = _past(model), text_config(model)
        base = base_of(model)
        self._weight = base.get_input_embeddings().weight
        self.device: torch.device = self._weight.device
        self._model, self._tokenizer, self._head, self._eos = model, tokenizer, head, eos
        self._body = base if isinstance(head, Dense) else decoder_of(model)
        self._cache_name = _cache_name(self._body)
        self._version = version
        self._layers: Folded | Slim | None = Folded(model) if fold else Slim(model, self._weight.dtype)
        self.record: Record | None = cuda_graph if self.device.type == "cuda" else None
        self._closed = False

    @property
    def name(self) -> str:
        """What to call it in a log."""
        return "transformers"

    @property
    def differs(self) -> str:
        """The base weights are the trainer's."""
        return ""

    def update(self, version: int) -> None:
        """From now on the adapter as it is now samples; its groups carry `version`."""
        self._version = version
        if isinstance(self._layers, Folded):
            self._layers.refresh()

    def current(self) -> bool:
        """Return whether the newest adapter samples: the model's own does; folded weights may be those of another."""
        return not isinstance(self._layers, Folded) or self._layers.current()

    def close(self) -> None:
        """Free the folded weights, and refuse to sample from now on."""
        self._closed, self._layers = True, None

    def sample(
        self, prompts: Sequence[Prompt], n: int, *, seed: int, greedy: bool = False
    ) -> Iterator[tuple[int, Rollout]]:
        """Yield `(index into prompts, its group of n completions)`, each once it is finished; see `types.Sampler`.

        Raises:
            UsageError: The sampler is closed, n is below 1, or a prompt has no token.
        """
        if self._closed:
            raise UsageError("the sampler is closed; make a new one")
        if n < 1:
            raise UsageError(f"a group has at least one completion, got n = {n}")
        for at, prompt in enumerate(prompts):
            if not prompt.ids:
                raise UsageError(f"prompt {at} (sample {prompt.sample.id!r}) has no token to go on from; give it text")
        return self._rollouts(_Run(self, prompts, n, seed, greedy))

    def _rollouts(self, run: _Run) -> Iterator[tuple[int, Rollout]]:
        slim = self._layers if isinstance(self._layers, Slim) else None
        if slim is not None:
            slim.refresh()
        try:
            # The contexts are left before each yield: what is done between two groups must not run under them.
            while True:
                with self._decoding():
                    finished = run.advance()
                if not finished:
                    return
                for group in finished:
                    yield group.place, self._rollout(group)
        finally:
            if slim is not None:
                slim.forget()

    def _rollout(self, group: _Group) -> Rollout:
        return Rollout(group.prompt, tuple(self._sampled(group.prompt, part) for part in group.parts), self._version)

    def _sampled(self, prompt: Prompt, part: _Part) -> Sampled:
        ids = part.ids[:-1] if part.ids[-1] in self._eos else part.ids
        text = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        reason: FinishReason = "stop" if part.ids[-1] in self.ends.ids else "length"
        return Sampled(tuple(part.ids), tuple(part.logps), reason, prompt.opener + text)

    @contextlib.contextmanager
    def _decoding(self) -> Iterator[None]:
        training = [module for module in self._model.modules() if module.training]
        self._model.eval()
        attention: Any = torch.backends.cuda  # without types
        cudnn = attention.cudnn_sdp_enabled()
        attention.enable_cudnn_sdp(False)  # it plans anew for each length (25 ms), and every token has another
        try:
            with torch.no_grad(), precision(self.device, self._weight.dtype), self._layers or contextlib.nullcontext():
                yield
        finally:
            attention.enable_cudnn_sdp(cudnn)
            for module in training:
                module.training = True

    # ------------------------------------------------------------------------------------------- what a run asks for

    def append(self, group: _Group, member: int, token: int, logp: float) -> bool:
        """Append a token to a completion; return whether it ends there."""
        part = group.parts[member]
        part.ids.append(token)
        part.logps.append(logp)
        ended = token in self.ends.ids or len(part.ids) >= self.options.max_tokens
        group.left -= ended
        return ended

    def forward(self, ids: torch.Tensor, cache: SlotCache, ends: torch.Tensor | None) -> torch.Tensor:
        """Compute tokens after what the cache holds.

        Args:
            ids: int64 [rows, tokens].
            cache: Told where to write.
            ends: int64 [rows]; the token of each row whose logits are wanted. None: none are.

        Returns:
            Float32 or float64 [rows, vocabulary]; [0, 0] for none.
        """
        states = self.states(ids, cache)
        return torch.empty(0, 0) if ends is None else self.logits(states, ends)

    def states(self, ids: torch.Tensor, cache: SlotCache) -> torch.Tensor:
        """Return the hidden states [rows, tokens, hidden], or the logits of a model without a head of its own."""
        window = cache.window
        if window.places is None:
            positions = torch.arange(window.start, window.width, device=self.device).expand(len(ids), -1)
        else:
            positions = window.places.unsqueeze(1)
        plain = window.places is None and not window.start
        mask = None if plain else self._mask(positions, window.width)
        with contextlib.nullcontext() if window.places is None else single_queries(self._config):
            out = self._body(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                return_dict=True,
                **{self._cache_name: cache},
            )
        return cast(torch.Tensor, out.logits if isinstance(self._head, Dense) else out.last_hidden_state)

    def logits(self, states: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Return the logits of one token a row; see `forward`."""
        rows, tokens = states.shape[:2]
        picked = states.flatten(0, 1).index_select(0, torch.arange(rows, device=self.device) * tokens + ends)
        if isinstance(self._head, Head):
            return head_logits(picked, self._head)
        return picked if picked.dtype == torch.float64 else picked.float()

    def _mask(self, positions: torch.Tensor, width: int) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return who sees whom: a query sees columns up to its position, in sliding layers the last ones of them."""
        columns = torch.arange(width, device=self.device)
        queries = positions[:1] if len(positions) > 1 and positions.stride(0) == 0 else positions
        full = columns <= queries.unsqueeze(-1)
        masks = {"full_attention": full}
        if self.past.window is not None:
            masks["sliding_attention"] = full & (columns > queries.unsqueeze(-1) - self.past.window)
        ready = {kind: self._as_attention_wants(masks[kind].unsqueeze(1)) for kind in self.past.kinds}
        return ready if len(ready) > 1 else next(iter(ready.values()))

    def _as_attention_wants(self, mask: torch.Tensor) -> torch.Tensor:
        if self._config._attn_implementation != "eager":
            return mask
        dtype = self._weight.dtype
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


def _cache_name(body: nn.Module) -> str:
    """Return what the model's forward calls a cache: newer versions of transformers renamed it."""
    return "cache" if "cache" in inspect.signature(body.forward).parameters else "past_key_values"


def _past(model: nn.Module) -> _Past:
    """Return what a model keeps of the tokens before.

    Raises:
        UsageError: Something else than keys and values by position, or an attention that takes no mask.
    """
    config = text_config(model)
    kinds, settings = get_layer_types_and_kwargs(config)
    for kind in kinds:
        if kind not in LAYERS:
            raise UsageError(
                f"{type(base_of(model)).__name__} has layers of the kind {kind!r}, and the transformers sampler knows"
                f' {" and ".join(LAYERS)}; set rollout.engine = "vllm"'
            )
    attention = getattr(config, "_attn_implementation", None)
    if attention not in ("sdpa", "eager"):
        raise UsageError(f'the transformers sampler works with the attention "sdpa" or "eager", got {attention!r}')
    each: list[Any] = [settings] if isinstance(settings, dict) else settings  # one for all layers before 5.20
    windows = [setting["sliding_window"] for setting in each if setting.get("sliding_window")]
    return _Past(len(kinds), tuple(dict.fromkeys(kinds)), min(windows, default=None))


@dataclass(slots=True)
class _Part:
    """A completion while it is drawn."""

    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Group:
    place: int
    prompt: Prompt
    parts: list[_Part]
    generator: torch.Generator
    left: int

    def uniforms(self) -> list[float]:
        """Return a number in [0, 1) for each completion, also for those that have ended: none depends on the others."""
        numbers: list[float] = torch.rand(len(self.parts), generator=self.generator, dtype=torch.float64).tolist()
        return numbers


@dataclass(slots=True, eq=False)
class _Row:
    """Completions of one group that are the same so far: one row of the batch, one slot of the cache.

    Attributes:
        group: Their group.
        members: Their places in it.
        length: Tokens whose keys and values the slot holds.
        token: The last token, which it does not hold yet.
    """

    group: _Group
    members: list[int]
    length: int
    token: int = -1


class _Run:
    """One call of `sample`."""

    def __init__(
        self, sampler: TransformersSampler, prompts: Sequence[Prompt], n: int, seed: int, greedy: bool
    ) -> None:
        self._sampler, self._n, self._greedy = sampler, n, greedy
        self._waiting = deque(
            _Group(place, prompt, [_Part() for _ in range(n)], _generator(seed, place), n)
            for place, prompt in enumerate(prompts)
        )
        self._rows: list[_Row] = []  # in the order of their slots
        self._finished: list[_Group] = []
        self._processors = processors(sampler.options)
        self._device = sampler.device
        self._prefix: tuple[int, ...] = () if sampler.past.window else _common([prompt.ids for prompt in prompts])
        self._columns = max((len(prompt.ids) for prompt in prompts), default=0)
        most = (max(n, sampler.max_rows), self._columns + sampler.options.max_tokens)
        self._cache = SlotCache(sampler.past.layers, most)
        record = sampler.record
        self._graph = None if record is None else DecodingGraph(record, self._cache, self._device)

    def advance(self) -> list[_Group]:
        """Decode until a group is finished; return those that are, none when there is nothing left."""
        while not self._finished and (self._rows or self._waiting):
            while batch := self._admitted():
                self._start(batch)
            if self._rows and not self._finished:
                self._step()
        found, self._finished = self._finished, []
        return found

    # --------------------------------------------------------------------------------------------------------- prompts

    def _admitted(self) -> list[_Group]:
        """Take waiting groups for which there is room, as many as one forward pass may hold."""
        batch: list[_Group] = []
        busy, longest = sum(len(row.members) for row in self._rows), 0
        while self._waiting and (busy + self._n <= self._sampler.max_rows or not (self._rows or batch)):
            longest = max(longest, len(self._waiting[0].prompt.ids) - len(self._prefix))
            if batch and longest * (len(batch) + 1) > PREFILL:
                break
            batch.append(self._waiting.popleft())
            busy += self._n
        return batch

    def _start(self, batch: list[_Group]) -> None:
        first, start = len(self._rows), len(self._prefix)
        self._cache.reserve(first + len(batch), self._columns + min(self._sampler.options.max_tokens, 64))
        if start:
            self._place_prefix(first, len(batch))
        rests = [group.prompt.ids[start:] for group in batch]
        width = max(map(len, rests))
        # Padding on the right: no token comes after it, and decoding overwrites its columns.
        ids = torch.tensor([[*rest, *[0] * (width - len(rest))] for rest in rests], device=self._device)
        self._cache.write_prompts(first, len(batch), start, width)
        ends = torch.tensor([len(rest) - 1 for rest in rests], device=self._device)
        logits = self._sampler.forward(ids, self._cache, ends)
        rows = [_Row(group, list(range(self._n)), len(group.prompt.ids)) for group in batch]
        self._branch(rows, logits, first)

    def _place_prefix(self, first: int, count: int) -> None:
        """Put what all prompts begin with into `count` slots from `first` on."""
        if not first:
            self._cache.write_prompts(0, 1, 0, len(self._prefix))
            self._sampler.forward(torch.tensor([self._prefix], device=self._device), self._cache, None)
        # Slot 0 holds it, of whatever row that is.
        targets = list(range(max(first, 1), first + count))
        self._cache.copy([0] * len(targets), targets, len(self._prefix), self._device)

    # ---------------------------------------------------------------------------------------------------------- tokens

    def _step(self) -> None:
        states = self._replayed()
        if states is None:
            lengths = [row.length for row in self._rows]
            width = max(lengths) + 1
            self._cache.reserve(len(lengths), width)
            self._cache.write_tokens(torch.tensor(lengths, device=self._device), width)
            ids = torch.tensor([[row.token] for row in self._rows], device=self._device)
            states = self._sampler.states(ids, self._cache)
        ends = torch.zeros(len(self._rows), dtype=torch.int64, device=self._device)
        logits = self._sampler.logits(states, ends)
        for row in self._rows:
            row.length += 1
        rows, self._rows = self._rows, []
        self._branch(rows, logits, 0)

    def _replayed(self) -> torch.Tensor | None:
        """Return the states of the next tokens by a graph, where there can be one."""
        if self._graph is None:
            return None
        drawn = min(len(row.group.parts[row.members[0]].ids) for row in self._rows)
        return self._graph.states(
            self._sampler.states,
            [row.token for row in self._rows],
            [row.length for row in self._rows],
            1 if self._greedy else sum(len(row.members) for row in self._rows),
            self._sampler.options.max_tokens - drawn,
        )

    def _branch(self, rows: list[_Row], logits: torch.Tensor, first: int) -> None:
        """Draw a token for each member of `rows`, and put the rows that go on into the slots from `first` on.

        Args:
            rows: Row i lies in slot first + i.
            logits: [len(rows), vocabulary].
            first: As many rows stand before these.
        """
        drawn = self._drawn(rows, logits)
        children: list[tuple[int, _Row]] = []
        at = 0
        for slot, row in enumerate(rows, first):
            ways: dict[int, list[int]] = {}
            for member in row.members:
                token = drawn.tokens[at]
                if not self._sampler.append(row.group, member, token, drawn.logps[at]):
                    ways.setdefault(token, []).append(member)
                at += 1
            children += [(slot, _Row(row.group, members, row.length, token)) for token, members in ways.items()]
            if row.group.left == 0 and row.group not in self._finished:
                self._finished.append(row.group)
        self._rows += self._settled(children, first)

    def _drawn(self, rows: list[_Row], logits: torch.Tensor) -> Drawn:
        """Return a token for each member of each row, in order."""
        ends = self._sampler.ends
        for i, row in enumerate(rows):
            if len(row.group.parts[row.members[0]].ids) < ends.at_least:
                logits[i, list(ends.ids)] = -torch.inf
        which = [i for i, row in enumerate(rows) for _ in row.members]
        if self._greedy:
            return greedy(logits, which)
        if self._processors:
            logits = self._processors(cast(Any, self._seen(rows)), cast(Any, logits))
        numbers = {group: group.uniforms() for group in dict.fromkeys(row.group for row in rows)}
        uniforms = [numbers[row.group][member] for row in rows for member in row.members]
        return draw(logits, which, torch.tensor(uniforms, dtype=torch.float64, device=logits.device))

    def _seen(self, rows: list[_Row]) -> torch.Tensor:
        """Return the tokens of each row so far, filled up with its own first token: penalties look at which occur."""
        if self._sampler.options.repetition_penalty == 1.0:
            return torch.zeros(len(rows), 1, dtype=torch.int64, device=self._device)  # nothing else looks at them
        seen = [[*row.group.prompt.ids, *row.group.parts[row.members[0]].ids] for row in rows]
        width = max(map(len, seen))
        return torch.tensor([[*ids, *ids[:1] * (width - len(ids))] for ids in seen], device=self._device)

    def _settled(self, children: list[tuple[int, _Row]], first: int) -> list[_Row]:
        """Copy cache rows so that `children`, each with the slot of its past, fill the slots from `first` on."""
        end = first + len(children)
        placed: dict[int, _Row] = {}
        homeless: list[tuple[int, _Row]] = []
        for slot, row in children:
            if slot < end and slot not in placed:
                placed[slot] = row
            else:
                homeless.append((slot, row))
        # A slot without a child of its own is no source, so copies never read what was overwritten.
        free = [slot for slot in range(first, end) if slot not in placed]
        self._cache.reserve(end, self._columns)
        self._cache.copy(
            [slot for slot, _ in homeless], free, max((row.length for _, row in homeless), default=0), self._device
        )
        placed.update(zip(free, (row for _, row in homeless), strict=True))
        return [placed[slot] for slot in range(first, end)]


def _generator(seed: int, place: int) -> torch.Generator:
    """Return the random numbers of one group: its own, on the CPU whatever the device."""
    generator = torch.Generator()
    generator.manual_seed(int.from_bytes(hashlib.sha256(f"{seed}/{place}".encode()).digest()[:7], "big"))
    return generator


def _common(prompts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return what several prompts begin with, less than the shortest of them; () when that is short."""
    if len(prompts) < 2:
        return ()
    low, high = min(prompts), max(prompts)
    same = 0
    while same < min(map(len, prompts)) - 1 and low[same] == high[same]:
        same += 1
    return low[:same] if same >= SHARED else ()
