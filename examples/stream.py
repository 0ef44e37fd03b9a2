"""Read the answer of a running server as it is written, with OpenAI's client."""

import sys

from openai import OpenAI


def main(url: str = "http://127.0.0.1:8000") -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": "Tell me a joke."}]
    for chunk in client.chat.completions.create(model=model, messages=messages, max_tokens=32, stream=True):
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
