"""The cases of `benches/src/bin/attention_packed.rs` with PyTorch's FlashAttention-2, in bf16.

Prints rows like that program: device milliseconds of a call forward, and forward and backward, each the median of
replays of a CUDA graph of ten calls. `torch_attention.py [ROUNDS]`."""

import sys

import torch

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
CALLS = 10
mixed = [16 + (at * at * 389) % 1009 for at in range(64)]
CASES = [
    ("4 of 2048", [2048] * 4, 12, 12, 64),
    ("4 of 2048, heads of 32", [2048] * 4, 12, 12, 32),
    ("4 of 2048, heads of 128", [2048] * 4, 12, 12, 128),
    ("64 of 16 to 1024", mixed, 12, 12, 64),
    ("64 of 16 to 1024, 4 heads of keys", mixed, 12, 4, 64),
    ("one of 8192, 63 of 128", [8192] + [128] * 63, 12, 12, 64),
]


def median(body):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            body()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            body()
    graph.replay()
    times = []
    for _ in range(rounds):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) / CALLS)
    return sorted(times)[len(times) // 2]


def attention(shapes, offsets, longest, causal, dropout):
    """Calls of FlashAttention-2's kernels: of tensors [rows, heads, features] with offsets, or of [batch, rows, heads,
    features] without."""
    q, k, v, grad = (torch.rand(shape, device="cuda", dtype=torch.bfloat16) - 0.5 for shape in shapes)
    op = torch.ops.aten

    def forward():
        found = op._flash_attention_forward(q, k, v, offsets, offsets, longest, longest, dropout, causal, False)
        return found[:4]

    def both():
        out, sums, state, unused = forward()
        op._flash_attention_backward(
            grad, q, k, v, out, sums, offsets, offsets, longest, longest, dropout, causal, state, unused
        )

    return median(forward), median(both)


print("| case | forward, ms | forward and backward, ms |\n|---|---:|---:|")
for name, lengths, heads, key_heads, features in CASES:
    rows, longest, batch = sum(lengths), max(lengths), len(lengths)
    ends = torch.tensor([0] + lengths).cumsum(0).to(torch.int32).cuda()
    for causal in [False, True]:
        kind = ", causal" if causal else ""
        ways = [("packed", (rows,), ends, 0.0), ("padded", (batch, longest), None, 0.0)]
        for way, leading, offsets, dropout in ways + [("padded, dropout", (batch, longest), None, 0.1)]:
            shapes = [(*leading, count, features) for count in (heads, key_heads, key_heads, heads)]
            try:
                found = attention(shapes, offsets, longest, causal, dropout)
            except RuntimeError as error:
                print(f"| {name}{kind}: {way} | {str(error).splitlines()[0]} | |", flush=True)
                continue
            print(f"| {name}{kind}: {way} | {found[0]:.3f} | {found[1]:.3f} |", flush=True)
