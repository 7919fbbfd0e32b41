"""Times what a user would otherwise run, on the same card: PyTorch (torch.compile where it helps) and FlashInfer.

Reads one JSON list of jobs on standard input: {"family", "shape"} as in docs/benchmarks/results.jsonl. Writes one JSON line a job:
{"index", "peers": {name: microseconds}, "left_out": {name: reason}}. Every time is the median over CUDA graph replays of a ring of
inputs larger than twice the L2; what cannot be captured is timed with events around the call, and its name says so.
"""
import json
import statistics
import sys

import torch

FLUSH = 2.2 * 60 * 2**20  # bytes of inputs in the ring: more than twice an H200's L2
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def ring(bytes_of_one, most=24):
    """How many input sets keep the L2 cold."""
    return int(min(max(-(-FLUSH // max(bytes_of_one, 1)), 2), most))


def graph_us(calls, target_us=3000.0, samples=15):
    """Median microseconds of one call, from replays of a graph that runs all calls in turn."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    graph.replay()
    torch.cuda.synchronize()
    repeat = 1
    first = event_us(graph.replay)
    if first < target_us:
        repeat = int(min(-(-target_us // first), 20))

    def many():
        for _ in range(repeat):
            graph.replay()

    times = [event_us(many) / (repeat * len(calls)) for _ in range(samples)]
    return statistics.median(times)


def event_us(call):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1000.0


def score_torch(s):
    """Equation 2 on summaries already unpacked to int8 (kinder to torch than nibbles), compiled."""
    heads, group, dim, rank, page = s["kv_heads"], s["q_heads"] // s["kv_heads"], s["head_dim"], s["rank"], s["page"]
    pages = s["tokens"] // page * s["batch"]
    count = ring(pages * heads * (dim * (rank + 1) + page * (rank + 2)))
    sets = []
    for _ in range(count):
        sets.append((
            torch.randint(-7, 8, (heads, pages, rank, dim), dtype=torch.int8, device="cuda"),
            torch.randint(-127, 128, (heads, pages, dim), dtype=torch.int8, device="cuda"),
            torch.randint(-127, 128, (heads, pages, page, rank), dtype=torch.int8, device="cuda"),
            torch.rand(heads, pages, rank, device="cuda").bfloat16() * 0.01,
            torch.rand(heads, pages, 1, device="cuda").bfloat16() * 0.01,
            torch.rand(heads, pages, page, device="cuda").bfloat16() * 0.01,
        ))
    q = torch.randn(heads, group, dim, device="cuda", dtype=torch.bfloat16)

    @torch.compile(dynamic=False)
    def score(v, mu, c, vs, ms, cs):
        scale = dim**-0.5
        base = torch.einsum("hpd,hgd->hpg", mu.bfloat16(), q).float() * ms.float() * scale
        t = torch.einsum("hprd,hgd->hprg", v.bfloat16(), q).float() * vs.float()[..., None] * scale
        logits = torch.einsum("hptr,hprg->hptg", c.bfloat16(), t.bfloat16()).float() * cs.float()[..., None]
        return base + torch.logsumexp(logits, dim=2)

    return {"torch.compile": graph_us([lambda a=a: score(*a) for a in sets])}


def select_torch(s):
    """softmax over pages, mean over the group, topk, sort."""
    heads, group = s["kv_heads"], s["q_heads"] // s["kv_heads"]
    pages, k = s["tokens"] // s["page"], s["budget"] // s["page"]
    batch = s["batch"]
    count = ring(batch * heads * group * pages * 4, most=64)
    sets = [torch.randn(batch, heads, group, pages, device="cuda") * 3 for _ in range(count)]

    def select(x):
        share = torch.softmax(x, dim=-1).mean(dim=2)
        share[..., 0] = 2.0
        share[..., -1] = 2.0
        return torch.topk(share, min(k, pages), dim=-1).indices.sort(dim=-1).values

    compiled = torch.compile(select, dynamic=False)
    return {"torch": graph_us([lambda a=a: select(a) for a in sets]), "torch.compile": graph_us([lambda a=a: compiled(a) for a in sets])}


def best_sdpa(sets):
    """Median microseconds of the fastest SDPA backend that takes these (q, k, v) makers: torch's own choice is not always it."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    times = []
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        def call(make, backend=backend):
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(*make())
        try:
            times.append(graph_us([lambda m=m: call(m) for m in sets]))
        except Exception:  # a backend that refuses the shape
            torch.cuda.synchronize()
    return min(times)


def attend_torch(s):
    """Gather the chosen pages, then SDPA with the group packed as queries."""
    heads, group, dim, page = s["kv_heads"], s["q_heads"] // s["kv_heads"], s["head_dim"], s["page"]
    pages, k, batch = s["tokens"] // s["page"], s["budget"] // s["page"], s["batch"]
    dtype = DTYPES[s["dtype"]]
    key = torch.randn(batch, heads, pages, page, dim, device="cuda", dtype=dtype)
    value = torch.randn_like(key)
    q = torch.randn(batch, heads, group, dim, device="cuda", dtype=dtype)
    count = ring(batch * heads * k * page * dim * 4, most=32)
    lists = [torch.rand(batch, heads, pages, device="cuda").topk(min(k, pages), dim=-1).indices.sort(dim=-1).values for _ in range(count)]

    def gathered(index):
        i = index[..., None, None].expand(-1, -1, -1, page, dim)
        return q, torch.gather(key, 2, i).reshape(batch, heads, -1, dim), torch.gather(value, 2, i).reshape(batch, heads, -1, dim)

    return {"torch": best_sdpa([lambda a=a: gathered(a) for a in lists])}


def dense_torch(s):
    """SDPA over the whole contiguous cache, group packed as queries."""
    heads, group, dim, batch = s["kv_heads"], s["q_heads"] // s["kv_heads"], s["head_dim"], s["batch"]
    dtype = DTYPES[s["dtype"]]
    key = torch.randn(batch, heads, s["tokens"], dim, device="cuda", dtype=dtype)
    value = torch.randn_like(key)
    q = torch.randn(batch, heads, group, dim, device="cuda", dtype=dtype)
    return {"torch": best_sdpa([lambda: (q, key, value)] * 2)}


def summary_torch(s):
    """Centre, Gram matrix, batched eigh, project, quantise. eigh synchronises, so it is timed with events; its batches are bounded, for
    cuSOLVER refuses 65,536 matrices at once."""
    heads, dim, page, rank = s["kv_heads"], s["head_dim"], s["page"], s["rank"]
    pages = s["tokens"] // page * s["batch"]
    key = torch.randn(heads * pages, page, dim, device="cuda", dtype=DTYPES[s["dtype"]])

    def build():
        x = key.float()
        mu = x.mean(1, keepdim=True)
        d = x - mu
        parts = [torch.linalg.eigh(g) for g in (d @ d.transpose(1, 2)).split(8192)]
        w, u = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
        u = u[..., -rank:]
        v = d.transpose(1, 2) @ u * torch.rsqrt(w[:, None, -rank:].clamp_min(1e-20))
        c = d @ v
        out = []
        for t, axis, top in ((mu, 2, 127), (v, 1, 7), (c, 2, 127)):
            scale = t.abs().amax(axis, keepdim=True) / top
            out.append((t / scale.clamp_min(1e-30)).round().clamp(-top, top).to(torch.int8))
        return out

    build()
    return {"torch (eager, events)": statistics.median(event_us(build) for _ in range(3))}


def flashinfer_decode(s, tokens):
    """FlashInfer's paged decode over a shuffled page table of that many tokens."""
    import flashinfer

    heads, dim, page, batch = s["kv_heads"], s["head_dim"], s["page"], s["batch"]
    dtype = DTYPES[s["dtype"]]
    each = -(-tokens // page)
    count = ring(batch * heads * each * page * dim * 4, most=16)
    pool = torch.randn(max(each * batch * count, 1), 2, page, heads, dim, device="cuda", dtype=dtype)
    q = torch.randn(batch, s["q_heads"], dim, device="cuda", dtype=dtype)
    order = torch.randperm(pool.shape[0], device="cuda", dtype=torch.int32)
    calls = []
    for i in range(count):
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            torch.empty(128 << 20, dtype=torch.uint8, device="cuda"), "NHD", use_tensor_cores=True)
        indptr = torch.arange(batch + 1, dtype=torch.int32) * each
        last = torch.full((batch,), (tokens - 1) % page + 1, dtype=torch.int32)
        wrapper.plan(indptr, order[i * each * batch:(i + 1) * each * batch], last, s["q_heads"], heads, dim, page,
                     q_data_type=dtype, kv_data_type=dtype)
        calls.append(lambda w=wrapper: w.run(q, pool))
    return {"flashinfer": graph_us(calls)}


def drop_score_torch(s):
    """The DropKV score from given log-sum-exps and outputs, with the expanded distance: three matrix products a head, compiled."""
    heads, rows, dim, tokens = s["kv_heads"], s["q_heads"] // s["kv_heads"] * s["window"], s["head_dim"], s["tokens"] * s["batch"]
    dtype = DTYPES[s["dtype"]]
    count = ring(heads * tokens * dim * 4, most=4)
    sets = [(torch.randn(heads, tokens, dim, device="cuda", dtype=dtype), torch.randn(heads, tokens, dim, device="cuda", dtype=dtype))
            for _ in range(count)]
    q = torch.randn(heads, rows, dim, device="cuda", dtype=dtype)
    a = torch.randn(heads, rows, dim, device="cuda") * 0.1
    lse = torch.full((heads, rows, 1), 12.0, device="cuda")

    @torch.compile(dynamic=False)
    def score(k, v):
        p = torch.exp(torch.bmm(q, k.transpose(1, 2)).float() * dim**-0.5 - lse)
        distance = (a * a).sum(-1, keepdim=True) + (v.float() ** 2).sum(-1)[:, None] - 2 * torch.bmm(a.to(dtype), v.transpose(1, 2)).float()
        return ((p / (1 - p + 1e-6)) ** 2 * distance.clamp_min(0)).sum(1)

    return {"torch.compile": graph_us([lambda x=x: score(*x) for x in sets])}


def drop_compact_torch(s):
    """torch.gather of keys and values."""
    heads, dim, tokens, kept, batch = s["kv_heads"], s["head_dim"], s["tokens"], s["kept"], s["batch"]
    dtype = DTYPES[s["dtype"]]
    key = torch.randn(batch, heads, tokens, dim, device="cuda", dtype=dtype)
    value = torch.randn_like(key)
    count = ring(batch * heads * kept * dim * 8, most=16)
    lists = [torch.rand(batch, heads, tokens, device="cuda").topk(kept, dim=-1).indices.sort(dim=-1).values for _ in range(count)]

    def gather(index):
        i = index[..., None].expand(-1, -1, -1, dim)
        return torch.gather(key, 2, i), torch.gather(value, 2, i)

    return {"torch": graph_us([lambda x=x: gather(x) for x in lists])}


TORCH = {"page_score": score_torch, "page_select": select_torch, "page_attend": attend_torch, "dense": dense_torch,
         "page_summary": summary_torch, "drop_score": drop_score_torch, "drop_compact": drop_compact_torch}
FLASHINFER = {"page_attend": lambda s: flashinfer_decode(s, s["budget"]), "dense": lambda s: flashinfer_decode(s, s["tokens"])}


def main():
    against = sys.argv[1].split(",")
    for index, job in enumerate(json.load(sys.stdin)):
        peers, left_out = {}, {}
        for name, table in (("torch", TORCH), ("flashinfer", FLASHINFER)):
            if name not in against or job["family"] not in table:
                continue
            try:
                peers.update(table[job["family"]](job["shape"]))
            except Exception as e:  # a peer that cannot do a shape is a result, not a failure
                left_out[name] = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:200]
            torch.cuda.empty_cache()
        print(json.dumps({"index": index, "peers": peers, "left_out": left_out}), flush=True)


if __name__ == "__main__":
    main()
