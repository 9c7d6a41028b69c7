"""`hip/examples/all_reduce.rs` in PyTorch: one process a device (`torchrun --nproc-per-node N`), sizes in MiB."""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
for mib in [int(size) for size in sys.argv[1:]] or [1, 25, 256]:
    count = mib << 18
    tensor = torch.zeros(count, device="cuda")
    calls = min(max((1 << 30) // (4 * count), 8), 400)
    times = []
    for _ in range(10):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(tensor)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / calls)
    median = sorted(times[1:])[4]
    if rank == 0:
        bus = 2 * (size - 1) / size * 4 * count / median / 1e9
        print(f"PyTorch {mib} MiB: {median * 1e6:.1f} us, {bus:.1f} GB/s bus", flush=True)
dist.destroy_process_group()
