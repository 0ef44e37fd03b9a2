"""Compiling of grammars, and the prototypes that answers are copied from."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hotseat.core.structured_outputs import StructuredOutputsParams
from hotseat.errors import GrammarError, InvalidRequestError
from hotseat.grammar.sources import source_of

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["Grammar", "GrammarCompiler"]

MAX_CACHED = 256  # prototypes
MAX_CACHED_BYTES = 16 << 20  # of the texts that they were compiled from
# A lexer state takes one to two kB; the library's own limit would let one answer take half a gigabyte.
MAX_LEXER_STATES = 30_000
MAX_MESSAGE = 400  # characters of the library's complaint that a client is told


class Constraint:
    """One answer on its way through a grammar; a ``TokenConstraint``."""

    __slots__ = ("_matcher", "_row", "_words")
    ends_answer = True

    def __init__(self, matcher: LLMatcher, row_words: int, words: int) -> None:
        self._matcher = matcher
        self._row = np.zeros(row_words, np.uint32)
        self._words = words

    def mask(self) -> memoryview:
        """Return which tokens may come next, uint32[ceil(vocab_size / 32)]; valid until the next call.

        Raises:
            GrammarError: the grammar ran out of its fuel.
        """
        self._matcher.unsafe_compute_mask_ptr(self._row.ctypes.data, self._row.nbytes)
        self._check()
        return self._row[: self._words].data

    def accept(self, token_id: int) -> None:
        """Go on by one token.

        Raises:
            GrammarError: it cannot come here.
        """
        if not self._matcher.consume_token(token_id):
            self._check()
            raise GrammarError(f"the grammar does not take token {token_id} here")

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens, as when a draft was wrong.

        Raises:
            GrammarError: so many were not accepted.
        """
        if not self._matcher.rollback(num_tokens):
            self._check()
            raise GrammarError(f"the grammar cannot go back by {num_tokens} tokens")

    def num_valid(self, token_ids: list[int]) -> int:
        """Return how many of ``token_ids`` may come next, one after the other."""
        return self._matcher.validate_tokens(token_ids)

    @property
    def is_complete(self) -> bool:
        """Tell whether the answer may end here."""
        return self._matcher.is_accepting()

    def _check(self) -> None:
        # An error is for ever, and the masks after it allow EOS alone: unseen, a broken answer would look complete.
        if self._matcher.is_error():
            raise GrammarError(f"the grammar cannot go on: {_first_line(self._matcher.get_error())}")


class Grammar:
    """A compiled grammar, of which every answer gets a copy of its own."""

    def __init__(self, prototype: LLMatcher, row_words: int, words: int) -> None:
        self._prototype = prototype
        self._row_words, self._words = row_words, words

    def constraint(self) -> Constraint:
        """Return the beginning of an answer; the copy is cheap and shares nothing that changes."""
        return Constraint(self._prototype.deep_copy(), self._row_words, self._words)


class GrammarCompiler:
    """Compiles grammars for one vocabulary and keeps the last ones. Any thread may use it.

    ``tokenizer_json`` is called once, when the first grammar is compiled: to index the vocabulary takes half a second.
    """

    def __init__(
        self,
        tokenizer_json: Callable[[], str],
        *,
        vocab_size: int,
        eos_token_ids: Iterable[int],
        added_tokens: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._added_tokens = added_tokens
        self._tokenizer: LLTokenizer | None = None
        self._limits: Any = None
        self._cache: OrderedDict[StructuredOutputsParams, tuple[Grammar, int]] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()  # of the cache
        self._tokenizer_lock = threading.Lock()

    def cached(self, params: StructuredOutputsParams) -> Grammar | None:
        """Return the grammar of ``params`` if it was compiled before; at once."""
        with self._lock:
            found = self._cache.get(params)
            if found is None:
                return None
            self._cache.move_to_end(params)
            return found[0]

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """Return the grammar of ``params``. Takes milliseconds, up to a second within the limits, without the GIL.

        Raises:
            InvalidRequestError: it is broken, nothing matches it, it needs what is not supported, or it is too complex.
        """
        grammar = self.cached(params)
        if grammar is None:
            grammar = self._compile(params)
            self._keep(params, grammar)
        return grammar

    def _compile(self, params: StructuredOutputsParams) -> Grammar:
        if params.preamble is not None:  # the first mask, of reasoning, would not show that nothing matches after it
            self.compile(replace(params, preamble=None))
        tokenizer = self._index()
        source = source_of(params, self._added_tokens())
        matcher, complaint = self._matcher(tokenizer, source.text), ""
        if matcher.is_error() and source.lenient is not None:
            complaint = matcher.get_error()
            matcher = self._matcher(tokenizer, source.lenient)
            warnings = matcher.get_grammar_warnings()
            # A format that is not known is an annotation, says the standard. Any other loss would be a wrong answer.
            if not matcher.is_error() and all(text.startswith("Unknown format") for text in warnings):
                complaint = ""
        complaint = complaint or matcher.get_error()
        grammar = Grammar(matcher, (tokenizer.vocab_size + 31) // 32, (self._vocab_size + 31) // 32)
        if not complaint:
            try:  # only the first mask shows that nothing matches, and the copies are glad to have it
                grammar.constraint().mask()
            except GrammarError as error:
                complaint = str(error)
                if "NoExtension" in complaint:
                    complaint = "nothing can ever match it"
        if complaint:
            raise params.error(f"the {source.kind} cannot be used: {_first_line(complaint)}")
        return grammar

    def _matcher(self, tokenizer: LLTokenizer, text: str) -> LLMatcher:
        from llguidance import LLMatcher

        return LLMatcher(tokenizer, text, log_level=0, limits=self._limits)

    def _index(self) -> LLTokenizer:
        with self._tokenizer_lock:
            if self._tokenizer is None:
                from llguidance import LLParserLimits, LLTokenizer  # a tenth of a second, and few need it

                added = self._added_tokens()
                size = max(self._vocab_size, 1 + max(added.values(), default=0))
                try:
                    self._tokenizer = LLTokenizer(
                        self._tokenizer_json(), n_vocab=size, eos_token=self._eos_token_ids or None
                    )
                except ValueError as error:
                    raise InvalidRequestError(
                        f"this model's tokenizer cannot be held to a grammar: {error}", param="structured_outputs"
                    ) from error
                self._limits = LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
            return self._tokenizer

    def _keep(self, params: StructuredOutputsParams, grammar: Grammar) -> None:
        texts = (params.json, params.regex, params.grammar, params.structural_tag, *(params.choice or ()))
        size = sum(len(text) for text in texts if text)
        with self._lock:
            if params in self._cache:
                return
            self._cache[params] = (grammar, size)
            self._cached_bytes += size
            while len(self._cache) > MAX_CACHED or self._cached_bytes > MAX_CACHED_BYTES:
                _, (_, removed) = self._cache.popitem(last=False)
                self._cached_bytes -= removed


def _first_line(text: str) -> str:
    """Return a complaint of the library without its drawings, cut to a length that a client wants to read."""
    lines = [line.strip() for line in text.replace("<non-verbose/>", "").splitlines()]
    text = "; ".join(line for line in lines if line.strip("^ "))
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"
