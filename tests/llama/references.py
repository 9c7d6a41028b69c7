#!/usr/bin/env python3
"""Makes the references of the example `llama`: small random models of each family, with the logits and the greedy
text that `transformers` computes for them in f32 on the CPU.

    tests/llama/references.py FOLDER [MODEL...]
    tests/llama/references.py --long FOLDER      adds long.safetensors to each model of the folder

Needs PyTorch 2.4 or newer, `transformers` 5 and `safetensors`. The checked-in references
(`examples/llama/tests/models`) were made with PyTorch 2.6.0 and transformers 5.24.0.

Each model gets a folder with `config.json`, `generation_config.json`, its weights, and `expected.safetensors`:

    prompt   i64 [tokens]                 a random prompt, longer than the windows
    logits   f32 [tokens, vocabulary]     the logits after each token of the prompt
    greedy   i64 [new tokens]             the most likely tokens after the prompt, one by one

and `long.safetensors`, of a prompt that fills most of the context and many windows:

    prompt   i64 [tokens]
    rows     i64 [rows]                   the tokens after which it has logits
    logits   f32 [rows, vocabulary]

Models are small, so all parameters are drawn, also norms and biases: a module that forgets one of them then gives
other logits. The logits are those of the weights as they are saved, after rounding to the file's dtype.
"""

import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file

VOCABULARY = 64
PROMPT = 20
NEW = 24
LONG = 120

LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16}

# Settings that all models share.
SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=24, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)


def models():
    """The name of each model, with its class, its settings, the dtype of its file, and what is done to the folder."""
    t = transformers
    sizes = SIZES
    return {
        "llama3": (t.LlamaForCausalLM, t.LlamaConfig(
            **sizes, rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True), torch.bfloat16, []),
        "llama-biases": (t.LlamaForCausalLM, t.LlamaConfig(
            **sizes, attention_bias=True, mlp_bias=True,
            rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}), torch.float16, [older]),
        "qwen2": (t.Qwen2ForCausalLM, t.Qwen2Config(
            **sizes, use_sliding_window=True, sliding_window=6, max_window_layers=1), torch.bfloat16, [older, parts]),
        "qwen3": (t.Qwen3ForCausalLM, t.Qwen3Config(
            **sizes, head_dim=10, rope_parameters=YARN_ROPE, tie_word_embeddings=True), torch.bfloat16, []),
        "mistral": (t.MistralForCausalLM, t.MistralConfig(**sizes, sliding_window=6), torch.bfloat16, [older]),
        "nemo": (t.MistralForCausalLM, t.MistralConfig(
            **sizes, head_dim=10, sliding_window=None), torch.float32, []),
        "gemma2": (t.Gemma2ForCausalLM, t.Gemma2Config(
            **sizes, head_dim=10, sliding_window=6, query_pre_attn_scalar=20, attn_logit_softcapping=5.0,
            final_logit_softcapping=3.0), torch.bfloat16, [older]),
        "gemma3": (t.Gemma3ForCausalLM, t.Gemma3TextConfig(
            **{**sizes, "num_hidden_layers": 4}, head_dim=10, sliding_window=6, query_pre_attn_scalar=20,
            sliding_window_pattern=3, rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
            }), torch.bfloat16, []),
        "gemma3-nested": (t.Gemma3ForConditionalGeneration, t.Gemma3Config(
            text_config=dict(
                **sizes, head_dim=10, sliding_window=6, query_pre_attn_scalar=20, sliding_window_pattern=2,
                rope_parameters={
                    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                    "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
                }),
            vision_config=dict(
                hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=28,
                patch_size=14),
            mm_tokens_per_image=4, boi_token_index=60, eoi_token_index=61, image_token_index=62,
        ), torch.bfloat16, [older]),
    }


