"""FlashInfer's paged decode, with its tensor cores."""
import flashinfer


def flashinfer_decode(s, tokens):
    """FlashInfer's paged decode over a shuffled page table of that many tokens."""
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


serve({"flashinfer": {"page_attend": lambda s: flashinfer_decode(s, s["budget"]), "dense": lambda s: flashinfer_decode(s, s["tokens"])}})
