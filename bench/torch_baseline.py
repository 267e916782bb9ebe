#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What one would write with torch to send only what changed, timed: the sizes and densities of cuda_bench.

Rows, each the median of --repeat rounds after --warm-up:
  copy      tensor.copy_ of the whole array, read and written
  encode    old != new (as integers), nonzero, gather of the new values, index_copy_ into the snapshot
  apply     index_copy_ of the values into the live weights
  nan       a full array with NaN where nothing changed (torch.where), made by the sender
  nan apply live weights from it where it is not NaN
Nothing is coded: positions are int64 and values whole elements, so the bytes on the wire are more as well.

Weights are random integers without NaN patterns; a uniform draw decides which elements change, all by one ulp.
  bench/torch_baseline.py --gib 4 --percent 0.1,1,20 --dtypes BF16,F8_E4M3,F32 --json torch.json
  bench/torch_baseline.py --device cpu --gib 0.01       # works without a device; its times mean nothing
"""

import argparse
import json
import statistics
import sys
import time

try:
    import torch
except ImportError:
    sys.exit("torch_baseline.py: torch is not installed")

# Elements are compared and moved as integers: a float compare misses -0 and sends NaN for ever.
INTEGERS = {"BF16": torch.int16, "F8_E4M3": torch.uint8, "F32": torch.int32}
# torch.nonzero takes no more elements than an int counts.
SLAB = 1 << 30


def numbers(text):
    return [float(part) for part in text.split(",")]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--gib", type=numbers, default=[4.0], help="sizes of an array, comma-separated")
    parser.add_argument("--percent", type=numbers, default=[0.1, 0.3, 1, 2, 5, 20])
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=list(INTEGERS))
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", help="file for the results")
    arguments = parser.parse_args()
    for dtype in arguments.dtypes:
        if dtype not in INTEGERS:
            parser.error(f"no such dtype: {dtype}; {', '.join(INTEGERS)}")
    return arguments


class Timer:
    """Median milliseconds of work on the device; `prepare` is not timed."""

    def __init__(self, arguments):
        self.cuda = arguments.device.startswith("cuda")
        self.warm_up = arguments.warm_up
        self.repeat = arguments.repeat

    def __call__(self, work, prepare=None):
        times = []
        for i in range(-self.warm_up, self.repeat):
            if prepare:
                prepare()
            if self.cuda:
                torch.cuda.synchronize()
                begin = torch.cuda.Event(enable_timing=True)
                end = torch.cuda.Event(enable_timing=True)
                begin.record()
                work()
                end.record()
                end.synchronize()
                elapsed = begin.elapsed_time(end)
            else:
                start = time.perf_counter()
                work()
                elapsed = (time.perf_counter() - start) * 1e3
            if i >= 0:
                times.append(elapsed)
        return statistics.median(times)


def make_weights(dtype, gib, percent, device):
    """Old and new bits as one array each; every mantissa is even before, so that one ulp up changes its lowest bit."""
    integer = INTEGERS[dtype]
    size = torch.empty((), dtype=integer).element_size()
    elements = int(gib * 2**30) // size
    old = torch.empty(elements, dtype=integer, device=device)
    generator = torch.Generator(device=device).manual_seed(1)
    new = torch.empty_like(old)
    for begin in range(0, elements, SLAB // 8):
        part = slice(begin, min(begin + SLAB // 8, elements))
        count = part.stop - part.start
        # Below 0x70 in the highest byte: no NaN and no infinity in any of the formats.
        old[part].random_(0, 0x70 << (8 * (size - 1)), generator=generator)
        old[part] &= ~1 if integer != torch.uint8 else 0xFE
        chosen = torch.rand(count, device=device, generator=generator) < percent / 100
        new[part] = old[part] + chosen.to(integer)
    return old, new


def slabs(elements):
    return [slice(begin, min(begin + SLAB, elements)) for begin in range(0, elements, SLAB)]


def detect(old, new, refresh):
    found = []
    for part in slabs(old.numel()):
        positions = (old[part] != new[part]).nonzero().squeeze(1)
        values = new[part][positions]
        if refresh:
            old[part].index_copy_(0, positions, values)
        found.append((part, positions, values))
    return found


def apply(live, found):
    for part, positions, values in found:
        live[part].index_copy_(0, positions, values)


def measure(dtype, gib, percent, arguments, timer):
    old, new = make_weights(dtype, gib, percent, arguments.device)
    bytes_each = old.numel() * old.element_size()
    live = torch.empty_like(old)
    rows = []

    def row(phase, milliseconds, **more):
        rows.append(
            {
                "phase": phase,
                "what": f"{dtype} {gib:g} GiB",
                "percent": percent,
                "bytes": bytes_each,
                "device_ms": milliseconds,
                **more,
            }
        )
        print(f"{phase:<10} {rows[-1]['what']:<18} {percent:>5g} %  {milliseconds:10.4f} ms", flush=True)

    def check(holds, what):
        if not holds:
            raise SystemExit(f"torch_baseline.py: {what} is wrong for {dtype} at {percent} %")

    copied = timer(lambda: live.copy_(new))
    row("copy", copied, gb_per_s=2 * bytes_each / copied * 1e-6)

    found = detect(old, new, refresh=False)
    changed = sum(positions.numel() for _, positions, _ in found)
    row("apply", timer(lambda: apply(live, found), lambda: live.copy_(old)), changed=changed)
    check(torch.equal(live, new), "apply")

    if dtype == "BF16":
        wanted = new.view(torch.bfloat16)
        full = torch.empty_like(wanted)
        nan = torch.tensor(float("nan"), dtype=torch.bfloat16, device=old.device)
        live.copy_(old)

        def spread():
            for part in slabs(old.numel()):
                torch.where(live[part] != new[part], wanted[part], nan, out=full[part])

        row("nan", timer(spread))
        target = live.view(torch.bfloat16)

        def apply_nan():
            for part in slabs(old.numel()):
                torch.where(torch.isnan(full[part]), target[part], full[part], out=target[part])

        row("nan apply", timer(apply_nan, lambda: live.copy_(old)))
        check(torch.equal(live, new), "nan apply")
        del full

    live.copy_(old)
    row("encode", timer(lambda: detect(old, new, refresh=True), lambda: old.copy_(live)), changed=changed)
    check(torch.equal(old, new), "encode")
    return rows


def main():
    arguments = parse_arguments()
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("torch_baseline.py: no device; --device cpu tries the script without one")
    timer = Timer(arguments)
    result = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "repeat": arguments.repeat,
        "device": torch.cuda.get_device_name() if timer.cuda else "cpu",
        "rows": [],
    }
    for gib in arguments.gib:
        for dtype in arguments.dtypes:
            for percent in arguments.percent:
                result["rows"] += measure(dtype, gib, percent, arguments, timer)
                # After each, so that a failure of a later one, for want of memory say, loses nothing.
                if arguments.json:
                    with open(arguments.json, "w", encoding="utf-8") as file:
                        json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
