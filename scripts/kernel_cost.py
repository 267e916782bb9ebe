#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the compiled kernels take: for each kernel of the object files the registers, the shared and the local memory, the
instructions, the barriers of a CTA, and the loads and stores of local memory (spills), from their machine code.

    scripts/kernel_cost.py build/release/cuda/CMakeFiles/sparsecast_cuda.dir/*/*.cu.o
    scripts/kernel_cost.py --compare bench/results/kernel-cost-sm_90.json OBJECT...   exit code 1 when a kernel grew
    scripts/kernel_cost.py --record bench/results/kernel-cost-sm_90.json OBJECT...    after a change that is meant

Instructions are those of the code, not those that run: loops count once. With --run the machine code of detect,
form_blocks, encode_blocks, decode_blocks and decode_context runs as well, on the host, on random changes of bf16
weights (scripts/sass): the results are checked, and the instructions that warps issued are printed, a tile of detect, a
section of form_blocks, a block of the others. Code that ran for the record of --compare does not run again: it would do
the same. That needs numpy and a C++ compiler ($CXX, c++). All needs cuobjdump and nvdisasm of the CUDA
toolkit, or of the wheels nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm in the environment of the Python that runs this;
exit code 77 without them, and where the record is of another compiler."""

import argparse
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

SKIPPED = 77
FIELDS = ("registers", "shared_bytes", "local_bytes", "instructions", "barriers", "spills")
FUNCTION = re.compile(r"^\s*Function\s*:?\s*(\S+?):?\s*$")
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)((?:\.\w+)*)")
USAGE = re.compile(r"\b(REG|SHARED|STACK|LOCAL):(\d+)")


def find_program(name):
    """Returns the path of a program of the CUDA toolkit, or None."""
    wheel = pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia/cu13/bin" / name
    if wheel.is_file():
        wheel.chmod(wheel.stat().st_mode | 0o111)  # pip keeps no mode.
        return str(wheel)
    return shutil.which(name)


def parse_sass(text):
    """Returns {mangled name: {"instructions", "barriers", "spills"}} from the output of cuobjdump -sass."""
    kernels = {}
    current = None
    for line in text.splitlines():
        if match := FUNCTION.match(line):
            current = kernels.setdefault(match[1], {"instructions": 0, "barriers": 0, "spills": 0})
            continue
        match = INSTRUCTION.match(line)
        if current is None or not match or match[1] == "NOP":  # NOPs fill up the last lines of the code.
            continue
        current["instructions"] += 1
        if match[1] == "BAR":
            current["barriers"] += 1
        if match[1] in ("LDL", "STL"):
            current["spills"] += 1
    return kernels


def parse_usage(text):
    """Returns {mangled name: {"registers", "shared_bytes", "local_bytes"}} from the output of cuobjdump -res-usage."""
    kernels = {}
    current = None
    for line in text.splitlines():
        if match := FUNCTION.match(line):
            current = match[1]
            continue
        values = {name: int(value) for name, value in USAGE.findall(line)}
        if current is None or "REG" not in values:
            continue
        kernels[current] = {
            "registers": values["REG"],
            "shared_bytes": values.get("SHARED", 0),
            "local_bytes": values.get("STACK", 0) + values.get("LOCAL", 0),
        }
        current = None
    return kernels


def shorten(name):
    """Returns a demangled kernel without its namespaces and parameters."""
    name = name.removeprefix("void ").replace("sparsecast::cuda::", "").replace("sparsecast::", "")
    name = name.replace("(anonymous namespace)::", "")
    depth = 0
    for i, character in enumerate(name):
        if character == "(" and depth == 0 and i > 0:
            return name[:i]
        depth += {"<": 1, ">": -1}.get(character, 0)
    return name


def demangle(names):
    """Returns {mangled name: short name}; names stay mangled where c++filt is missing."""
    program = shutil.which("c++filt")
    if program is None or not names:
        return {name: name for name in names}
    lines = subprocess.run([program, *names], capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: shorten(line) for name, line in zip(names, lines, strict=True)}


@functools.cache
def dump(cuobjdump, arch, what, path):
    """Returns what cuobjdump prints of an object file."""
    command = [cuobjdump, "-arch", arch, what, path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def measure(cuobjdump, arch, objects):
    """Returns {short name: {field: value}} of all kernels of the objects for one architecture."""
    kernels = {}
    for path in objects:
        code = parse_sass(dump(cuobjdump, arch, "-sass", path))
        for name, usage in parse_usage(dump(cuobjdump, arch, "-res-usage", path)).items():
            if name not in code:
                raise SystemExit(f"kernel_cost: {path}: {name} has no machine code for {arch}")
            kernels[name] = {**usage, **code[name]}
    short = demangle(sorted(kernels))
    costs = {short[name]: {field: kernel[field] for field in FIELDS} for name, kernel in kernels.items()}
    if len(costs) != len(kernels):
        raise SystemExit("kernel_cost: two kernels have one name")
    return dict(sorted(costs.items()))


def differences(before, now, growth):
    """Returns sentences on kernels that take more than `growth` percent more of something, or came, or went."""
    said = []
    for name in sorted(before.keys() - now.keys()):
        said.append(f"{name}: it is in the record alone")
    for name in sorted(now.keys() - before.keys()):
        said.append(f"{name}: it is not in the record")
    for name in sorted(before.keys() & now.keys()):
        for field in FIELDS:
            old, new = before[name][field], now[name][field]
            if new > old * (1 + growth / 100):
                said.append(f"{name}: {new} {field.replace('_', ' ')}, {old} in the record")
    return said


def differences_executed(before, now, growth):
    """Returns sentences on kernels whose warps issue more instructions, or wait at more barriers, than in the record."""
    said = [f"{name}: it is in the record alone" for name in sorted(before.keys() - now.keys())]
    said += [f"{name}: it is not in the record" for name in sorted(now.keys() - before.keys())]
    for name in sorted(before.keys() & now.keys()):
        for field in ("warp_instructions", "barriers"):
            old, new = before[name][field], now[name][field]
            if new > old * (1 + growth / 100):
                said.append(f"{name}: {new} {field.replace('_', ' ')} a unit, {old} in the record")
    return said


def fingerprint(kernels):
    """Returns a hash of the machine code of {short name: instructions} and of the programs that run it."""
    found = hashlib.sha256()
    for path in sorted((pathlib.Path(__file__).parent / "sass").glob("*.*")):
        found.update(path.read_bytes())
    for name, instructions in sorted(kernels.items()):
        found.update(name.encode())
        for instruction in instructions:
            found.update(f"{instruction.address:x} {instruction.text}\n".encode())
    return found.hexdigest()


def execute(cuobjdump, arch, objects, ran=None):
    """Runs the kernels of a delta, unless their fingerprint is `ran`. Returns what a unit of each took and the
    fingerprint; the first is None where it did not run, both are where numpy or a C++ compiler is missing.
    """
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    try:
        from sass import context, kernels, listing, machine
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        return None, None
    if compiler is None:
        return None, None
    code = {}
    for path in objects:
        code.update(listing.parse(dump(cuobjdump, arch, "-sass", path)))
    short = demangle(sorted(code))
    named = {short[name]: lines for name, lines in code.items()}
    now = fingerprint(named)
    if now == ran:
        print("kernel_cost: not run again: it is the machine code that ran for the record")
        return None, now
    try:
        costs = kernels.run(named, compiler) | context.run(named, compiler)
    except (kernels.WrongResult, machine.MachineError) as error:
        raise SystemExit(f"kernel_cost: {error}") from error
    print(f"{'executed':34} {'warp instructions':>18} {'barriers':>9} {'lanes':>6}   a unit")
    for name, cost in costs.items():
        print(f"{name:34} {cost['warp_instructions']:18} {cost['barriers']:9} {cost['lanes']:6}")
    return costs, now


def compiler_of(nvcc):
    if shutil.which(nvcc) is None:
        return ""
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"\bV(\d+\.\d+\.\d+)", text)
    return match[1] if match else ""


def print_table(costs):
    width = max(map(len, costs), default=6)
    print(" ".join([f"{'kernel':{width}}", *(f"{field.replace('_bytes', ''):>12}" for field in FIELDS)]))
    for name, kernel in costs.items():
        print(" ".join([f"{name:{width}}", *(f"{kernel[field]:12}" for field in FIELDS)]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "objects", nargs="+", metavar="OBJECT", help="object files; those that are not of a .cu are left out"
    )
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--compare", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--growth", type=float, default=5, metavar="PERCENT", help="what --compare allows (5)")
    parser.add_argument("--run", action="store_true", help="runs the kernels of a delta, and counts")
    parser.add_argument("--nvcc", default=os.environ.get("CUDACXX", "nvcc"), help="the compiler, for the record")
    flags = parser.parse_args()

    cuobjdump, nvdisasm = find_program("cuobjdump"), find_program("nvdisasm")
    if cuobjdump is None or nvdisasm is None:
        print("kernel_cost: skipped: neither the CUDA toolkit nor the wheels have cuobjdump and nvdisasm here")
        return SKIPPED
    os.environ["PATH"] = os.pathsep.join([str(pathlib.Path(nvdisasm).parent), os.environ.get("PATH", "")])
    objects = [path for path in flags.objects if path.endswith(".cu.o")]
    if not objects:
        print("kernel_cost: no object is of a .cu file", file=sys.stderr)
        return 2
    compiler = compiler_of(flags.nvcc)
    costs = measure(cuobjdump, flags.arch, objects)
    print_table(costs)
    record = json.loads(flags.compare.read_text(encoding="utf-8")) if flags.compare else {}
    executed = ran = None
    if flags.run:
        executed, ran = execute(cuobjdump, flags.arch, objects, record.get("ran"))
    if flags.run and ran is None:
        print("kernel_cost: not run: numpy or a C++ compiler is missing")
        return SKIPPED
    if flags.record:
        made = {"schema": "sparsecast kernel cost 1", "arch": flags.arch, "nvcc": compiler, "kernels": costs}
        if executed is not None:
            made |= {"ran": ran, "executed": executed}
        flags.record.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    if not flags.compare:
        return 0
    if (record["arch"], record["nvcc"]) != (flags.arch, compiler):
        print(
            f"kernel_cost: not compared: the record is of nvcc {record['nvcc']} for {record['arch']}, this is {compiler}"
        )
        return SKIPPED
    said = differences(record["kernels"], costs, flags.growth)
    if executed is not None:
        said += differences_executed(record.get("executed", {}), executed, flags.growth)
    for sentence in said:
        print(f"kernel_cost: {sentence}", file=sys.stderr)
    if said:
        print(f"kernel_cost: what is meant goes into {flags.compare} by --record", file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
