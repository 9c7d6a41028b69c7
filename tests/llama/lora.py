#!/usr/bin/env python3
"""Makes the references of LoRA: adapters in PEFT's format, with outputs and gradients that PyTorch computes on the CPU.

    tests/llama/lora.py             writes lora and qlora in burn-rocm/nn/tests, and examples/llama/tests/lora
    tests/llama/lora.py qlora       writes burn-rocm/nn/tests/qlora alone
    tests/llama/lora.py check FOLDER MODEL   reads an adapter that this project wrote, with PEFT

Needs PyTorch 2.4 or newer, `peft`, `transformers` 5 and `safetensors`. The checked-in references were made with PyTorch
2.6.0, peft 0.21.2 and transformers 5.24.0.

`burn-rocm/nn/tests/lora` has adapters of a small network, computed in f64 from numbers that f32 can hold:

    x, target, base.NAME.weight, base.NAME.bias    f32
    output, loss, grad.NAME.lora_A, ..lora_B       f64, the gradients of the mean squared error
    merged.NAME                                    f64, the weights with the adapter merged into them

`burn-rocm/nn/tests/qlora` has the same of a wider network, whose weights are `scale * (code - zero)` of groups of
inputs. PyTorch computes with these floats, which are exact in f32:

    codes.NAME, zeros.NAME     u8 [outputs, inputs], [outputs, groups]
    scales.NAME                f32 [outputs, groups], numbers of f16

`examples/llama/tests/lora/MODEL` has adapters of a model of `references.py`:

    prompt   i64 [tokens]
    logits   f32 [tokens, vocabulary]    in f32
    loss     f32 [1]                     the mean cross entropy of the prompt's tokens after the first
    grad.LAYER.lora_A, ..lora_B          f32, its gradients
"""

import json
import pathlib
import shutil
import sys

import peft
import torch
import transformers
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPT = 20


class Network(torch.nn.Module):
    """Two layers with adapters, and one without."""

    def __init__(self, sizes):
        super().__init__()
        first, second = torch.nn.Module(), torch.nn.Module()
        first.q_proj = torch.nn.Linear(sizes[0], sizes[1])
        second.out_proj = torch.nn.Linear(sizes[1], sizes[2], bias=False)
        self.blocks = torch.nn.ModuleList([first, second])
        self.head = torch.nn.Linear(sizes[2], sizes[3])

    def forward(self, x):
        x = torch.tanh(self.blocks[0].q_proj(x))
        return self.head(torch.tanh(self.blocks[1].out_proj(x)))


def draw_adapters(model, generator, size):
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * size


def tidy(folder):
    """Leaves out what names this machine and what tells nothing."""
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = None
    config["auto_mapping"] = None
    config["target_modules"] = (
        sorted(config["target_modules"]) if isinstance(config["target_modules"], list) else config["target_modules"])
    path.write_text(json.dumps(config, indent=2) + "\n")


def layer(name):
    return name.removeprefix("base_model.model.").replace(".default", "").removesuffix(".weight")


def network(folder):
    generator = torch.Generator().manual_seed(1)
    model = Network([10, 12, 6, 4])
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4
    adapted(folder, model, generator, rows=7, size=0.3)


