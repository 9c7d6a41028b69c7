#!/usr/bin/env python3
"""Makes the references of the example `llama` for caches that round keys and values.

    tests/llama/caches.py FOLDER

Adds `caches.safetensors` to each model of FOLDER, which references.py made (`examples/llama/tests/models`). Needs what
references.py needs. The checked-in references were made with PyTorch 2.6.0 and transformers 5.24.0.

`transformers` computes the logits with a cache that rounds each key and value as the program's caches do:

    int8   to whole multiples of the vector's greatest magnitude divided by 127
    bf16   to bf16

for two ways through a prompt:

    rounded   every token sees rounded keys and values only
    behind    the first EXACT tokens see each other's exact keys and values, the others see rounded ones

    KIND.WAY.prompt   i64 [tokens]
    KIND.WAY          f32 [tokens - EXACT, vocabulary]    the logits after the last tokens

Rounding is not continuous: where a number lies halfway between two roundings, the order of a sum decides which one
it gets, and a whole step exceeds the error of f32. So the script draws the prompt token by token, and refuses a token
of which a key or value lies too near to such a place.
"""

import copy
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

TOKENS = 24
EXACT = 20

# The least distance from a place between two roundings, in steps of int8: 6e-5 of the vector's greatest magnitude. The
# keys and values of these models in f32 differ from those in f64 by up to 6e-6 of it.
STEPS = 8e-3
# The same for bf16, whose steps are finer, so that a larger distance would refuse nearly all tokens: a share of the
# greatest magnitude. A step that is smaller than FINE of it changes a logit by less than the order of a sum does.
SHARE = 5e-6
FINE = 2e-5


def int8(x):
    """The rounded vectors along the last axis, and whether none of their numbers lies too near to another rounding."""
    unit = x.abs().amax(-1, keepdim=True) / 127
    steps = x / unit
    between = (steps - steps.floor() - 0.5).abs()
    return steps.round() * unit, bool((between >= STEPS).all())


def bf16(x):
    rounded = x.bfloat16().float()
    greatest = x.abs().amax(-1, keepdim=True)
    _, exponent = torch.frexp(x)
    step = torch.ldexp(torch.ones_like(x), exponent - 8)
    between = ((x / step - (x / step).floor() - 0.5) * step).abs()
    return rounded, bool(((between >= SHARE * greatest) | (step < FINE * greatest)).all())


class TooNear(Exception):
    """A key or a value lies too near to another rounding."""


class Rounding(transformers.DynamicCache):
    """A cache of rounded keys and values. The first `exact` tokens see exact ones."""

    def __init__(self, config, kind, exact):
        super().__init__(config=config)
        self.kind, self.exact = kind, exact

    def update(self, keys, values, layer, *args, **kwargs):
        (rounded_keys, good_keys), (rounded_values, good_values) = self.kind(keys), self.kind(values)
        if not (good_keys and good_values):
            raise TooNear
        if self.exact == 0:
            keys, values = rounded_keys, rounded_values
        return super().update(keys, values, layer, *args, **kwargs)

    def advance(self):
        """Counts a token that all layers have."""
        if self.exact > 0:
            self.exact -= 1
            if self.exact == 0:
                for layer in self.layers:
                    layer.keys, layer.values = self.kind(layer.keys)[0], self.kind(layer.values)[0]


def step(model, cache, token):
    """The logits after one more token, and the cache with it; None if the token is refused."""
    cache = copy.deepcopy(cache)
    try:
        logits = model(input_ids=torch.tensor([[token]]), past_key_values=cache, use_cache=True).logits[0, -1]
    except TooNear:
        return None
    cache.advance()
    return logits, cache


def reference(model, kind, exact, generator):
    """A prompt and the logits after each of its tokens."""
    states = [(None, None, Rounding(model.config, kind, exact))]
    while len(states) <= TOKENS:
        for token in (4 + torch.randperm(60, generator=generator)).tolist():
            found = step(model, states[-1][2], token)
            if found:
                states.append((token, *found))
                break
        else:
            # Every token is refused here. After other tokens, one may not be.
            del states[max(1, len(states) - 2):]
    return torch.tensor([state[0] for state in states[1:]]), torch.stack([state[1] for state in states[1:]])


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}")
    torch.set_num_threads(1)
    for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()
        tensors = {}
        for kind in [int8, bf16]:
            for name, exact in [("rounded", 0), ("behind", EXACT)]:
                with torch.no_grad():
                    prompt, logits = reference(model, kind, exact, torch.Generator().manual_seed(11))
                    without = model(input_ids=prompt[None]).logits[0]
                # The first tokens of the second way are those without a cache.
                assert exact == 0 or (logits - without)[:exact].abs().max() < 1e-4
                moved = (logits - without)[EXACT:].abs().max()
                assert moved > 1e-3, "roundings that don't show test nothing"
                name = f"{kind.__name__}.{name}"
                print(f"{folder.name}, {name}: logits up to {logits.abs().max():.1f}, moved by {moved:.4f}")
                tensors[f"{name}.prompt"] = prompt
                tensors[name] = logits[EXACT:].contiguous()
        save_file(tensors, folder / "caches.safetensors")


main()
