"""What every peer is timed with. Each peers_*.py runs behind this file, in one process.

Reads one JSON list of lines on standard input: {"family", "shape"} as in docs/benchmarks/results.jsonl. Writes one JSON object a line:
{"index", "peers": {name: microseconds}, "left_out": {name: reason}}. Every time is the median over CUDA graph replays of a ring of
inputs larger than twice the L2, or of one set of inputs where the line is warm; what cannot be captured is timed with events around the
call, and its name says so.
"""
import json
import statistics
import sys

import torch

FLUSH = 2.2 * 60 * 2**20  # bytes of inputs in the ring: more than twice an H200's L2
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
WARM = False  # of the line that is being timed


def ring(bytes_of_one, most=24):
    """How many input sets keep the L2 cold."""
    return 1 if WARM else int(min(max(-(-FLUSH // max(bytes_of_one, 1)), 2), most))


def graph_us(calls, target_us=3000.0, samples=15):
    """Median microseconds of one call, from replays of a graph that runs all calls in turn, short ones several times, so that the start of a
    replay does not show."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
            call()
    stream.synchronize()
    if event_us(calls[0]) < 500.0:
        calls = calls * -(-16 // len(calls))
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


def serve(tables):
    """Times each line with every peer of tables, {peer: {family: function of the shape}}. Lines that differ in what no peer knows of, how our
    cache lies and how exact our scores are, are timed once."""
    global WARM
    timed = {}
    for index, job in enumerate(json.load(sys.stdin)):
        peers, left_out = {}, {}
        WARM = job["shape"]["l2"] == "warm"
        for name, table in tables.items():
            if job["family"] not in table:
                continue
            ours = {"layout", "precision"} if job["family"].startswith("drop_") else set()
            key = (name, job["family"], json.dumps({k: v for k, v in job["shape"].items() if k not in ours}, sort_keys=True))
            try:
                if key not in timed:
                    timed[key] = table[job["family"]](job["shape"])
                peers.update(timed[key])
            except Exception as e:  # a peer that cannot do a shape is a result, not a failure
                left_out[name] = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:200]
            torch.cuda.empty_cache()
        print(json.dumps({"index": index, "peers": peers, "left_out": left_out}), flush=True)
