"""The cases of `benches` in PyTorch: eager, or the training steps and inference compiled (`--compiled`).

Prints `"case",seconds` lines: the rounds' median by device events. `benches` puts `torch_models.py` before it, and
gives the names of the cases in `--rows`, one on each line."""

import argparse
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

arguments = argparse.ArgumentParser()
arguments.add_argument("--groups", required=True)
arguments.add_argument("--shrink", type=int, default=1)
arguments.add_argument("--iterations", type=int, default=5)
arguments.add_argument("--rows", required=True)
arguments.add_argument("--precision", default="f32")
arguments.add_argument("--compiled", action="store_true")
options = arguments.parse_args()
groups, rows = options.groups.split(","), options.rows.splitlines()
shrink, compiled = options.shrink, options.compiled

# Full f32 precision, as in the other backends' rows.
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = True
on_gpu = torch.cuda.is_available()
device = torch.device("cuda" if on_gpu else "cpu")


def wait():
    if on_gpu:
        torch.cuda.synchronize()


def host_seconds(body):
    wait()
    start = time.perf_counter()
    body()
    wait()
    return time.perf_counter() - start


def round_seconds(body, calls):
    if not on_gpu:
        return host_seconds(lambda: [body() for _ in range(calls)]) / calls
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    wait()
    before.record()
    for _ in range(calls):
        body()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / 1e3 / calls


def say(name, seconds):
    print(f'"{name}",{seconds}', flush=True)


def wanted(group, name):
    return group in groups and name in rows


ROUND, CALLS, MOST_CALLS = 0.02, 4, 100_000


def calls_a_round(body):
    """The number of calls in a round, chosen as for the other backends: a round lasts at least 20 ms and has at least 4
    calls, of which only the first begins on an idle device. The calls before it compile and choose algorithms."""
    for _ in range(5):
        host_seconds(body)
    fill = lambda call: min(MOST_CALLS, max(CALLS, math.ceil(ROUND / max(call, 1e-7))))
    calls = fill(min(host_seconds(body) for _ in range(2)))
    while calls < MOST_CALLS and (call := round_seconds(body, calls)) * calls < ROUND:
        # A tenth more, because the next rounds may be a little faster.
        calls = max(calls + 1, fill(call / 1.1))
    return calls


def measure(group, name, body, kernel=""):
    """The row's name is that of the case, followed by that of the kernel."""
    if not wanted(group, name):
        return
    print(f"PyTorch: {name}{kernel}", file=sys.stderr)
    calls = calls_a_round(body)
    say(name + kernel, statistics.median(round_seconds(body, calls) for _ in range(options.iterations)))


BEYOND_CACHES = 512 << 20


def rotated(operand_bytes, make, op):
    """A body that uses other operands in each call, so that no call finds them in a cache."""
    count = max(1, min(8, math.ceil(BEYOND_CACHES / max(1, operand_bytes))))
    states, at = [make() for _ in range(count)], [0]

    def body():
        at[0] = (at[0] + 1) % count
        op(*states[at[0]])

    return body


def uniform(*shape, dtype=torch.float32):
    return (torch.rand(*shape, device=device) * 2 - 1).to(dtype)