def quantised_network(folder):
    """Inputs that are no multiple of a group, and more rows than one kernel of this project takes."""
    generator = torch.Generator().manual_seed(3)
    model = Network([70, 40, 33, 4])
    stored = {}
    for name, bits, group in [("blocks.0.q_proj", 4, 32), ("blocks.1.out_proj", 8, 32), ("head", 8, 64)]:
        linear = model.get_submodule(name)
        outputs, inputs = linear.weight.shape
        groups = -(-inputs // group)
        codes = torch.randint(0, 2**bits, [outputs, inputs], generator=generator, dtype=torch.uint8)
        middle = 2 ** (bits - 1)
        zeros = torch.full([outputs, groups], middle, dtype=torch.uint8)
        if bits == 4:
            zeros = torch.randint(middle - 3, middle + 4, [outputs, groups], generator=generator, dtype=torch.uint8)
        scales = (torch.rand([outputs, groups], generator=generator) + 0.5) * 4 / 2**bits / inputs**0.5
        scales = scales.half().float()
        spread = lambda of_groups: of_groups.repeat_interleave(group, 1)[:, :inputs]
        weight = spread(scales) * (codes.float() - spread(zeros).float())
        assert torch.equal(weight.double(), spread(scales).double() * (codes.double() - spread(zeros).double()))
        linear.weight.data = weight
        if linear.bias is not None:
            linear.bias.data = torch.randn([outputs], generator=generator) * 0.4
        stored |= {f"codes.{name}": codes, f"zeros.{name}": zeros, f"scales.{name}": scales}
    adapted(folder, model, generator, rows=20, size=0.2, stored=stored)


def adapted(folder, model, generator, rows, size, stored=None):
    """Adds adapters to a network, and writes what PyTorch computes."""
    base = {f"base.{name}": p.detach().clone() for name, p in model.named_parameters()}
    ends = [model.blocks[0].q_proj.in_features, model.head.out_features]
    config = peft.LoraConfig(
        r=3, lora_alpha=6, use_rslora=True, target_modules=r"blocks\.\d+\.(q|out)_proj",
        rank_pattern={"out_proj": 2}, alpha_pattern={r"blocks\.1\..*": 5})
    model = peft.get_peft_model(model, config)
    draw_adapters(model, generator, size)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    tidy(folder)
    x, target = (torch.randn([rows, n], generator=generator) for n in ends)
    model.double()
    output = model(x.double())
    loss = torch.nn.functional.mse_loss(output, target.double())
    loss.backward()
    grads = {f"grad.{layer(n)}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert len(grads) == 4, list(grads)
    merged = {f"merged.{n.removesuffix('.weight')}": p for n, p in model.merge_and_unload().named_parameters()
              if "proj.weight" in n and stored is None}
    tensors = {"x": x, "target": target, "output": output, "loss": loss.reshape(1), **base, **grads, **merged}
    tensors |= stored or {}
    save_file({k: v.detach().contiguous() for k, v in tensors.items()}, folder / "reference.safetensors")


def language(name, folder, **settings):
    generator = torch.Generator().manual_seed(2)
    source = ROOT / "examples/llama/tests/models" / name
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, attn_implementation="eager")
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    draw_adapters(model, generator, 0.2)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    tidy(folder)
    prompt = torch.randint(4, 60, [1, PROMPT], generator=generator)
    logits = model(input_ids=prompt).logits[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1], prompt[0, 1:])
    loss.backward()
    grads = {f"grad.{layer(n)}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    tensors = {"prompt": prompt[0], "logits": logits, "loss": loss.reshape(1), **grads}
    save_file({k: v.detach().contiguous() for k, v in tensors.items()}, folder / "expected.safetensors")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{name}: {len(grads)} gradients, loss {loss.item():.4f}, {size} bytes")


def check(folder, base):
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tokens = torch.arange(4, 24)[None]
    before = model(input_ids=tokens).logits
    model = peft.PeftModel.from_pretrained(model, folder)
    after = model(input_ids=tokens).logits
    print(f"PEFT {peft.__version__} reads {folder}: {model.peft_config['default']}")
    print(f"logits move by up to {(after - before).abs().max().item():.4f}")
    print("logits of token 23:", " ".join(f"{x:.5f}" for x in after[0, -1, :8].tolist()))


def main():
    torch.set_num_threads(1)
    if len(sys.argv) == 4 and sys.argv[1] == "check":
        return check(*sys.argv[2:])
    print(f"PyTorch {torch.__version__}, peft {peft.__version__}, transformers {transformers.__version__}")
    quantised_network(ROOT / "burn-rocm/nn/tests/qlora")
    if sys.argv[1:] == ["qlora"]:
        return
    network(ROOT / "burn-rocm/nn/tests/lora")
    to = ROOT / "examples/llama/tests/lora"
    language("llama3", to / "llama3", r=3, lora_alpha=6, target_modules="all-linear", rank_pattern={"up_proj": 2})
    language("qwen2", to / "qwen2", r=2, lora_alpha=4, use_rslora=True, layers_to_transform=[0, 2],
             target_modules=["q_proj", "v_proj", "down_proj"])
    language("gemma3", to / "gemma3", r=2, lora_alpha=3, target_modules=r".*\.(k|o|gate)_proj")


main()
