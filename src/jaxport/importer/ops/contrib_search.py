"""Text generation of ONNX Runtime's own domain: a decoder that runs in a loop, until all sequences have ended.

The decoder takes the keys and values of earlier tokens, and returns them with those of its own. A loop of XLA has values
of one shape, so they have the places of the longest sequence from the start: those not yet used come first, where the
attention mask hides them, as it hides padding on the left of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxport.errors import ModelError
from jaxport.importer.ops.attention import lowest
from jaxport.importer.ops.contrib_attention import DOMAIN, refuse
from jaxport.importer.resolving.registry import GraphFunction, Host, OutputCount, op
from jaxport.importer.values.host import HostValue, Tensor
from jaxport.importer.values.namespaces import cast, helper, jnp, lax, nn

LONGEST = 4096
"""The longest sequence that ONNX Runtime generates, and the length if the model gives none."""

MOST_BEAMS = 128

DECODER_INPUTS = ["input_ids", "position_ids", "attention_mask"]

Choice = Callable[
    [Tensor, Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, Tensor | None, Tensor, tuple[Tensor, ...]]
]
"""From scores, sequences, their length and the state of a search to the next tokens, the sequences that they continue
(None if each continues its own), whether the search goes on, and the next state."""


@helper
def without_repetition(scores, sequences, length, penalty, ngram_size):
    """Lower the scores of tokens that a sequence has, and of those that would complete a group of tokens again."""
    rows = jnp.arange(scores.shape[0])[:, None]
    places = jnp.arange(sequences.shape[1])
    used = jnp.zeros(scores.shape, bool).at[rows, sequences].max(places < length)
    scores = jnp.where(used, jnp.where(scores < 0, scores * penalty, scores / penalty), scores)
    if not ngram_size:
        return scores
    ends = jnp.arange(ngram_size - 1, sequences.shape[1])
    same = jnp.broadcast_to(ends < length, (scores.shape[0], ends.shape[0]))
    for back in range(1, ngram_size):
        last = jax.lax.dynamic_index_in_dim(sequences, length - back, axis=1)
        same &= sequences[:, ends - back] == last
    closing = jnp.zeros(scores.shape, bool).at[rows, sequences[:, ends]].max(same)
    return jnp.where(closing, jnp.finfo(scores.dtype).min, scores)


@helper
def next_beams(scores, sequences, length, state, settings):
    """Choose the best continuations of each group of beams, and keep those that end.

    `state` holds the scores of the beams, which groups are done, and the best ended sequences with their scores.
    """
    count, end, padding, penalty, early = settings
    _, done, ended, ended_scores = state
    best, places = jax.lax.top_k(scores.reshape(-1, count * scores.shape[1]), 2 * count)
    groups = jnp.arange(best.shape[0])
    beams, tokens = places // scores.shape[1], places % scores.shape[1]
    ends = tokens == end
    origins = (beams + groups[:, None] * count).astype(jnp.int32)
    new = jnp.where(
        (ends & ~done[:, None])[:, :count], best[:, :count] / length.astype(best.dtype) ** penalty, -jnp.inf
    )
    ended, ended_scores = best_ended(ended, ended_scores, sequences[origins[:, :count]], new)
    order = jnp.argsort(ends, axis=1)[:, :count]
    kept = [
        jnp.where(done[:, None], idle, jnp.take_along_axis(x, order, 1))
        for x, idle in ((best, 0), (tokens.astype(jnp.int32), padding), (origins, 0))
    ]
    done |= is_done(best, length, ended_scores, penalty, early)
    beam_scores, tokens, origins = (x.reshape(-1) for x in kept)
    return tokens, origins, ~done.all(), (beam_scores, done, ended, ended_scores)


@helper
def is_done(best, length, ended_scores, penalty, early):
    """Whether each group has as many ended sequences as beams, and none of those that go on can become better."""
    count = ended_scores.shape[1]
    # ONNX Runtime takes the scores of two neighbouring groups from the second group on.
    read = jnp.arange(best.shape[0])[:, None] * count + jnp.arange(2 * count)
    hope = best.reshape(-1)[read].max(1) / length.astype(best.dtype) ** penalty
    return (ended_scores[:, -1] > -jnp.inf) & (early | (ended_scores[:, -1] >= hope))


@helper
def best_ended(ended, ended_scores, sequences, scores):
    """Add sequences (groups, number, length) to the best that have ended; those that came first win a tie."""
    every = jnp.concatenate([ended_scores, scores], axis=1)
    order = jnp.argsort(-every, axis=1)[:, : ended_scores.shape[1]]
    together = jnp.concatenate([ended, sequences], axis=1)
    return jnp.take_along_axis(together, order[:, :, None], 1), jnp.take_along_axis(every, order, 1)


@helper
def finished_beams(sequences, length, state, penalty):
    """Return the best sequences of each group and their scores; beams that go on end here."""
    beam_scores, done, ended, ended_scores = state
    scores = beam_scores.reshape(ended_scores.shape) / length.astype(beam_scores.dtype) ** penalty
    return best_ended(ended, ended_scores, sequences.reshape(ended.shape), jnp.where(done[:, None], -jnp.inf, scores))


@dataclass(frozen=True)
class Constraints:
    """The inputs that change the scores of tokens, each of which may be absent."""

    min_length: Tensor | None = None
    repetition_penalty: Tensor | None = None
    vocab_mask: Tensor | None = None
    prefix_vocab_mask: Tensor | None = None

    def applied(
        self, scores: Tensor, sequences: Tensor, length: Tensor, at_first: bool, search: SearchAttributes
    ) -> Tensor:
        """Return the scores of the next tokens, lowered where a constraint says so."""
        least = lowest(scores.dtype)
        if self.repetition_penalty is not None or search.no_repeat_ngram_size:
            penalty = 1.0 if self.repetition_penalty is None else self.repetition_penalty
            scores = without_repetition(scores, sequences, length, penalty, search.no_repeat_ngram_size)
        if self.vocab_mask is not None:
            scores = jnp.where(self.vocab_mask == 0, least, scores)
        if self.prefix_vocab_mask is not None and at_first:
            beams = scores.shape[0] // self.prefix_vocab_mask.shape[0]
            scores = jnp.where(jnp.repeat(self.prefix_vocab_mask, beams, axis=0) == 0, least, scores)
        if self.min_length is None:
            return scores
        is_end = jnp.arange(scores.shape[1]) == search.eos_token_id
        return jnp.where(jnp.logical_and(is_end, length < self.min_length), least, scores)


@dataclass(frozen=True, kw_only=True)
class SearchAttributes:
    """The attributes of generation, whichever way the next token is chosen."""

    decoder: GraphFunction
    decoder_start_token_id: int = -1
    encoder: GraphFunction | None = None
    eos_token_id: int
    init_decoder: GraphFunction | None = None
    model_type: int = 0
    no_repeat_ngram_size: int = 0
    pad_token_id: int
    vocab_size: int = -1

    def _check(self) -> None:
        """Refuse what is not built."""
        refuse(
            self.model_type != 0 or self.encoder is not None, f"model_type {self.model_type}, a decoder with an encoder"
        )
        for decoder in (self.decoder, self.init_decoder):
            if decoder is None:
                continue
            refuse(
                decoder.input_names[:3] != DECODER_INPUTS or len(decoder.input_names) != decoder.output_count + 2,
                f"a decoder whose inputs are not {', '.join(DECODER_INPUTS)} and one past for each present",
            )
            refuse(not decoder.uses("attention_mask"), "a decoder that does not use its attention_mask")
            pasts = [decoder.input_sizes(index) for index in range(3, decoder.output_count + 2)]
            wrong = [
                sizes for sizes in pasts if sizes is None or len(sizes) != 5 or sizes[2] is None or sizes[4] is None
            ]
            refuse(bool(wrong), "a decoder whose pasts do not have shapes (2, batch, heads, length, size)")

    def run(
        self,
        ids: Tensor,
        mask: Tensor | None,
        max_length: HostValue | None,
        constraints: Constraints,
        choose: Choice,
        state: tuple[Tensor, ...],
        logs: bool = False,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Generate until `choose` ends it or the sequences are full; return these, their length and the state."""
        self._check()
        most = _most(max_length, ids)
        batch, length = ids.shape
        is_token = cast(ids != self.pad_token_id, np.int32)
        mask = is_token if mask is None else mask
        at = jnp.cumsum(is_token, axis=1, dtype=np.dtype(np.int32))
        positions = jnp.where(is_token == 0, 0, at - 1)
        first = self.init_decoder or self.decoder
        pasts = [first.input_sizes(index) for index in range(3, first.output_count + 2)]
        pasts = [jnp.zeros((2, batch, sizes[2], 0, sizes[4]), first.input_dtype(3)) for sizes in pasts if sizes]
        sequences = jnp.pad(ids, ((0, 0), (0, most - length)), constant_values=self.pad_token_id)
        here = jnp.full((), length, np.dtype(np.int32))

        def step(
            logits: Tensor, sequences: Tensor, here: Tensor, state: tuple[Tensor, ...], at_first: bool = False
        ) -> tuple[Tensor, Tensor, Tensor | None, Tensor, tuple[Tensor, ...]]:
            scores = logits[:, -1, : self.vocab_size] if self.vocab_size > 0 else logits[:, -1]
            scores = constraints.applied(
                nn.log_softmax(cast(scores, np.float32), axis=-1) if logs else scores, sequences, here, at_first, self
            )
            tokens, origins, goes_on, state = choose(scores, sequences, here, state)
            sequences = sequences if origins is None else jnp.take(sequences, origins, axis=0)
            tokens = jnp.expand_dims(tokens, 1)
            return (
                lax.dynamic_update_slice(sequences, tokens, (jnp.zeros_like(here), here)),
                tokens,
                origins,
                goes_on,
                state,
            )

        def moved(presents: Sequence[Tensor], origins: Tensor | None) -> Sequence[Tensor]:
            return presents if origins is None else [jnp.take(x, origins, axis=1) for x in presents]

        logits, *presents = first(ids, positions, mask, *pasts)
        sequences, tokens, origins, goes_on, state = step(logits, sequences, here, state, at_first=True)
        if length + 1 == most:
            return sequences, here + 1, state
        before = most - 2 - length
        pasts = [jnp.pad(x, ((0, 0), (0, 0), (0, 0), (before, 0), (0, 0))) for x in moved(presents, origins)]
        mask = jnp.pad(mask, ((0, 0), (before + 1, 0)))

        def unfinished(carry: tuple[Tensor, ...]) -> Tensor:
            here, goes_on, *_ = carry
            return jnp.logical_and(goes_on, here < most)

        def onward(carry: tuple[Any, ...]) -> tuple[object, ...]:
            here, _, sequences, tokens, positions, mask, state, pasts = carry
            mask = jnp.concatenate([mask[:, 1:], jnp.ones_like(tokens)], axis=1)
            logits, *presents = self.decoder(tokens, positions, mask, *pasts)
            sequences, tokens, origins, goes_on, state = step(logits, sequences, here, state)
            pasts = [x[:, :, :, 1:] for x in moved(presents, origins)]
            return here + 1, goes_on, sequences, tokens, positions + 1, mask, state, pasts

        start = (here + 1, goes_on, sequences, tokens, at[:, -1:], mask, state, pasts)
        here, _, sequences, _, _, _, state, _ = lax.while_loop(unfinished, onward, start)
        return sequences, here, state


