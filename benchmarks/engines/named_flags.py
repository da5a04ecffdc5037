"""Which flags of the engines' own tuning guides, and of teams' reports, have a row in the table of knobs.

    python benchmarks/engines/named_flags.py                       the list beside the table
    python benchmarks/engines/named_flags.py --read vllm CLONE     what a clone's guides name, and the list does not

named_flags.txt is the list: engine, flag, what it is, and where it is named. Flags that nobody tunes say so there.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections import Counter
from pathlib import Path

from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.knobs import ROWS, Part

LIST = Path(__file__).with_name("named_flags.txt")
# The pages about speed: tuning, parallelism, split roles, caches, drafts, quantisation, and those of large models.
GUIDES = {
    "sglang": r"docs/docs/(advanced_features/(?!.*(lora|checkpoint|observab|parser|reasoning|structured|object_st|hooks"
    r"|server_arguments|gateway|model_loading|vlm_query|rl\b)).*|references/multi_node_deployment/multi_node)\.mdx"
    r"|docs/cookbook/autoregressive/(DeepSeek|GLM|Qwen|Moonshotai|OpenAI|MiniMax|Meta)/[^/]*\.mdx",
    "vllm": r"docs/(configuration/(optimization|conserving_memory)|serving/[a-z_]*(parallel|deployment|scaling)[a-z_]*"
    r"|features/(?!.*(lora|tool|reason|structured|custom_|prompt_emb|multimodal)).*"
    r"|design/(moe_kernel_features|optimization_levels|dbo|cuda_graphs))\.md",
}
TUNED = "knob"


def listed() -> list[tuple[str, str, str, str]]:
    lines = (line for line in LIST.read_text().splitlines() if line and not line.startswith("#"))
    found = [line.split("\t") for line in lines]
    return [(engine, flag, kind, origin) for engine, flag, kind, origin in found]


def compare() -> None:
    rows = listed()
    missing = [
        (engine, flag, origin) for engine, flag, kind, origin in rows if kind == TUNED and not row_of(engine, flag)
    ]
    print(f"{'':8}{'named':>8}{'tuned':>8}{'with a row':>12}{'modelled by the twin':>22}{'missing':>9}")
    for engine in GUIDES:
        tuned = [flag for e, flag, kind, _ in rows if e == engine and kind == TUNED]
        known = [row for flag in tuned if (row := row_of(engine, flag))]
        modelled = sum(row.part is not Part.NOWHERE for row in known)
        named = sum(e == engine for e, *_ in rows)
        print(f"{engine:8}{named:8}{len(tuned):8}{len(known):12}{modelled:22}{len(tuned) - len(known):9}")
    others = Counter(kind for _, _, kind, _ in rows if kind != TUNED)
    print("no knobs: " + ", ".join(f"{count} {kind}" for kind, count in others.most_common()))
    for engine, flag, origin in missing:
        print(f"missing: {engine} {flag} ({origin})")


def row_of(engine: str, flag: str):
    return ROWS.get(engine_named(engine).flags.called(flag))


def read(engine: str, clone: str) -> None:
    """Names of flags of any release that the guides of a clone have, and the list has not."""
    git = ["git", "-C", clone]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    names = subprocess.run([*git, "ls-tree", "-r", "--name-only", "HEAD"], capture_output=True, text=True, check=True)
    known = {flag for e, flag, *_ in listed() if e == engine}
    flags = engine_named(engine).flags
    for page in (name for name in names.stdout.splitlines() if re.fullmatch(GUIDES[engine], name)):
        text = subprocess.run([*git, "show", f"HEAD:{page}"], capture_output=True, text=True, errors="replace").stdout
        said = re.findall(r"(?<![\w-])--([a-z][a-z0-9]*(?:[-_][a-z0-9]+)*)", text)
        said += re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`|\b([a-z]+(?:_[a-z0-9]+)+)=", text)
        for flag in sorted({"".join(name).replace("-", "_") for name in said}):
            if flags.knows(flag) and flag not in known:
                known.add(flag)
                print(engine, flag, TUNED, f"{page} {commit.stdout.strip()}", sep="\t")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--read", nargs=2, metavar=("ENGINE", "CLONE"))
    options = parser.parse_args()
    if options.read:
        read(*options.read)
    else:
        compare()


if __name__ == "__main__":
    main()
