"""The rows of `benches --devices N` in PyTorch: all-reduces, and data parallel steps (DDP), eager.

One process a device, with torchrun's variables. `benches` puts `torch_models.py` before it."""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

arguments = argparse.ArgumentParser()
arguments.add_argument("--iterations", type=int, default=5)
arguments.add_argument("--filter", default="")
arguments.add_argument("--bf16", action="store_true")
options = arguments.parse_args()
dtype = torch.bfloat16 if options.bf16 else torch.float32
name_of_dtype = "bf16" if options.bf16 else "f32"

# Full f32 precision, as in the other backends' rows.
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = True
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
# A rank that waits at a barrier of this group leaves its device idle.
hosts = dist.new_group(backend="gloo")
ROUND = 0.3


def agree(number):
    """Rank 0's number."""
    tensor = torch.tensor([number], device="cuda")
    dist.broadcast(tensor, 0)
    return int(tensor.item())


def slowest(number):
    """The largest of the ranks' numbers."""
    tensor = torch.tensor([number], device="cuda", dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.item()


def median_of(body, before, agreed):
    """The median over rounds of the time of a call, from idle to idle. `before` begins a round, and `agreed` gives the
    number of calls that all ranks make."""

    def calls(count):
        torch.cuda.synchronize()
        before()
        start = time.perf_counter()
        for _ in range(count):
            body()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    calls(5)
    count = agreed(min(max(int(ROUND / calls(3)), 1), 1000))
    return statistics.median(calls(count) for _ in range(options.iterations))


def together(body):
    """The seconds of a call that all ranks make, on the slowest rank."""

    def meet():
        dist.barrier()
        torch.cuda.synchronize()

    return slowest(median_of(body, meet, agree))


def alone(make):
    """The seconds of a call on rank 0, where `make` returns the function to call. Meanwhile the other ranks wait, and
    their devices are idle."""
    seconds = median_of(make(), lambda: None, lambda count: count) if rank == 0 else 0.0
    dist.barrier(group=hosts)
    return seconds


def wanted(name):
    return options.filter in name


def say(text):
    if rank == 0:
        print(text, flush=True)


def all_reduces():
    for mib in [1, 4, 25, 256]:
        tensor = torch.zeros(mib << 18, device="cuda")
        call = together(lambda: dist.all_reduce(tensor))
        bus = 2 * (size - 1) / size * (mib << 20) / call / 1e9
        say(f"| PyTorch {mib} MiB | {size} | {call * 1e6:.1f} us | {bus:.1f} | - | - |")


def step_of(model, batch, loss_of):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, eps=1e-5)

    def step():
        optimizer.zero_grad()
        loss_of(model, *batch).backward()
        optimizer.step()

    return step


def row(name, kind, batch, loss_of):
    """The same step without DDP on rank 0, and with DDP on all ranks."""
    name = f"PyTorch {name}, {name_of_dtype}"
    if not wanted(name):
        return
    make = lambda: kind().to("cuda", dtype)
    base = alone(lambda: step_of(make(), batch, loss_of))
    ddp = together(step_of(DistributedDataParallel(make(), device_ids=[rank]), batch, loss_of))
    say(f"| {name} | {size} | DDP | {base * 1e3:.3f} ms alone | {ddp * 1e3:.3f} ms | {base / ddp:.3f} |")


classify = lambda model, x, labels: F.cross_entropy(model(x).float(), labels)
mean_square = lambda model, x, y: (model(x) - y).square().mean()
uniform = lambda *shape: torch.rand(*shape, device="cuda").to(dtype) * 2 - 1
labels = lambda count, classes: torch.arange(count, device="cuda") % classes
say("\n| PyTorch | devices | | | | efficiency |\n|---|---|---|---|---|---|")
if size > 1 and wanted("PyTorch all-reduce"):
    all_reduces()
row("CNN Adam step, batch 512", Cnn, (uniform(512, 28, 28), labels(512, 10)), classify)
row("ResNet-18 Adam step, batch 64", ResNet18, (uniform(64, 3, 224, 224), labels(64, 1000)), classify)
row("transformer Adam step, batch 16", Transformer, (uniform(16, 512, 768), uniform(16, 512, 768)), mean_square)
dist.destroy_process_group()
