// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Runs the OpenAI client for Node against a gateway, a line per case.
// Environment: GATEWAY_URL (with /v1), ADMIN_URL (optional), MODEL.
// The cases are those of the Python and Go clients.

import OpenAI from 'openai';

const model = process.env.MODEL;
const client = new OpenAI({ baseURL: process.env.GATEWAY_URL, apiKey: 'unused', maxRetries: 0, timeout: 60_000 });
const messages = [
  { role: 'system', content: 'Be brief.' },
  { role: 'user', content: 'Why is the sky blue? ☁️' },
];
const tool = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Weather at a place',
    parameters: { type: 'object', properties: { place: { type: 'string' } }, required: ['place'] },
  },
};

function check(ok, what) {
  if (!ok) throw new Error(what);
}

async function refused(kind, status, request) {
  try {
    await client.chat.completions.create({ model, messages, ...request });
  } catch (e) {
    check(e instanceof kind && e.status === status, `${e?.constructor?.name} ${e?.status} ${e?.message}`);
    check(e.requestID, 'no request id');
    check(e.error?.message, `error ${JSON.stringify(e.error)}`);
    return e;
  }
  throw new Error('not refused');
}

const cases = {
  async models() {
    const ids = [];
    for await (const m of client.models.list()) ids.push(m.id);
    check(ids.includes(model), `models ${ids}`);
  },
  async chat() {
    const r = await client.chat.completions.create({ model, messages, max_tokens: 16 });
    check(r.model === model, `model is ${r.model}`);
    check(r.choices[0].message.content, 'no content');
    check(r.usage.prompt_tokens > 0 && r.usage.completion_tokens > 0, 'no usage');
  },
  async chat_stream() {
    let text = '', finish;
    for await (const chunk of await client.chat.completions.create({ model, messages, max_tokens: 16, stream: true })) {
      check(chunk.model === model, `model is ${chunk.model}`);
      check(!chunk.usage, 'usage that nobody asked for');
      check(chunk.choices.length === 1, `${chunk.choices.length} choices in a chunk`);
      text += chunk.choices[0].delta.content ?? '';
      finish = chunk.choices[0].finish_reason ?? finish;
    }
    check(text && finish, `text ${text}, finish ${finish}`);
  },
  async stream_usage() {
    const usage = [];
    const stream = await client.chat.completions.create({
      model, messages, max_tokens: 16, stream: true, stream_options: { include_usage: true },
    });
    for await (const chunk of stream) {
      if (!chunk.usage) continue;
      usage.push(chunk.usage);
      check(chunk.choices.length === 0, 'the usage chunk has choices');
    }
    check(usage.length === 1 && usage[0].completion_tokens > 0, `usage ${JSON.stringify(usage)}`);
  },
  async tools() {
    const r = await client.chat.completions.create({ model, messages, max_tokens: 64, tools: [tool], tool_choice: 'required' });
    const call = r.choices[0].message.tool_calls[0];
    check(call.function.name === 'get_weather', `called ${call.function.name}`);
    JSON.parse(call.function.arguments);
  },
  async tools_stream() {
    let name = '', args = '';
    const stream = await client.chat.completions.create({
      model, messages, max_tokens: 64, tools: [tool], tool_choice: 'required', stream: true,
    });
    for await (const chunk of stream) {
      for (const call of chunk.choices[0]?.delta.tool_calls ?? []) {
        name += call.function.name ?? '';
        args += call.function.arguments ?? '';
      }
    }
    check(name === 'get_weather', `called ${name}`);
    JSON.parse(args);
  },
  async n2() {
    const r = await client.chat.completions.create({ model, messages, max_tokens: 8, n: 2 });
    check(r.choices.map((c) => c.index).sort().join() === '0,1', 'choices');
    const seen = new Set();
    for await (const chunk of await client.chat.completions.create({ model, messages, max_tokens: 8, n: 2, stream: true })) {
      for (const c of chunk.choices) seen.add(c.index);
    }
    check([...seen].sort().join() === '0,1', `streamed choices ${[...seen]}`);
  },
  async completions() {
    const r = await client.completions.create({ model, prompt: 'Once upon a time', max_tokens: 8 });
    check(r.choices[0].text && r.usage.completion_tokens > 0, 'no text or usage');
    let text = '';
    for await (const c of await client.completions.create({ model, prompt: 'Once', max_tokens: 8, stream: true })) {
      text += c.choices[0].text;
    }
    check(text, 'no streamed text');
  },
  async embeddings() {
    const r = await client.embeddings.create({ model, input: ['one', 'two'] });
    check(r.data.length === 2 && r.data[0].embedding.length > 0, `${r.data.length} embeddings`);
    check(r.usage.prompt_tokens > 0, 'no usage');
  },
  async responses() {
    const r = await client.responses.create({ model, input: 'Why is the sky blue?', max_output_tokens: 16 });
    check(r.output_text, 'no text');
    check(r.usage.output_tokens > 0, 'no usage');
  },
  async responses_stream() {
    const kinds = [];
    let text = '';
    const stream = await client.responses.create({ model, input: 'Why is the sky blue?', max_output_tokens: 16, stream: true });
    for await (const event of stream) {
      kinds.push(event.type);
      if (event.type === 'response.output_text.delta') text += event.delta;
    }
    check(text, 'no text');
    check(kinds[0] === 'response.created', `begins with ${kinds[0]}`);
    check(['response.completed', 'response.incomplete'].includes(kinds.at(-1)), `ends with ${kinds.at(-1)}`);
  },
  async not_found() {
    const e = await refused(OpenAI.NotFoundError, 404, { model: 'no-such-model' });
    check(e.code === 'model_not_found', `code ${e.code}`);
  },
  async bad_request() {
    const e = await refused(OpenAI.BadRequestError, 400, { kv_transfer_params: { remote_host: 'x' } });
    check(e.message.includes('kv_transfer_params'), e.message);
  },
  async too_large() {
    await refused(OpenAI.APIError, 413, { messages: [{ role: 'user', content: 'x'.repeat(2 << 20) }] });
  },
  async cancel() {
    // Twenty seconds of answer: it cannot have ended by itself when it is looked for.
    const stream = await client.chat.completions.create({
      model, messages, max_tokens: 20_000, stream: true, ignore_eos: true,
    });
    let i = 0;
    for await (const _ of stream) if (++i === 3) break;
    stream.controller.abort();
    if (!process.env.ADMIN_URL) return;
    let flying;
    for (let tries = 0; tries < 100; tries++) {
      const pools = await (await fetch(`${process.env.ADMIN_URL}/pools`)).json();
      flying = pools.reduce((sum, p) => sum + p.requests, 0);
      if (flying === 0) return;
      await new Promise((done) => setTimeout(done, 100));
    }
    throw new Error(`${flying} requests in flight 10 s after the client left`);
  },
};

let failed = 0;
for (const [name, run] of Object.entries(cases)) {
  try {
    await run();
    console.log(`node ${name} ok`);
  } catch (e) {
    failed++;
    console.log(`node ${name} FAILED ${e.constructor.name}: ${e.message}`.replaceAll('\n', ' '));
    console.error(e);
  }
}
process.exit(failed ? 1 : 0);
