#!/usr/bin/env python3
"""Makes the reference of the example `bytes-lm`: the first 21 losses of a small model on the bytes of LICENSE-APACHE,
as PyTorch computes them on the CPU.

    tests/llama/bytes_lm.py

writes examples/llama/tests/bytes_lm.json. Needs PyTorch 2.4 or newer and NumPy. The checked-in file was made with
PyTorch 2.6.0.

Both sides draw weights and windows with SplitMix64 from the same seed, so nothing but the losses is checked in:

    losses      in f64
    deviation   how far PyTorch's losses in f32 are from these, the most of several orders of summation: for each step,
                over the transposed and the plain product, and with one and with two threads
"""

import json
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEED, LAYERS, WIDTH, BATCH, TIME, LOSSES = 42, 2, 64, 4, 32, 21
HEADS, INNER, VOCABULARY, EPSILON = WIDTH // 32, WIDTH // 32 * 88, 256, 1e-5
STEPS, WARM_UP, RATE = 200, 5, 3e-3
# The optimizer holds these numbers in f32.
BETA_1, BETA_2, ADAM_EPSILON, DECAY = (float(np.float32(x)) for x in (0.9, 0.95, 1e-8, 0.1))


def uniform(seed, count):
    """The first numbers of SplitMix64 with this seed, from 0 to 1."""
    with np.errstate(over="ignore"):
        bits = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
    return (bits >> np.uint64(11)).astype(np.float64) / 2.0**53


def weights():
    """The weights in the order in which a token passes them, `[outputs, inputs]`."""
    shapes = [("embedding", (VOCABULARY, WIDTH))]
    for layer in range(LAYERS):
        shapes += [(f"{layer}.{name}", shape) for name, shape in [
            ("attention_norm", (WIDTH,)), ("q", (WIDTH, WIDTH)), ("k", (WIDTH, WIDTH)), ("v", (WIDTH, WIDTH)),
            ("o", (WIDTH, WIDTH)), ("feed_forward_norm", (WIDTH,)), ("gate", (INNER, WIDTH)), ("up", (INNER, WIDTH)),
            ("down", (WIDTH, INNER))]]
    shapes.append(("norm", (WIDTH,)))
    out = {}
    for index, (name, shape) in enumerate(shapes):
        if len(shape) == 1:
            out[name] = np.ones(shape, np.float32)
            continue
        parts = 2 * LAYERS if name.endswith((".o", ".down")) else 1
        bound = math.sqrt(3.0 / (shape[1] * parts))
        numbers = (2.0 * uniform(SEED + (index << 32), shape[0] * shape[1]) - 1.0) * bound
        out[name] = numbers.astype(np.float32).reshape(shape)
    return out


def norm(x, gamma):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPSILON) * gamma


def rotate(x, cos, sin):
    first, second = x[..., :16], x[..., 16:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def losses(dtype, transposed):
    parameters = {name: torch.tensor(w).to(dtype).requires_grad_() for name, w in weights().items()}
    product = (lambda x, w: (w @ x.transpose(-1, -2)).transpose(-1, -2)) if transposed else (lambda x, w: x @ w.T)
    frequencies = 1.0 / np.float32(10000.0) ** (np.arange(0, 32, 2).astype(np.float32) / np.float32(32))
    angles = np.arange(TIME).astype(np.float32)[:, None] * frequencies.astype(np.float32)[None]
    cos, sin = (torch.tensor(f(angles.astype(np.float64)).astype(np.float32)).to(dtype) for f in (np.cos, np.sin))
    mask = torch.triu(torch.full([TIME, TIME], -math.inf, dtype=dtype), 1)

    def forward(tokens):
        p = parameters
        hidden = p["embedding"][tokens]
        for layer in range(LAYERS):
            w = lambda name: p[f"{layer}.{name}"]
            x = norm(hidden, w("attention_norm"))
            q, k, v = (product(x, w(n)).reshape(BATCH, TIME, HEADS, 32).transpose(1, 2) for n in "qkv")
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            scores = q @ k.transpose(-1, -2) * 32**-0.5 + mask
            context = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(BATCH, TIME, WIDTH)
            hidden = hidden + product(context, w("o"))
            x = norm(hidden, w("feed_forward_norm"))
            hidden = hidden + product(F.silu(product(x, w("gate"))) * product(x, w("up")), w("down"))
        return product(norm(hidden, p["norm"]), p["embedding"])

    text = np.frombuffer((ROOT / "LICENSE-APACHE").read_bytes(), np.uint8)
    text = text[: len(text) - len(text) // 10]
    starts = (uniform(SEED, LOSSES * BATCH) * (len(text) - TIME)).astype(np.int64).reshape(LOSSES, BATCH)
    optimizer = torch.optim.AdamW(
        parameters.values(), betas=(BETA_1, BETA_2), eps=ADAM_EPSILON, weight_decay=DECAY)
    found = []
    for step in range(LOSSES):
        windows = torch.tensor(np.stack([text[s:s + TIME + 1] for s in starts[step]]).astype(np.int64))
        loss = F.cross_entropy(forward(windows[:, :-1]).reshape(-1, VOCABULARY), windows[:, 1:].reshape(-1))
        found.append(loss.item())
        for group in optimizer.param_groups:
            part = max(0, step - WARM_UP) / (STEPS - WARM_UP)
            cosine = RATE * (0.1 + 0.45 * (1.0 + math.cos(math.pi * part)))
            group["lr"] = RATE * (step + 1) / WARM_UP if step < WARM_UP else cosine
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return np.array(found)


def main():
    torch.set_num_threads(1)
    exact = losses(torch.float64, False)
    other = losses(torch.float64, True)
    deviations = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        deviations += [np.abs(losses(torch.float32, transposed) - exact) for transposed in (False, True)]
    deviation = np.max(deviations, 0)
    print(f"PyTorch {torch.__version__}: losses {exact[0]:.4f} to {exact[-1]:.4f}")
    print(f"in f64 two orders of summation differ by up to {np.abs(other - exact).max():.1e}")
    print("in f32 by", " ".join(f"{x:.1e}" for x in deviation))
    reference = {"losses": exact.tolist(), "deviation": deviation.tolist()}
    (ROOT / "examples/llama/tests/bytes_lm.json").write_text(json.dumps(reference, indent=2) + "\n")


main()
