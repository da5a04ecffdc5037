"""The pages of docs/reference: keys from the forms that read the files, the Python API from its docstrings."""

from __future__ import annotations

from ridgeline import catalog
from ridgeline.cli.text.python_reference import page as python_page
from ridgeline.records.metrics import METRICS
from ridgeline.service.form import ServiceForm
from ridgeline.study.forms.form import Form
from ridgeline.study.forms.reference import described, key_rows, section, table
from ridgeline.study.schema import BuildsForm, StudyForm
from ridgeline.study.site_form import SiteForm

COMMAND = "scripts/reference"
_NOTE = f"<!-- Written by {COMMAND} from the forms that read the files; change those, then run it again. -->"
# file name, title, and the kinds of workload that it is about
_WORKLOADS = (
    ("workload-command", "Any program", ("command",)),
    ("workload-python", "A Python function", ("python",)),
    ("workload-nwchem", "NWChem", ("nwchem",)),
    ("workload-sglang", "SGLang", ("sglang-offline", "sglang-serve")),
    ("workload-vllm", "vLLM", ("vllm-offline", "vllm-serve")),
    ("workload-twin", "The twin", ("twin",)),
)


def pages() -> dict[str, str]:
    """File name -> text."""
    made = {"study": _study(), "builds": _builds(), "samplers": _samplers(), "site": _site()}
    made["deployment"] = _deployment()
    made["metrics"] = _metrics()
    made |= {name: _workload(title, kinds) for name, title, kinds in _WORKLOADS}
    made["python"] = python_page(_NOTE.replace("the forms that read the files", "signatures and docstrings"))
    made["index"] = _index()
    return {f"{name}.md": text for name, text in made.items()}


def _page(title: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", _NOTE, *parts)) + "\n"


def _index() -> str:
    lines = [
        "- [study](study.md): every key of a study file",
        "- [builds](builds.md): how variants of a program are built",
        "- [samplers](samplers.md): who proposes settings, and their options",
        "- [site](site.md): every key of a site file",
        "- [deployment](deployment.md): every key of a deployment file",
        "- [metrics](metrics.md): every metric, its unit, which way is better, and what it means",
        *(f"- [{' and '.join(kinds)}]({name}.md): keys of `workload`" for name, _, kinds in _WORKLOADS),
        "- [python](python.md): what `import ridgeline` offers",
    ]
    intro = "Every key of the files that Ridgeline reads. [The study file](../study-file.md) is the introduction."
    return _page("Reference", intro, "\n".join(lines))


def _study() -> str:
    rows = key_rows(StudyForm, closed=("search", "confirm", "builds"))
    more = (
        "`workload` has further keys, which depend on its kind, and `stages.search` those of its "
        "[sampler](samplers.md); [the index](index.md) lists them all."
    )
    return _page("The study file", more, table(rows))


def _builds() -> str:
    return _page("Builds", section(BuildsForm, prefix="builds."))


def _samplers() -> str:
    intro = "Options of a sampler go beside `sampler`, `seed` and `sentinel_every` in `stages.search` (or `search`)."
    return _page("Samplers", intro, *(section(form, title=name) for name, form in _own_forms("samplers").items()))


def _own_forms(room: str) -> dict[str, type[Form]]:
    """Those of Ridgeline's own parts: plugins document theirs."""
    return {name: form for name, form in catalog.forms(room).items() if name in catalog.TABLE[room]}


def _site() -> str:
    options = _own_forms("executors").items()
    shown = [section(form, prefix="options.", title=f"batch: {batch}") for batch, form in options]
    return _page("The site file", section(SiteForm), *shown)


def _deployment() -> str:
    more = (
        "`deploy`, `rehearse` and `keep` read it ([deploy](../guides/deploy.md)); `site` is that of a [site](site.md)."
    )
    return _page("The deployment file", more, section(ServiceForm))


def _metrics() -> str:
    made_by = (
        "`command` stands for every program, Python functions too; `offline` and `serve` for the two workloads of an "
        "engine (`sglang-serve`, `vllm-offline`, …); `prices` for what any run costs by the `prices` of a "
        "[study](study.md) or [site](site.md). "
        "A study of `kind: command` declares further metrics, with units of its own."
    )
    rows = [
        f"| `{m.name}` | {m.unit or '–'} | {m.better or '–'} | {m.meaning} | {', '.join(m.makers)} |"
        for m in METRICS.values()
    ]
    head = ["| metric | unit | better | meaning | made by |", "|---|---|---|---|---|"]
    return _page("Metrics", "Every metric that a goal or a guard may name.", made_by, "\n".join([*head, *rows]))


def _workload(title: str, kinds: tuple[str, ...]) -> str:
    forms: dict[str, type[Form]] = {kind: catalog.forms("workloads")[kind] for kind in kinds}
    where = "These keys go beside `kind` in `workload`."
    if len(forms) == 1:
        return _page(f"{title}: `kind: {kinds[0]}`", where, section(forms[kinds[0]]))
    shared = set.intersection(*({row.key for row in key_rows(form)} for form in forms.values()))
    first = next(iter(forms.values()))
    parts = [where, described(first.__mro__[1]), table(row for row in key_rows(first) if row.key in shared)]
    for kind, form in forms.items():
        own = [row for row in key_rows(form) if row.key not in shared]
        parts += [f"## kind: {kind}", described(form), *([table(own)] if own else [])]
    return _page(title, *parts)