def _most(max_length: HostValue | None, ids: Tensor) -> int:
    """Return the number of tokens of a full sequence."""
    most = LONGEST if max_length is None else int(max_length.item())
    if most > LONGEST or (isinstance(ids.shape[1], int) and most <= ids.shape[1]):
        raise ModelError(
            f"`max_length` is {most}, the prompt has {ids.shape[1]} tokens",
            why=f"sequences have more tokens than the prompt, and at most {LONGEST}",
            instead="give another `max_length`, or a shorter prompt",
        )
    return most


@op(DOMAIN, "GreedySearch", since=1)
def greedy_search(
    input_ids,
    max_length: Host,
    min_length=None,
    repetition_penalty=None,
    vocab_mask=None,
    prefix_vocab_mask=None,
    attention_mask=None,
    *,
    search: SearchAttributes,
):
    def choose(
        scores: Tensor, sequences: Tensor, length: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor | None, Tensor, tuple[Tensor, ...]]:
        tokens = cast(jnp.argmax(scores, axis=-1), np.int32)
        ended = jnp.logical_or(state[0], tokens == search.eos_token_id)
        tokens = jnp.where(ended, search.pad_token_id, tokens)
        return tokens, None, jnp.logical_not(jnp.all(ended)), (ended,)

    constraints = Constraints(min_length, repetition_penalty, vocab_mask, prefix_vocab_mask)
    ended = jnp.zeros(input_ids.shape[:1], np.dtype(bool))
    sequences, *_ = search.run(input_ids, attention_mask, max_length, constraints, choose, (ended,))
    return sequences


