"""Grammars for answers: compile what a client asks for, and say token by token what may come next.

The work is done by llguidance: a lazy lexer and an Earley parser that walk the vocabulary's trie, with nothing computed
per vocabulary beforehand. All limits are counted work, never time, so an answer does not depend on the machine's load.

Must not know: HTTP, requests, seats, how tokens are sampled.
"""

from hotseat.grammar.compiler import Grammar, GrammarCompiler

__all__ = ["Grammar", "GrammarCompiler"]