def memory():
    n = (1 << 28) // shrink
    rows, columns = 65536 // min(shrink, 4096), 4096
    shape, m = f"{rows}x{columns} f32", rows * columns
    one = lambda: (uniform(n),)
    table = lambda: (uniform(rows, columns),)
    with torch.no_grad():
        measure("elementwise", f"add {n} f32", rotated(8 * n, lambda: (uniform(n), uniform(n)), lambda a, b: a + b))
        measure("elementwise", f"gelu {n} f32", rotated(4 * n, one, F.gelu))
        measure("elementwise", f"exp {n} f32", rotated(4 * n, one, torch.exp))
        measure("elementwise", f"transpose to contiguous {shape}", rotated(4 * m, table, lambda a: a.t().contiguous()))
        measure("reduce", f"sum {n} f32", rotated(4 * n, one, torch.sum))
        measure("reduce", f"sum_dim 1 {shape}", rotated(4 * m, table, lambda a: a.sum(1, keepdim=True)))
        measure("reduce", f"sum_dim 0 {shape}", rotated(4 * m, table, lambda a: a.sum(0, keepdim=True)))
        long = n // 16
        measure("reduce", f"cumsum {long} f32", rotated(4 * long, lambda: (uniform(long),), lambda a: a.cumsum(0)))
        measure("softmax", f"softmax {shape}", rotated(4 * m, table, lambda a: F.softmax(a, 1)))
        labels = torch.arange(rows, device=device) % columns
        measure("softmax", f"cross entropy {shape}", rotated(4 * m, table, lambda a: F.cross_entropy(a, labels)))
        norm = nn.LayerNorm(columns, device=device)
        measure("norm", f"layer_norm {shape}", rotated(4 * m, table, norm))


def products():
    for name, dtype, n in [("f32", torch.float32, 4096), ("bf16", torch.bfloat16, 8192), ("f16", torch.float16, 8192)]:
        n //= min(shrink, 64)
        make = lambda: (uniform(n, n, dtype=dtype), uniform(n, n, dtype=dtype))
        measure("matmul", f"matmul {n} {name}", rotated(2 * n * n * dtype.itemsize, make, torch.matmul))