@op(DOMAIN, "BeamSearch", since=1)
def beam_search(
    input_ids,
    max_length: Host | None = None,
    min_length=None,
    num_beams: Host | None = None,
    num_return_sequences: Host | None = None,
    length_penalty=None,
    repetition_penalty=None,
    vocab_mask=None,
    prefix_vocab_mask=None,
    attention_mask=None,
    decoder_input_ids=None,
    logits_processor: Host | None = None,
    *,
    early_stopping=0,
    search: SearchAttributes,
    outputs: OutputCount = 1,
):
    refuse(outputs > 2, "the output `scores`, of each token at each step")
    refuse(decoder_input_ids is not None, "`decoder_input_ids`")
    refuse(logits_processor is not None and bool(logits_processor.item()), "`logits_processor`")
    count = 1 if num_beams is None else int(num_beams.item())
    kept = 1 if num_return_sequences is None else int(num_return_sequences.item())
    if not 1 <= kept <= count <= MOST_BEAMS:
        raise ModelError(
            f"`num_return_sequences` is {kept}, `num_beams` {count}",
            why=f"there are between 1 and {MOST_BEAMS} beams, and no more sequences than beams",
            instead="give other numbers",
        )
    penalty = 1.0 if length_penalty is None else jnp.reshape(length_penalty, ())
    batch, most = input_ids.shape[0], _most(max_length, input_ids)
    settings = (count, search.eos_token_id, search.pad_token_id, penalty, bool(early_stopping))

    def choose(
        scores: Tensor, sequences: Tensor, length: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor | None, Tensor, tuple[Tensor, ...]]:
        scores = scores + jnp.expand_dims(state[0], 1)
        return next_beams(scores, sequences, length, state, settings)

    ids = jnp.repeat(input_ids, count, axis=0)
    mask = None if attention_mask is None else jnp.repeat(attention_mask, count, axis=0)
    single = np.dtype(np.float32)
    start = (
        jnp.reshape(jnp.zeros((batch, 1), single) + jnp.where(jnp.arange(count) == 0, 0.0, -1e9), (-1,)),
        jnp.zeros((batch,), np.dtype(bool)),
        jnp.zeros((batch, count, most), np.dtype(np.int32)),
        jnp.full((batch, count), -np.inf, single),
    )
    constraints = Constraints(min_length, repetition_penalty, vocab_mask, prefix_vocab_mask)
    sequences, length, state = search.run(ids, mask, max_length, constraints, choose, start, logs=True)
    ended, scores = finished_beams(sequences, length, state, penalty)
    return ended[:, :kept], scores[:, :kept]
