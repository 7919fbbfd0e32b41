"""PyTorch: eager, and torch.compile where it helps."""


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


def window_inputs(s):
    """Keys and values in a ring, the window's queries, per KV head."""
    heads, rows, dim, tokens = s["kv_heads"], s["q_heads"] // s["kv_heads"] * s["window"], s["head_dim"], s["tokens"] * s["batch"]
    dtype = DTYPES[s["dtype"]]
    count = ring(heads * tokens * dim * 4, most=4)
    sets = [(torch.randn(heads, tokens, dim, device="cuda", dtype=dtype), torch.randn(heads, tokens, dim, device="cuda", dtype=dtype))
            for _ in range(count)]
    return sets, torch.randn(heads, rows, dim, device="cuda", dtype=dtype), dtype


def expanded(p, a, v, dtype):
    """The rule's score from p [head, row, token] and outputs a [head, row, dim], with the expanded distance."""
    distance = (a * a).sum(-1, keepdim=True) + (v.float() ** 2).sum(-1)[:, None] - 2 * torch.bmm(a.to(dtype), v.transpose(1, 2)).float()
    return ((p / (1 - p + 1e-6)) ** 2 * distance.clamp_min(0)).sum(1)


def drop_score_torch(s):
    """Scores from given log-sum-exps and outputs: compiled, with the expanded distance, and as the paper's code has it, with the differences
    of all outputs and values in memory (w x n x d of a query head at a time)."""
    sets, q, dtype = window_inputs(s)
    heads, rows, dim = q.shape
    group, w = s["q_heads"] // heads, s["window"]
    a = torch.randn(heads, rows, dim, device="cuda") * 0.1
    lse = torch.full((heads, rows, 1), 12.0, device="cuda")

    @torch.compile(dynamic=False)
    def score(k, v):
        return expanded(torch.exp(torch.bmm(q, k.transpose(1, 2)).float() * dim**-0.5 - lse), a, v, dtype)

    def materialised(k, v):
        out = []
        for h in range(heads):
            total = torch.zeros(k.shape[1], device="cuda")
            for g in range(group):
                r = slice(g * w, (g + 1) * w)
                p = torch.exp((q[h, r] @ k[h].T).float() * dim**-0.5 - lse[h, r])
                gap = (a[h, r].to(dtype)[:, None] - v[h][None]).float()  # [w, n, d]
                total += ((p / (1 - p + 1e-6)) ** 2 * (gap * gap).sum(-1)).sum(0)
            out.append(total)
        return torch.stack(out)

    return {"torch.compile": graph_us([lambda x=x: score(*x) for x in sets]),
            "torch (materialised)": graph_us([lambda x=x: materialised(*x) for x in sets])}


def drop_observe_score_torch(s, select=False):
    """Logits, log-sum-exp, outputs and scores, compiled; with select also max pooling and topk. The window's own causal corner is left out,
    which is kind."""
    sets, q, dtype = window_inputs(s)
    dim = q.shape[2]
    width = int(s["pool"].split()[1]) if select else 1

    @torch.compile(dynamic=False)
    def score(k, v):
        logits = torch.bmm(q, k.transpose(1, 2)).float() * dim**-0.5
        p = torch.softmax(logits, dim=-1)
        x = expanded(p, torch.bmm(p.to(dtype), v).float(), v, dtype)
        if select:
            x = torch.nn.functional.max_pool1d(x[:, None], width, 1, width // 2)[:, 0]
        return x

    def call(k, v):
        x = score(k, v)
        return x.topk(s["kept"], dim=-1).indices.sort(dim=-1).values if select else x

    return {"torch.compile": graph_us([lambda x=x: call(*x) for x in sets])}


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


serve({"torch": {
    "page_score": score_torch, "page_select": select_torch, "page_attend": attend_torch, "dense": dense_torch, "page_summary": summary_torch,
    "drop_score": drop_score_torch, "drop_observe_score": drop_observe_score_torch,
    "drop_chain": lambda s: drop_observe_score_torch(s, select=True), "drop_compact": drop_compact_torch}})