def older(folder):
    """Writes the rotary embedding and the layers' windows as files of `transformers` 4 have them."""
    path = folder / "config.json"
    outer = json.loads(path.read_text())
    config = outer.get("text_config", outer)
    rope = config.pop("rope_parameters")
    if "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    config["rope_theta"] = rope.pop("rope_theta")
    if rope["rope_type"] == "default":
        config["rope_scaling"] = None
    else:
        config["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    types = config.pop("layer_types", None)
    if "gemma3" in config["model_type"]:
        config["sliding_window_pattern"] = types.index("full_attention") + 1
    path.write_text(json.dumps(outer, indent=2) + "\n")


def parts(folder):
    """Divides the weights into two files with an index."""
    from safetensors import safe_open
    whole = folder / "model.safetensors"
    with safe_open(whole, "pt") as file:
        names = sorted(file.keys())
        tensors = {name: file.get_tensor(name) for name in names}
    whole.unlink()
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": {}}
    for at in range(2):
        name = f"model-0000{at + 1}-of-00002.safetensors"
        mine = {key: tensors[key] for key in names[at::2]}
        save_file(mine, folder / name, metadata={"format": "pt"})
        index["weight_map"].update(dict.fromkeys(mine, name))
    index["weight_map"] = dict(sorted(index["weight_map"].items()))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def draw(model, generator):
    """Draws every parameter, so that the logits depend on all of them."""
    for name, parameter in model.named_parameters():
        if "vision" in name or "multi_modal" in name:
            torch.nn.init.zeros_(parameter)
            continue
        drawn = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            about = 1.0 if "norm" in name and "gemma" not in model.config.model_type else 0.0
            parameter.data = about + 0.2 * drawn
        elif "embed" in name:
            parameter.data = drawn * (0.1 if "gemma" in model.config.model_type else 1.0)
        else:
            parameter.data = drawn * 1.5 / parameter.shape[1] ** 0.5
    model.tie_weights()


def make(folder, seed, kind, config, dtype, changes):
    """Makes one model. False if its text is no good test."""
    generator = torch.Generator().manual_seed(seed)
    shutil.rmtree(folder, ignore_errors=True)
    config._attn_implementation = "eager"
    model = kind(config)
    draw(model, generator)
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=1, eos_token_id=[2, 3], do_sample=True, temperature=0.6, top_p=0.9)
    model.to(dtype).save_pretrained(folder)
    for change in changes:
        change(folder)

    # From the files, in f32.
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    prompt = torch.randint(4, 60, [1, PROMPT], generator=generator)
    with torch.no_grad():
        logits = model(input_ids=prompt).logits[0]
        # The stop tokens don't count here: all models give the same number of tokens.
        out = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, eos_token_id=None, do_sample=False)
        after = model(input_ids=out).logits[0, PROMPT - 1:-1]
    greedy = out[0, PROMPT:]
    best = after.topk(2).values
    margin = (best[:, 0] - best[:, 1]).min().item()
    assert torch.equal(after.argmax(-1), greedy), "generate and the logits of the whole text differ"
    different = len(set(greedy.tolist()))
    if margin < 2e-3 or different < 8:
        return False
    save_file({"prompt": prompt[0], "logits": logits.contiguous(), "greedy": greedy.contiguous()},
              folder / "expected.safetensors")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder.name}: margin {margin:.4f}, logits up to {logits.abs().max():.1f}, "
          f"{different} different tokens, {size} bytes")
    return True


def add_long(folder):
    """Logits of a long prompt, from the files, in f32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").eval()
    prompt = torch.randint(4, 60, [1, LONG], generator=torch.Generator().manual_seed(7))
    rows = torch.arange(LONG // 12 - 1, LONG, LONG // 12)
    with torch.no_grad():
        logits = model(input_ids=prompt).logits[0, rows]
    save_file({"prompt": prompt[0], "rows": rows, "logits": logits.contiguous()}, folder / "long.safetensors")
    print(f"{folder.name}: logits up to {logits.abs().max():.1f}")


def main():
    if sys.argv[1:2] == ["--long"] and len(sys.argv) == 3:
        torch.set_num_threads(1)
        for path in sorted(pathlib.Path(sys.argv[2]).iterdir()):
            add_long(path)
        return
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder, only = pathlib.Path(sys.argv[1]), sys.argv[2:]
    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}")
    torch.set_num_threads(1)
    for seed, (name, model) in enumerate(models().items()):
        if not only or name in only:
            # The first seed without a near tie, and whose text does not repeat one token.
            next(draw for draw in range(seed, 10**6, 100) if make(folder / name, draw, *model))


main()
