"""Models from Python, with no server: ``LLM`` in the caller's own thread, ``AsyncLLM`` for coroutines.

    from hotseat import LLM, SamplingParams

    with LLM() as llm:
        for output in llm.generate(["The sky is", "Water is"], SamplingParams(temperature=0, max_tokens=20)):
            print(output.outputs[0].text)

Names and shapes are vLLM's; docs/from-vllm.md lists what differs.

Must not know: HTTP, how options become objects, how a batch is formed.
"""

from hotseat.llm.async_llm import AsyncLLM, EngineArgs
from hotseat.llm.chat_tokenizer import ChatTokenizer
from hotseat.llm.offline import LLM
from hotseat.llm.outputs import (
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
)
from hotseat.llm.prompts import TextPrompt, TokensPrompt

__all__ = [
    "LLM",
    "AsyncLLM",
    "ChatTokenizer",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "TextPrompt",
    "TokensPrompt",
]
