#!/usr/bin/env python3
"""Makes the references of the example `llama` for GGUF files.

    tests/llama/gguf_files.py FOLDER TEXTS

TEXTS is the folder that texts.py made. Needs PyTorch 2.4 or newer, `transformers` 5, `accelerate`, `gguf` and
`safetensors`. The checked-in references (`examples/llama/tests/gguf`) were made with PyTorch 2.6.0, transformers 5.24.0
and gguf 0.19.0.

    types.gguf                   a tensor of each element type
    types.safetensors            their values, by the package `gguf`
    bytes.gguf, pieces.gguf      the tokenizers of texts.py, without weights
    llama, gemma3                small random models, with tensors of several types: NAME.gguf, and NAME.safetensors
                                 with prompt, logits and greedy text as in references.py, by `transformers` from that
                                 file
    qwen2, qwen3, gemma2, nemo, llama3
                                 the same, but `transformers` does not read the file: its modules get the values that
                                 were written, as they were before the changes that llama.cpp's converter makes

The converter (https://github.com/ggml-org/llama.cpp, `conversion/*.py`) interleaves the rows of queries and keys of the
architecture `llama`, adds 1 to the norms of Gemma, and makes `rope_freqs.weight` of Llama 3's scaling. It writes the
keys that `add_keys` lists for each architecture, and no others of the model.
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
    add_sizes(writer, config)
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


def add_sizes(writer, config):
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleaved(weights, heads):
    """The order of rows that llama.cpp's converter gives the queries and keys of Llama."""
    rows = weights.shape[0]
    return weights.reshape(heads, 2, rows // heads // 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def in_halves(rows, heads):
    """The inverse of `interleaved`."""
    return rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def change(key, architecture, config):
    """What the converter does to a tensor, and the inverse."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    if architecture == "llama" and key.split(".")[-2] in heads:
        count = heads[key.split(".")[-2]]
        return (lambda data: interleaved(data, count)), (lambda data: in_halves(data, count))
    if architecture.startswith("gemma") and key.endswith("norm.weight"):
        return (lambda data: data + 1), (lambda data: data - 1)
    return (lambda data: data), (lambda data: data)


def draw(source, architecture):
    """Draws every parameter, so that the logits depend on all of them."""
    gemma = architecture.startswith("gemma")
    for key, parameter in source.named_parameters():
        drawn = torch.randn(parameter.shape)
        if parameter.dim() == 1:
            parameter.data = (1.0 if "norm" in key and not gemma else 0.0) + 0.2 * drawn
        elif "embed" in key:
            parameter.data = drawn * (0.1 if gemma else 1.0)
        else:
            parameter.data = drawn * 1.5 / parameter.shape[1] ** 0.5
    source.tie_weights()


def add_tensors(writer, architecture, source, config):
    """Writes the tensors. The values that were written, before the changes."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    kinds = [Type.Q8_0, Type.F16, Type.Q4_0, Type.BF16, Type.Q8_0]
    written = {}
    for at, (key, tensor) in enumerate(source.state_dict().items()):
        if config.tie_word_embeddings and key == "lm_head.weight":
            continue
        there, back = change(key, architecture, config)
        data = there(tensor.float().numpy())
        as_type = Type.F32 if data.ndim == 1 else kinds[at % len(kinds)]
        data = gguf.quants.quantize(np.ascontiguousarray(data), as_type)
        writer.add_tensor(names.get_name(key, try_suffixes=(".weight", ".bias")), data, raw_dtype=as_type)
        values = back(gguf.quants.dequantize(data, as_type))
        written[key] = torch.tensor(np.ascontiguousarray(values), dtype=torch.float32)
    return written


def answer(model, prompt):
    """The prompt's logits, the most likely text behind it, and the least lead of one of its tokens."""
    with torch.no_grad():
        logits = model(input_ids=prompt).logits[0]
        text, lead = prompt, float("inf")
        for _ in range(NEW):
            last = model(input_ids=text).logits[0, -1:]
            best = last.topk(2).values[0]
            lead = min(lead, (best[0] - best[1]).item())
            text = torch.cat([text, last.argmax(-1)[None]], 1)
    return {"prompt": prompt[0], "logits": logits.contiguous(), "greedy": text[0, PROMPT:].contiguous()}, lead


def model(folder, name, kind, config, **overrides):
    torch.manual_seed(3)
    source = kind(config)
    draw(source, name)
    writer = gguf.GGUFWriter(folder / f"{name}.gguf", name)
    add_metadata(writer, name, config)
    add_tensors(writer, name, source, config)
    write(writer)
    with tempfile.TemporaryDirectory() as copy:
        (pathlib.Path(copy) / "model.gguf").write_bytes((folder / f"{name}.gguf").read_bytes())
        loaded = kind.from_pretrained(
            copy, gguf_file="model.gguf", dtype=torch.float32, attn_implementation="eager", **overrides).eval()
    found, _ = answer(loaded, torch.randint(4, 60, [1, PROMPT]))
    save_file(found, folder / f"{name}.safetensors")
    print(name, "logits up to", found["logits"].abs().max().item(), "greedy", found["greedy"].tolist(),
          {key: getattr(loaded.config, key, None) for key in ["head_dim", "sliding_window", "rope_parameters"]})


def rope_factors(rope, head_dim):
    """What Llama 3's scaling divides the frequencies by: 1 for waves that are short for the context that the model was
    trained for, `factor` for long ones, and something between for others."""
    frequencies = 1.0 / rope["rope_theta"] ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    waves = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((waves - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def add_keys(writer, architecture, config, own_head_dim):
    """The keys that the converter writes for an architecture. `own_head_dim`: `config.json` has a `head_dim`."""
    writer.add_type("model")
    add_sizes(writer, config)
    rope = config.rope_parameters
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
        writer.add_sliding_window(config.sliding_window)
    else:
        writer.add_rope_freq_base(rope["rope_theta"])
    if architecture == "llama":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(config.head_dim)
    if own_head_dim:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(rope, config.head_dim))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    # In files of Qwen and Gemma only this list says how large the vocabulary is.
    tokens = ["<unk>", "<s>", "</s>"] + [chr(33 + at) for at in range(VOCABULARY - 4)] + ["AB"]
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (VOCABULARY - 3))
    if architecture.startswith("gemma"):
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([-float(at) for at in range(VOCABULARY)])
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre({"llama": "llama-bpe"}.get(architecture, "qwen2"))
        writer.add_token_merges(["A B"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def converted(folder, name, architecture, kind, config, own_head_dim=True):
    config._attn_implementation = "eager"
    # The first seed without a near tie, and whose text does not repeat one token.
    for seed in range(3, 1000):
        torch.manual_seed(seed)
        source = kind(config).eval()
        draw(source, architecture)
        writer = gguf.GGUFWriter(folder / f"{name}.gguf", architecture)
        add_keys(writer, architecture, config, own_head_dim)
        missing, unknown = source.load_state_dict(add_tensors(writer, architecture, source, config), strict=False)
        assert not unknown and set(missing) <= ({"lm_head.weight"} if config.tie_word_embeddings else set()), missing
        source.tie_weights()
        found, lead = answer(source, torch.randint(4, 60, [1, PROMPT]))
        if lead >= 2e-3 and len(set(found["greedy"].tolist())) >= 6:
            break
    else:
        sys.exit(f"{name}: each seed has a near tie or repeats a token")
    write(writer)
    save_file(found, folder / f"{name}.safetensors")
    print(name, f"seed {seed}, logits up to {found['logits'].abs().max():.1f}, lead {lead:.4f}, greedy",
          found["greedy"].tolist())


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    types(folder)
    tokenizers(folder, pathlib.Path(sys.argv[2]))
    sizes = dict(vocab_size=VOCABULARY, max_position_embeddings=128, num_attention_heads=4, num_key_value_heads=2)
    model(folder, "llama", transformers.LlamaForCausalLM, transformers.LlamaConfig(
        **sizes, hidden_size=64, intermediate_size=64, num_hidden_layers=2, tie_word_embeddings=False))
    model(folder, "gemma3", transformers.Gemma3ForCausalLM, transformers.Gemma3TextConfig(
        **sizes, hidden_size=32, intermediate_size=32, num_hidden_layers=6, head_dim=16, query_pre_attn_scalar=16,
        sliding_window=6), query_pre_attn_scalar=16)

    t = transformers
    small = dict(**sizes, hidden_size=32, intermediate_size=32, rms_norm_eps=1e-5)
    base = {"rope_type": "default", "rope_theta": 5000.0}
    converted(folder, "qwen2", "qwen2", t.Qwen2ForCausalLM, t.Qwen2Config(
        **small, num_hidden_layers=2, rope_parameters=base), own_head_dim=False)
    converted(folder, "qwen3", "qwen3", t.Qwen3ForCausalLM, t.Qwen3Config(
        **small, num_hidden_layers=2, head_dim=16, tie_word_embeddings=True,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0,
                         "original_max_position_embeddings": 32}))
    # The file has no base of the rotary embedding.
    converted(folder, "gemma2", "gemma2", t.Gemma2ForCausalLM, t.Gemma2Config(
        **small, num_hidden_layers=3, head_dim=16, query_pre_attn_scalar=16, sliding_window=6,
        attn_logit_softcapping=5.0, final_logit_softcapping=3.0))
    converted(folder, "nemo", "llama", t.MistralForCausalLM, t.MistralConfig(
        **small, num_hidden_layers=2, head_dim=16, sliding_window=None, rope_parameters=base))
    converted(folder, "llama3", "llama", t.LlamaForCausalLM, t.LlamaConfig(
        **small, num_hidden_layers=2, head_dim=16, tie_word_embeddings=True,
        rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 64}))
    print({path.name: path.stat().st_size for path in sorted(folder.iterdir())})


main()
