#!/usr/bin/env python3
"""Makes the references of the example `llama` for GGUF files.

    tests/llama/gguf_files.py FOLDER TEXTS

TEXTS is the folder that texts.py made. Needs PyTorch 2.4 or newer, `transformers` 5, `accelerate`, `gguf` and
`safetensors`. The checked-in references (`examples/llama/tests/gguf`) were made with PyTorch 2.6.0, transformers 5.24.0
and gguf 0.19.0.

    types.gguf                   a tensor of each element type
    types.safetensors            their values, by the package `gguf`
    bytes.gguf, pieces.gguf      the tokenizers of texts.py, without weights
    NAME.gguf                    small random models, with tensors of several types
    NAME.safetensors             prompt, logits and greedy text as in references.py, by `transformers` from that file
"""

import json
import pathlib
import sys
import tempfile

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file

VOCABULARY = 64
PROMPT = 20
NEW = 16


def random_blocks(kind, rows, columns, generator):
    """Blocks of random bytes with scales of sensible size. `gguf` can't make these types from numbers."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, [rows * columns // elements, size], dtype=np.uint8)
    scales = {Type.Q4_K: [0, 2], Type.Q6_K: [size - 2]}[kind]
    for at in scales:
        drawn = generator.uniform(-0.1, 0.1, len(blocks)).astype(np.float16)
        blocks[:, at:at + 2] = drawn.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def types(folder):
    generator = np.random.default_rng(1)
    writer = gguf.GGUFWriter(folder / "types.gguf", "llama")
    expected = {}
    for kind in [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_K, Type.Q6_K,
                 Type.Q4_1, Type.Q5_0, Type.Q5_1]:
        if kind in (Type.Q4_K, Type.Q6_K):
            data = random_blocks(kind, 2, 768, generator)
        else:
            data = gguf.quants.quantize(generator.standard_normal([2, 768]).astype(np.float32), kind)
        expected[kind.name] = torch.tensor(np.ascontiguousarray(gguf.quants.dequantize(data, kind)))
        writer.add_tensor(kind.name, data, raw_dtype=kind)
    add_metadata(writer, "llama", transformers.LlamaConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=VOCABULARY))
    writer.add_array("some.list", [[1, 2], [3]])
    write(writer)
    save_file(expected, folder / "types.safetensors")


def tokenizers(folder, texts):
    normal, unknown, control, byte = 1, 2, 3, 6
    for name in ["bytes", "pieces"]:
        state = json.loads((texts / f"{name}.json").read_text())
        tokens = sorted(state["model"]["vocab"], key=state["model"]["vocab"].get)
        special = {token["content"] for token in state["added_tokens"]}
        writer = gguf.GGUFWriter(folder / f"{name}.gguf", "llama")
        add_metadata(writer, "llama", transformers.LlamaConfig(
            hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=len(tokens)),
            end=tokens.index("<|end|>"))
        writer.add_tokenizer_model("gpt2" if name == "bytes" else "llama")
        writer.add_token_list(tokens)
        writer.add_token_types([
            unknown if token == "<unk>" else control if token in special
            else byte if name == "pieces" and token.startswith("<0x") else normal for token in tokens])
        if name == "bytes":
            writer.add_tokenizer_pre("llama-bpe")
            writer.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
        else:
            writer.add_token_scores([-float(at) for at in range(len(tokens))])
            writer.add_unk_token_id(0)
        writer.add_bos_token_id(tokens.index("<|start|>"))
        writer.add_add_bos_token(True)
        writer.add_chat_template("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
        write(writer)


def add_metadata(writer, name, config, end=2):
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    if name.startswith("gemma"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_sliding_window(config.sliding_window)
    else:
        writer.add_rope_dimension_count(config.head_dim)
    writer.add_eos_token_id(end)


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleaved(weights, heads):
    """The order of rows that llama.cpp's converter gives the queries and keys of Llama."""
    rows = weights.shape[0]
    return weights.reshape(heads, 2, rows // heads // 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def model(folder, name, kind, config, **overrides):
    torch.manual_seed(3)
    source = kind(config)
    for key, parameter in source.named_parameters():
        drawn = torch.randn(parameter.shape)
        if parameter.dim() == 1:
            parameter.data = (0.0 if name.startswith("gemma") else 1.0) + 0.2 * drawn
        elif "embed" in key:
            parameter.data = drawn * (0.1 if name.startswith("gemma") else 1.0)
        else:
            parameter.data = drawn * 1.5 / parameter.shape[1] ** 0.5
    source.tie_weights()

    architecture = {"llama": gguf.MODEL_ARCH.LLAMA, "gemma3": gguf.MODEL_ARCH.GEMMA3}[name]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    writer = gguf.GGUFWriter(folder / f"{name}.gguf", name)
    add_metadata(writer, name, config)
    kinds = [Type.Q8_0, Type.F16, Type.Q4_0, Type.BF16, Type.Q8_0]
    tied = config.tie_word_embeddings
    for at, (key, tensor) in enumerate(source.state_dict().items()):
        if tied and key == "lm_head.weight":
            continue
        data = tensor.float().numpy()
        if name == "llama" and "q_proj" in key:
            data = interleaved(data, config.num_attention_heads)
        if name == "llama" and "k_proj" in key:
            data = interleaved(data, config.num_key_value_heads)
        if name.startswith("gemma") and "norm" in key:
            data = data + 1
        as_type = Type.F32 if data.ndim == 1 else kinds[at % len(kinds)]
        data = gguf.quants.quantize(np.ascontiguousarray(data), as_type)
        writer.add_tensor(names.get_name(key, try_suffixes=(".weight", ".bias")), data, raw_dtype=as_type)
    write(writer)

    with tempfile.TemporaryDirectory() as copy:
        (pathlib.Path(copy) / "model.gguf").write_bytes((folder / f"{name}.gguf").read_bytes())
        loaded = kind.from_pretrained(
            copy, gguf_file="model.gguf", dtype=torch.float32, attn_implementation="eager", **overrides).eval()
    prompt = torch.randint(4, 60, [1, PROMPT])
    with torch.no_grad():
        logits = loaded(input_ids=prompt).logits[0]
        text = prompt
        for _ in range(NEW):
            text = torch.cat([text, loaded(input_ids=text).logits[0, -1:].argmax(-1)[None]], 1)
    save_file({"prompt": prompt[0], "logits": logits.contiguous(), "greedy": text[0, PROMPT:].contiguous()},
              folder / f"{name}.safetensors")
    print(name, "logits up to", logits.abs().max().item(), "greedy", text[0, PROMPT:].tolist(),
          {key: getattr(loaded.config, key, None) for key in ["head_dim", "sliding_window", "rope_parameters"]})


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    types(folder)
    tokenizers(folder, pathlib.Path(sys.argv[2]))
    sizes = dict(vocab_size=VOCABULARY, max_position_embeddings=128, num_attention_heads=4, num_key_value_heads=2)
    model(folder, "llama", transformers.LlamaForCausalLM, transformers.LlamaConfig(
        **sizes, hidden_size=64, intermediate_size=64, num_hidden_layers=2, tie_word_embeddings=False))
    model(folder, "gemma3", transformers.Gemma3ForCausalLM, transformers.Gemma3TextConfig(
        **sizes, hidden_size=32, intermediate_size=32, num_hidden_layers=6, head_dim=16, query_pre_attn_scalar=16,
        sliding_window=6), query_pre_attn_scalar=16)
    print({path.name: path.stat().st_size for path in sorted(folder.iterdir())})


main()
