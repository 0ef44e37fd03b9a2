"""A script for vLLM; only the import was changed."""

import sys

from hotseat import LLM, SamplingParams, TokensPrompt


def main(model: str | None = None) -> None:
    llm = LLM(model=model, dtype="bfloat16", tensor_parallel_size=1, seed=0, max_model_len=256)
    tokenizer = llm.get_tokenizer()
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Name a colour."}], add_generation_prompt=True)
    params = SamplingParams(n=2, temperature=0.8, top_p=0.95, max_tokens=16, bad_words=["red"])
    (output,) = llm.generate(TokensPrompt(prompt_token_ids=prompt), params, use_tqdm=False)
    for completion in output.outputs:
        print(completion.index, completion.finish_reason, repr(completion.text))
    if output.metrics is not None:
        print(f"waited {output.metrics.time_in_queue:.3f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
