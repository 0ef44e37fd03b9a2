// The stream of a chat, chunk by chunk, and what is known of its request meanwhile.

export class ApiFailure extends Error {
  constructor(status, error) {
    super(error?.message || `The server answered with ${status}.`);
    this.status = status;
    this.param = error?.param ?? null;
  }
}

export function headers(key) {
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

// Yields the chunks of an answer; throws ApiFailure when it is refused or fails.
export async function* streamChat(body, { key, requestId, signal }) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { ...headers(key), "x-request-id": requestId },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } }),
    signal,
  });
  if (!response.ok) throw new ApiFailure(response.status, await response.json().then((it) => it.error, () => null));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ApiFailure(0, { message: "The connection ended before the answer did." });
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue; // a comment that keeps the connection
      if (event === "data: [DONE]") return;
      const chunk = JSON.parse(event.slice(6));
      if (chunk.error) throw new ApiFailure(0, chunk.error);
      yield chunk;
    }
  }
}

// Tells where the request is, a sentence, until it has ended.
export async function explain(requestId, key) {
  const response = await fetch(`v1/requests/${encodeURIComponent(requestId)}/explain`, { headers: headers(key) });
  if (!response.ok) return "";
  const { sequences } = await response.json();
  const [one] = sequences;
  if (!one || one.status === "finished") return "";
  return one.seat === null || one.seat === undefined ? `waiting: ${one.reason}` : `seat ${one.seat}`;
}