def convolutions():
    batch = max(1, 64 // shrink)
    layers = [(3, 64, 224, 7, 2), (64, 64, 56, 3, 1), (128, 128, 28, 3, 1), (256, 256, 14, 3, 1), (512, 512, 7, 3, 1)]
    for source, to, side, kernel, stride in layers:
        out = side // stride
        make = lambda: (uniform(batch, source, side, side), uniform(to, source, kernel, kernel))
        op = lambda x, w: F.conv2d(x, w, stride=stride, padding=kernel // 2)
        name = f"conv2d {source}->{to} {kernel}x{kernel} stride {stride} on {side}x{side}, batch {batch} f32"
        measure("conv", name, rotated(4 * batch * (source * side * side + to * out * out), make, op))


def chains():
    a, b = uniform(32, 32), uniform(32, 32)

    def kept():
        results = [a]
        for i in range(1000):
            results.append(results[i] + b)

    def dropped():
        result = a
        for _ in range(1000):
            result = result + b

    measure("overhead", "add 32x32, a chain of 1000, results kept", kept)
    measure("overhead", "add 32x32, a chain of 1000, results dropped", dropped)


def graph_of(body, calls):
    """A replay of a CUDA graph of some calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            body()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            body()
    return graph.replay


def attention():
    """Ten calls of the kernel that each precision is compared with, as a graph. cuDNN's rows have a name of their own.
    Only on a GPU: the CPU has neither the kernels nor graphs."""
    if not on_gpu or "attention" not in groups:
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    flash = [(SDPBackend.FLASH_ATTENTION, ""), (SDPBackend.CUDNN_ATTENTION, ", cuDNN")]
    kinds = {
        "f32": (torch.float32, [(SDPBackend.EFFICIENT_ATTENTION, "")]),
        "bf16": (torch.bfloat16, flash),
        "f16": (torch.float16, flash),
    }
    sizes = [(16, 12, 512, 64), (4, 12, 2048, 64), (4, 12, 4096, 64), (1, 12, 8192, 64), (2, 16, 4096, 128)]
    for precision in options.precision.split(","):
        dtype, kernels = kinds[precision]
        end = "" if precision == "f32" else f", {precision}"
        for batch, heads, length, features in sizes:
            length = max(1, length // shrink)
            for causal in [False, True]:
                name = f"attention {batch}x{heads}x{length}x{features}{end}{', causal' if causal else ''}"
                # As a linear layer's output has them.
                made = lambda: (uniform(batch, length, heads, features, dtype=dtype) / 2).transpose(1, 2)
                q, k, v, grad = (made() for _ in range(4))
                leaves = [t.detach().clone().requires_grad_() for t in (q, k, v)]

                def forward():
                    with torch.no_grad():
                        F.scaled_dot_product_attention(q, k, v, is_causal=causal)

                def both():
                    out = F.scaled_dot_product_attention(*leaves, is_causal=causal)
                    torch.autograd.grad(out, leaves, grad)

                for kernel, whose in kernels:
                    for body, passes in [(forward, "forward"), (both, "forward and backward")]:
                        if not wanted("attention", f"{name}, {passes}"):
                            continue
                        try:
                            with sdpa_kernel(kernel):
                                replay = graph_of(body, 10)
                            measure("attention", f"{name}, {passes}", replay, whose)
                        except RuntimeError as error:
                            # The kernel does not take the call, so the row has no figure of PyTorch.
                            print(f"PyTorch: {name}, {passes}{whose}: {error}", file=sys.stderr)


def numbers(shape, series, scale):
    """`numbers` of benches/src/gpu/models.rs."""
    index = torch.arange(math.prod(shape), dtype=torch.int64)
    x = (index + series * 0x9E3779B9) & 0xFFFFFFFF
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    x = (x ^ (x >> 16)).to(torch.float64) / (1 << 31) - 1
    return (x * scale).to(torch.float32).reshape(shape).to(device)


def fill(model):
    """The weights that every peer starts from, in the order in which Burn visits its modules."""
    series = 0
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                series += 1
                inputs = module.in_features
                weights = numbers((inputs, module.out_features), series, 1 / math.sqrt(inputs))
                module.weight.copy_(weights.t())
                module.bias.zero_()
            elif isinstance(module, nn.Conv2d):
                series += 1
                shape = tuple(module.weight.shape)
                module.weight.copy_(numbers(shape, series, 1 / math.sqrt(math.prod(shape[1:]))))
    return model


def train(name, model, batch, loss_of, precision):
    """A training step. In a half, autocast computes in it; f16's loss is scaled. With --compiled,
    the forward and the backward pass are compiled, and replayed from CUDA graphs."""
    if not wanted("train", name):
        return
    torch.manual_seed(0)
    model = fill(model.to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, eps=1e-5, fused=on_gpu)
    scaler = torch.amp.GradScaler(enabled=precision == "f16")
    half = {"bf16": torch.bfloat16, "f16": torch.float16}.get(precision)

    def loss_in(model, *batch):
        with torch.autocast("cuda", dtype=half, enabled=half is not None):
            return loss_of(model, *batch).float()

    if compiled:
        torch._dynamo.reset()
        loss_in = torch.compile(loss_in, mode="reduce-overhead")
    losses = []

    def step():
        optimizer.zero_grad()
        if compiled:
            torch.compiler.cudagraph_mark_step_begin()
        loss = loss_in(model, *batch)
        if len(losses) <= 20:
            losses.append(loss.detach().clone())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    measure("train", name, step)
    while len(losses) <= 20:
        step()
    for at, loss in enumerate(losses[:21]):
        say(f"loss {at} of {name}", float(loss))


def training():
    for precision in options.precision.split(","):
        training_in(precision)


def training_in(precision):
    end = "" if precision == "f32" else f", {precision}"
    classify = lambda model, x, labels: F.cross_entropy(model(x), labels)
    labels = lambda size, classes: torch.arange(size, device=device) % classes
    sizes = [64] if shrink > 1 else [64, 512, 4096]
    for name, kind in [("MLP", Mlp), ("CNN", Cnn)]:
        for size in sizes:
            batch = (numbers((size, 28, 28), 0, 1.0), labels(size, 10))
            train(f"{name} Adam step, batch {size}{end}", kind(), batch, classify, precision)
    size = 1 if shrink > 1 else 64
    batch = (numbers((size, 3, 224, 224), 0, 1.0), labels(size, 1000))
    train(f"ResNet-18 Adam step, batch {size}{end}", ResNet18(), batch, classify, precision)
    size = 1 if shrink > 1 else 16
    batch = (numbers((size, 512, 768), 0, 1.0), numbers((size, 512, 768), 1, 1.0))
    mean_square = lambda model, x, y: (model(x) - y).square().mean()
    train(f"transformer Adam step, batch {size}{end}", Transformer(), batch, mean_square, precision)


class Bottleneck(nn.Module):
    def __init__(self, source, inner, stride):
        super().__init__()
        conv = lambda a, b, size, stride: nn.Conv2d(a, b, size, stride, size // 2, bias=False)
        to = 4 * inner
        self.conv1, self.norm1 = conv(source, inner, 1, 1), nn.BatchNorm2d(inner)
        self.conv2, self.norm2 = conv(inner, inner, 3, stride), nn.BatchNorm2d(inner)
        self.conv3, self.norm3 = conv(inner, to, 1, 1), nn.BatchNorm2d(to)
        other = source != to
        self.around = nn.Sequential(conv(source, to, 1, stride), nn.BatchNorm2d(to)) if other else nn.Identity()

    def forward(self, x):
        around = self.around(x)
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        return F.relu(self.norm3(self.conv3(x)) + around)


class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks, source = [], 64
        for inner, count, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
            for at in range(count):
                blocks.append(Bottleneck(source, inner, 1 if at else stride))
                source = 4 * inner
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(2048, 1000)

    def forward(self, images):
        x = F.max_pool2d(F.relu(self.norm(self.stem(images))), 3, 2, 1)
        return self.head(F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))


class PostNormLayer(Layer):
    def forward(self, x):
        heads = lambda t: t.unflatten(2, (12, 64)).transpose(1, 2)
        attended = F.scaled_dot_product_attention(heads(self.query(x)), heads(self.key(x)), heads(self.value(x)))
        x = self.norm_1(x + self.output(attended.transpose(1, 2).flatten(2)))
        return self.norm_2(x + self.outer(F.gelu(self.inner(x))))


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places, self.segments = (nn.Embedding(count, 768) for count in (30522, 512, 2))
        self.norm, self.layers = nn.LayerNorm(768), nn.Sequential(*(PostNormLayer() for _ in range(12)))
        self.pooler, self.classifier = nn.Linear(768, 768), nn.Linear(768, 2)

    def forward(self, words):
        places = torch.arange(words.shape[1], device=device).unsqueeze(0)
        x = self.words(words) + self.segments(torch.zeros_like(words)) + self.places(places)
        x = self.layers(self.norm(x))
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


def infer(name, make, batch, dtype):
    if not wanted("inference", name):
        return
    model = fill(make().to(device)).to(dtype).eval()
    batch = batch.to(dtype) if batch.is_floating_point() else batch
    if compiled:
        torch._dynamo.reset()
        model = torch.compile(model, mode="reduce-overhead")

    def call():
        with torch.inference_mode():
            if compiled:
                torch.compiler.cudagraph_mark_step_begin()
            model(batch)

    measure("inference", name, call)


def inference():
    size = 1 if shrink > 1 else 16
    words = (torch.arange(size * 128, device=device) * 7919 % 30522).reshape(size, 128)
    for precision in options.precision.split(","):
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[precision]
        end = "" if precision == "f32" else f", {precision}"
        images = numbers((size, 3, 224, 224), 0, 1.0)
        infer(f"ResNet-50 inference, batch {size}{end}", ResNet50, images, dtype)
        infer(f"BERT base inference, batch {size}{end}", Bert, words, dtype)


if not compiled:
    memory()
    products()
    convolutions()
    chains()
    attention()
training()
inference()
