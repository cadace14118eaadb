# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes a tiny random Llama with a tokenizer of its own to a folder.

The tokenizer is byte-level without merges: one token per byte of UTF-8, so
that token counts are known without running it. The weights are random with a
fixed seed. Rows of the output layer that belong to tokens other than
printable ASCII are zero, so that answers are nonsense in readable letters and
practically never end before the bound that the client gave.

Usage: make_model.py FOLDER
"""

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT = 8192

CHAT_TEMPLATE = """\
{%- for m in messages -%}
<|im_start|>{{ m['role'] }}
{% if m['content'] is string %}{{ m['content'] }}\
{%- elif m['content'] %}{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endif %}
{%- if m['tool_calls'] %}{{ m['tool_calls'] | tojson }}{% endif %}<|im_end|>
{% if loop.first and tools %}<|im_start|>tools
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""


def tokenizer():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {t: i for i, t in enumerate(special + letters)}
    t = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=t,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        model_max_length=CONTEXT,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def model(tok):
    torch.manual_seed(7)
    m = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=320,  # a multiple of 64, more than the 259 tokens
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=CONTEXT,
            bos_token_id=None,
            eos_token_id=tok.eos_token_id,
            pad_token_id=tok.pad_token_id,
            tie_word_embeddings=False,
            dtype="float32",
        )
    )
    with torch.no_grad():
        m.model.embed_tokens.weight.normal_(std=1.0)
        w = m.lm_head.weight
        w.normal_(std=0.4)
        readable = set(tok.convert_tokens_to_ids([*map(chr, range(0x21, 0x7F)), "Ġ"]))
        for i in range(w.shape[0]):
            if i not in readable:
                w[i].zero_()
    return m.eval()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = sys.argv[1]
    tok = tokenizer()
    for text in ("plain", "Grüße, 世界 <b>\n"):
        ids = tok(text)["input_ids"]
        if len(ids) != len(text.encode()) or tok.decode(ids) != text:
            sys.exit(f"make_model.py: the tokenizer does not give one token per byte for {text!r}: {ids}")
    m = model(tok)
    m.save_pretrained(folder, safe_serialization=True)
    tok.save_pretrained(folder)
    print(f"{folder}: {sum(p.numel() for p in m.parameters())} parameters, {len(tok)} tokens")


if __name__ == "__main__":
    main()
