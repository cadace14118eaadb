// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Asks what with_others.py tells it with OpenAI's client for Node: a request per
// line of the input, answers as lines of JSON. GATEWAY_URL has /v1 at its end.
import readline from "node:readline";
import OpenAI from "openai";

const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");

function failed(e) {
  const headers = e.headers instanceof Headers ? Object.fromEntries(e.headers) : {};
  return { name: e.constructor.name, status: e.status ?? 0, body: e.error ?? null, headers, message: String(e.message) };
}

async function answer(q) {
  const client = new OpenAI({ baseURL: process.env.GATEWAY_URL, apiKey: q.key, maxRetries: q.retries, timeout: 30000 });
  if (q.op === "create") return { result: await client.chat.completions.create(q.body) };
  if (q.op === "final") return { result: await client.chat.completions.stream(q.body).finalChatCompletion() };
  const stream = await client.chat.completions.create({ ...q.body, stream: true });
  for await (const chunk of stream) {
    say({ chunk });
    if (q.take && chunk.choices[0]?.delta?.content) break; // which ends the stream
  }
  return { end: true };
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  try {
    say(await answer(JSON.parse(line)));
  } catch (e) {
    say({ error: failed(e) });
  }
}
