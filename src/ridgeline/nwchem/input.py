"""The input file of NWChem, from options and settings. A knob that is absent leaves NWChem's own default."""

from __future__ import annotations

from collections.abc import Collection

from ridgeline.nwchem.form import NwchemOptions
from ridgeline.records.space import Settings
from ridgeline.records.template import render

SCRATCH = "scratch"  # in the run folder: a folder, or a link to the node's own disk
_GUESS_FILE = "guess.movecs"
_WORDS_PER_MB = 2**20 // 8


def render_input(options: NwchemOptions, settings: Settings, optional: Collection[str] = ()) -> str:
    if options.template:
        return render(options.template, settings, optional)
    blocks = [
        f"start nwchem\nscratch_dir ./{SCRATCH}\npermanent_dir .",
        _memory(settings),
        f"print {settings['print_level']}" if settings.get("print_level") else "",
        f"charge {options.charge}" if options.charge else "",
        _block("geometry units angstrom", *options.atoms),
        _basis(options),
        *_tasks(options, settings),
    ]
    return "\n".join(block for block in blocks if block) + "\n"


def _block(head: str, *lines: str) -> str:
    return "\n".join([head, *(f"  {line}" for line in lines if line), "end"])


def _memory(settings: Settings) -> str:
    sizes = [
        f"{part} {settings[f'memory_{part}_mb']} mb"
        for part in ("stack", "heap", "global")
        if settings.get(f"memory_{part}_mb") is not None
    ]
    return f"memory {' '.join(sizes)}" if sizes else ""


def _basis(options: NwchemOptions) -> str:
    head = "basis spherical" if options.spherical else "basis"
    if not options.basis_text:
        return _block(head, f"* library {options.basis}")
    whole_block = options.basis_text.lstrip().lower().startswith("basis")
    return options.basis_text if whole_block else _block(head, *options.basis_text.splitlines())


def _tasks(options: NwchemOptions, settings: Settings) -> list[str]:
    guess = str(settings.get("guess") or "atomic")
    integrals = _integrals(settings)
    if options.theory != "dft":
        return [_scf(options, guess, integrals, ""), *_correlated(options), f"task {options.theory} {options.task}"]
    before = []
    if settings.get("scf_guess"):
        before = [_scf(options, guess, integrals, f" output {_GUESS_FILE}"), "task scf energy"]
        guess = _GUESS_FILE
    dft = _block(
        "dft",
        f"xc {options.xc}",
        f"mult {options.multiplicity}" if options.multiplicity > 1 else "",
        f"grid {settings['grid']}" if settings.get("grid") else "",
        integrals,
        _convergence(settings),
        f"vectors input {guess}",
    )
    return [*before, dft, f"task dft {options.task}"]


def _correlated(options: NwchemOptions) -> list[str]:
    if options.theory == "scf" or not options.freeze_core:
        return []
    return [_block(options.theory.partition("(")[0], "freeze atomic")]


def _scf(options: NwchemOptions, guess: str, integrals: str, output: str) -> str:
    unpaired = f"nopen {options.multiplicity - 1}" if options.multiplicity > 1 else ""
    return _block("scf", unpaired, integrals, f"vectors input {guess}{output}")


def _integrals(settings: Settings) -> str:
    kind = settings.get("integrals")
    if kind != "semidirect":
        return str(kind or "")
    sizes = [
        f"{name} {int(size) * _WORDS_PER_MB}"  # NWChem counts 64-bit words
        for name in ("memsize", "filesize")
        if (size := settings.get(f"{name}_mb")) is not None
    ]
    return " ".join([kind, *sizes])


def _convergence(settings: Settings) -> str:
    limits = [
        f"{name} {settings[f'convergence_{name}']:.1e}"
        for name in ("energy", "density")
        if settings.get(f"convergence_{name}") is not None
    ]
    return f"convergence {' '.join(limits)}" if limits else ""
