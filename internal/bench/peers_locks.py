"""locks-kv 0.1.3, the paper's own package, by the functions that its vLLM backend calls, without vLLM: rki4_score_only, rki4_select_only,
sparse_paged_decode_batched_cuda and rki4_build_bulk on a Rki4State.

Its kernels are built with the flags of its fastest path (records in one piece, tensor cores for groups of 4 and 8), which is twice as fast as
what is built without them. Rank and flags are read when it is imported, so a process serves one rank; kvloom sets LOCKS_RKI4_RANK. It builds
with nvcc at first use, a minute or two. It takes groups up to 8, and selects by peak-normalised masses only.
"""
import os
import types

RANK = int(os.environ["LOCKS_RKI4_RANK"])
for flag in ("RKI4_MMA", "RKI4_MMA_AOS", "RKI4_MMA_ALLG"):
    os.environ.setdefault(flag, "1")
os.environ.setdefault("LOCKS_RKI4_MUC", "0")  # excluded by RKI4_MMA_ALLG

import importlib.util  # noqa: E402

import locks  # noqa: E402

if importlib.util.find_spec("vllm") is None:
    # The package's backend imports vLLM when it is entered, and the kernels ask one of its modules for compiler flags: enter it beside its door.
    backend = types.ModuleType("locks.backend")
    backend.__path__ = [os.path.join(os.path.dirname(locks.__file__), "backend")]
    import sys as _sys

    _sys.modules["locks.backend"] = backend

from locks.attention.decode import ResidentVSource, ensure_stage_b_buffers  # noqa: E402
from locks.attention.decode_cuda import sparse_paged_decode_batched_cuda  # noqa: E402
from locks.selection import Rki4State, derive_page_params, rki4_build_bulk  # noqa: E402
from locks.selection.rki4_score_cuda import rki4_score_only, rki4_select_only  # noqa: E402

SPLITS = 128  # what the package's metadata builder hands over; it takes fewer for small batches


class Problem:
    """One shape: a state with as many layers as keep the L2 cold, random summaries, a shuffled block table."""

    def __init__(self, s, layers, cache=False):
        if s.get("rank", RANK) != RANK:
            raise ValueError(f"this process serves rank {RANK}")
        self.heads, self.dim, self.page, self.batch = s["kv_heads"], s.get("head_dim", 128), s["page"], s["batch"]
        self.group = s["q_heads"] // self.heads if "q_heads" in s else 1
        self.pages = s["tokens"] // self.page
        budget = s.get("budget", 2048) // self.page
        self.state = st = Rki4State("cuda", num_layers=layers, num_blocks=self.pages * self.batch, n_kv=self.heads, G=self.group, head_dim=self.dim,
                                    page=self.page, max_reqs=self.batch, max_pages=self.pages, budget_pages=budget - 2, combine="nrm")
        self.layers, self.scale = layers, self.dim**-0.5
        if st.pp_rec is not None:
            st.pp_rec.random_(0, 256)
        for name, most in (("pp_vs", 0.04), ("pp_cs", 0.02), ("pp_mus", 0.015)):
            for layer in getattr(st, name):  # strided views of the records
                layer.copy_(torch.rand(layer.shape, device="cuda") * most)
        self.q = torch.randn(self.batch, self.heads * self.group, self.dim, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty_like(self.q)
        self.lens = torch.full((self.batch,), s["tokens"], dtype=torch.int32, device="cuda")
        blocks = torch.randperm(self.pages * self.batch, device="cuda", dtype=torch.int32)
        self.table = blocks.reshape(self.batch, self.pages).contiguous()
        derive_page_params(st, self.lens, self.batch)
        if cache:
            self.kv = torch.randn(2, self.pages * self.batch, self.page, self.heads, self.dim, device="cuda", dtype=torch.bfloat16)
            self.values = ResidentVSource(self.kv)
            ensure_stage_b_buffers(st, "cuda", SPLITS)

    def score(self, i):
        rki4_score_only(self.state, i, self.q, self.table, self.lens, self.batch, self.scale)

    def select(self):
        rki4_select_only(self.state, self.batch)

    def attend(self):
        sparse_paged_decode_batched_cuda(self.q, self.kv, self.table, self.lens, self.state, self.out, self.values, scale=self.scale)


def summary_bytes(s):
    return s["tokens"] // s["page"] * s["batch"] * s["kv_heads"] * (5 * 128 if RANK > 4 else 496)


def score_locks(s):
    p = Problem(s, ring(summary_bytes(s)))
    return {"locks-kv": graph_us([lambda i=i: p.score(i) for i in range(p.layers)])}


def select_locks(s):
    """By peak-normalised masses, whatever the line's rule."""
    p = Problem(s, 1)
    scores = [torch.randn_like(p.state.score_h) * 3 for _ in range(ring(p.state.score_h.numel() * 4, most=64))]

    def select(x):
        p.state.score_h = x
        p.select()

    return {"locks-kv (peak-normalised)": graph_us([lambda x=x: select(x) for x in scores])}


def attend_locks(s):
    p = Problem(s, 1, cache=True)
    st, k = p.state, s["budget"] // s["page"]
    count = ring(p.batch * p.heads * k * p.page * p.dim * 4, most=32)
    tables = []
    for _ in range(count):
        t = torch.zeros_like(st.page_table)
        t[..., :k] = torch.rand(p.batch, p.heads, p.pages, device="cuda").topk(k, dim=-1).indices.sort(dim=-1).values.int()
        tables.append(t)
    st.page_cnt.fill_(k)

    def attend(t):
        st.page_table = t
        p.attend()

    return {"locks-kv": graph_us([lambda t=t: attend(t) for t in tables])}


def chain_locks(s):
    p = Problem(s, max(ring(summary_bytes(s)), ring(s["batch"] * s["kv_heads"] * s["budget"] * 512)), cache=True)

    def layer(i):
        p.score(i)
        p.select()
        p.attend()

    return {"locks-kv (peak-normalised)": graph_us([lambda i=i: layer(i) for i in range(p.layers)])}


def summary_locks(s):
    p = Problem(s, 1)
    keys = torch.randn(p.pages * p.batch, p.page, p.heads, p.dim, device="cuda", dtype=torch.bfloat16)

    def build():
        rki4_build_bulk(p.state, [keys], p.table, p.lens, p.batch, p.pages)

    build()
    return {"locks-kv (eager, events)": statistics.median(event_us(build) for _ in range(3))}


serve({"locks-kv": {"page_summary": summary_locks, "page_score": score_locks, "page_select": select_locks, "page_attend": attend_locks,
                    "chain": chain_locks}})
