"""Complete a list of prompts in this process: all run at once, as far as seats allow."""

import sys

from hotseat import LLM, SamplingParams


def main(model: str | None = None) -> None:
    params = SamplingParams(max_tokens=24, temperature=0.8, seed=1)
    with LLM(model) as llm:
        for output in llm.generate(["The sea is", "A good bread"], params, use_tqdm=False):
            print(f"{output.prompt!r} {output.outputs[0].text!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
