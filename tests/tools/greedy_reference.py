#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/data/stories260K_greedy.json: 255 greedy ids after BOS, from a float64 forward pass written for this purpose.

    greedy_reference.py examples/data/stories260K tests/data/stories260K_greedy.json

Shares no code with the library: NumPy only, no cache, every step computed from the start. Needs python3-numpy."""
import json
import pathlib
import struct
import sys

import numpy as np


def load(folder):
    raw = (folder / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    return {k: np.frombuffer(raw[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]], "<f4").astype(np.float64).reshape(v["shape"])
            for k, v in header.items() if k != "__metadata__"}


def rms(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def rotate(x, theta):
    n, _, d = x.shape
    angle = np.arange(n)[:, None] / theta ** (np.arange(0, d, 2) / d)
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :d // 2], x[..., d // 2:]
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


def last_logits(w, c, ids):
    heads, kv, d = c["num_attention_heads"], c["num_key_value_heads"], c["hidden_size"] // c["num_attention_heads"]
    x = w["model.embed_tokens.weight"][ids]
    n = len(ids)
    mask = np.triu(np.full((n, n), -np.inf), 1)
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        h = rms(x, w[p + "input_layernorm.weight"], c["rms_norm_eps"])
        q = rotate((h @ w[p + "self_attn.q_proj.weight"].T).reshape(n, heads, d), c["rope_theta"])
        k = rotate((h @ w[p + "self_attn.k_proj.weight"].T).reshape(n, kv, d), c["rope_theta"])
        v = (h @ w[p + "self_attn.v_proj.weight"].T).reshape(n, kv, d)
        k, v = np.repeat(k, heads // kv, 1), np.repeat(v, heads // kv, 1)
        s = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(d) + mask
        s = np.exp(s - s.max(-1, keepdims=True))
        o = np.einsum("hij,jhd->ihd", s / s.sum(-1, keepdims=True), v).reshape(n, heads * d)
        x = x + o @ w[p + "self_attn.o_proj.weight"].T
        h = rms(x, w[p + "post_attention_layernorm.weight"], c["rms_norm_eps"])
        g = h @ w[p + "mlp.gate_proj.weight"].T
        x = x + (g / (1 + np.exp(-g)) * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
    return rms(x[-1], w["model.norm.weight"], c["rms_norm_eps"]) @ w["model.embed_tokens.weight"].T


def main():
    folder, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    w, c = load(folder), json.loads((folder / "config.json").read_text())
    vocab = {i: t for t, i in json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"].items()}
    ids, margin = [c["bos_token_id"]], np.inf
    for _ in range(255):
        l = last_logits(w, c, ids)
        first, second = np.sort(l)[::-1][:2]
        margin = min(margin, first - second)
        ids.append(int(l.argmax()))
    text = b"".join(bytes([int(t[3:5], 16)]) if t.startswith("<0x") else t.replace("\u2581", " ").encode() for t in (vocab[i] for i in ids[1:]))
    out.write_text(json.dumps({"ids": ids[1:], "text": text.decode().removeprefix(" "), "smallest_margin": margin}) + "\n")


main()
