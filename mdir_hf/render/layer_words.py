"""Describe the results for layers and modules as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mdir_hf.render.projection_words import projection_lines, projection_paragraphs, projection_table
from mdir_hf.render.sections import FigureName, Line, Section, SectionKind, Table, counted, number
from mdir_hf.render.sentence import runs_text
from mdir_hf.report.optional_parts import ExpertsFound, HeadsFound, ModuleResult, NeuronsFound, RowsFound
from mdir_hf.report.parts import LayersResult, NeuronNumbers
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.terms import ModuleRole, ModuleTest, ResidualMap
from mdir_hf.report.words import neurons_text


def layers_section(report: HomologyReport) -> Section:
    """Return the section on matched layers, which may be empty."""
    by_number = _neurons_section(report.neurons)
    if report.layers is None:
        return by_number
    by_map = _map_section(report.layers)
    return replace(
        by_map,
        brief=by_number.brief + by_map.brief,
        paragraphs=by_number.paragraphs + by_map.paragraphs,
        tables=by_number.tables + by_map.tables,
        figures=by_number.figures + by_map.figures,
    )


def _neurons_section(neurons: NeuronNumbers | None) -> Section:
    if neurons is None:
        return Section(SectionKind.LAYERS, "Layers")
    n_pairs = len(neurons.reference_layers) * len(neurons.candidate_layers)
    alone = "" if neurons.nominated is None else " by up alone"
    looked = f"Neurons by number: {neurons.tested} of each layer were compared{alone}, in "
    looked += f"{counted(n_pairs, 'pair')} of layers, after a rotation fitted on {neurons.fitted} others"
    if neurons.nominated:
        looked += f"; {counted(len(neurons.nominated), 'pair')} that stood out, by gate and up of other neurons"
    if not neurons.matches:
        most = max(map(max, neurons.own_number))
        return Section(
            SectionKind.LAYERS,
            "Layers",
            paragraphs=(f"{looked}. At most {most} kept their number in any pair.",),
            figures=(FigureName.NEURONS,),
        )
    rows = {layer: i for i, layer in enumerate(neurons.reference_layers)}
    columns = {layer: j for j, layer in enumerate(neurons.candidate_layers)}
    cells = tuple(
        (str(j), str(i), f"{neurons.own_number[rows[i]][columns[j]]} of {neurons.tested}") for i, j in neurons.matches
    )
    pairs = ", ".join(f"{i}>{j}" for i, j in neurons.matches)
    headers = ("candidate layer", "its partner in the reference", "neurons that kept their number")
    return Section(
        SectionKind.LAYERS,
        "Layers",
        brief=(Line("neurons", neurons_text(neurons)), Line("", f"reference>candidate: {pairs}")),
        paragraphs=(f"{looked}. {neurons_text(neurons).capitalize()}.",),
        tables=(Table("Which layer matches which by the numbers of its neurons, counted from 0", headers, cells),),
        figures=(FigureName.NEURONS,),
    )


def _map_section(layers: LayersResult) -> Section:
    matched = "have a partner in the reference" if layers.matches else "were matched"
    summary = (
        f"{len(layers.matches)} of {layers.n_candidate_layers} layers of the candidate {matched}, compared by their "
        f"{layers.role.words} {basis_words(layers)}: {layers.pattern.words}; log10 p {_log10_p_words(layers)}"
    )
    brief = [Line("layers", summary)]
    if layers.matches:
        pairs = ", ".join(f"{m.reference}>{m.candidate}" for m in layers.matches)
        brief.append(Line("", f"reference>candidate: {pairs}"))
    rows = tuple((str(m.candidate), str(m.reference), number(m.log10_p)) for m in layers.matches)
    columns = ("candidate layer", "its partner in the reference", "log10 p, corrected for all pairs")
    return Section(
        SectionKind.LAYERS,
        "Layers",
        brief=tuple(brief),
        paragraphs=(f"{summary}.",),
        tables=(Table("Which layer matches which, counted from 0", columns, rows),) if rows else (),
        figures=(FigureName.LAYERS, FigureName.FLOW) if layers.matrix else (),
    )


def _log10_p_words(layers: LayersResult) -> str:
    """Format log10 p of the layer map or, if smaller, of all its layers together."""
    return number(min(layers.log10_p, layers.log10_p_fisher) if layers.matches else layers.log10_p)


def basis_words(layers: LayersResult) -> str:
    """Say in which residual basis the layers were compared."""
    if layers.residual_map is ResidualMap.IDENTITY:
        return "in the same residual basis"
    if layers.residual_map is ResidualMap.ROTATION:
        return f"after a rotation fitted on the {layers.fitted_on}"
    return f"through the channels matched on the {layers.fitted_on}"


def modules_section(report: HomologyReport) -> Section:
    """Return the section on projections and whole layers, which may be empty."""
    by_tests = _tests_section(report)
    if report.projections is None:
        return by_tests
    return replace(
        by_tests,
        brief=projection_lines(report.projections) + by_tests.brief,
        paragraphs=projection_paragraphs(report) + by_tests.paragraphs,
        tables=(projection_table(report.projections), *by_tests.tables),
        figures=(FigureName.DRIFT, *by_tests.figures),
    )


def _tests_section(report: HomologyReport) -> Section:
    tests: dict[tuple[ModuleRole, ModuleTest], list[ModuleResult]] = {}
    for module in report.modules or ():
        tests.setdefault((module.role, module.test), []).append(module)
    if not tests:
        return Section(SectionKind.MODULES, "Modules")
    best = {key: min(module.log10_p for module in modules) for key, modules in tests.items()}
    smallest = [
        f"{role} {test.value.replace('_', ' ')} {p:.0f}"
        for (role, test), p in best.items()
        if p < 0.0 and role is not ModuleRole.EXPERTS
    ]
    mixtures = [module.found for module in report.modules or () if isinstance(module.found, ExpertsFound)]
    brief = [Line("modules", f"smallest log10 p of each test: {', '.join(smallest)}")] if smallest else []
    brief += [Line("experts", experts_words(mixtures))] if mixtures else []
    columns = ("part", "looks for", "layers", "significant in", "smallest log10 p", "largest", "what was found")
    rows = tuple(_row(role, test, modules) for (role, test), modules in tests.items())
    return Section(
        SectionKind.MODULES,
        "Modules",
        brief=tuple(brief),
        paragraphs=(f"Of the compared experts, {experts_words(mixtures)}.",) if mixtures else (),
        tables=(Table("Every part and test, over the analysed pairs of layers", columns, rows),),
        figures=(FigureName.MODULES,),
    )


def experts_words(mixtures: Sequence[ExpertsFound]) -> str:
    """Count the experts across all analysed layers, grouped by type of origin."""
    traced = [origin for mixture in mixtures for origin in mixture.experts]
    n_all = sum(mixture.n_experts for mixture in mixtures)
    counts = {
        "from a dense MLP": sum(origin.reference is None for origin in traced),
        "from the expert in the same place": sum(
            origin.reference is not None and origin.candidate == origin.reference for origin in traced
        ),
        "from another expert": sum(
            origin.reference is not None and origin.candidate != origin.reference for origin in traced
        ),
    }
    parts = ", ".join(f"{n} {where}" for where, n in counts.items() if n)
    return f"{len(traced)} of {n_all} have an origin" + (f": {parts}" if parts else "")


def _row(role: ModuleRole, test: ModuleTest, modules: Sequence[ModuleResult]) -> tuple[str, ...]:
    log10_p = [module.log10_p for module in modules]
    significant = [module for module in modules if module.is_significant]
    extremes = (number(min(log10_p), 0), number(max(log10_p), 0))
    return (
        role.words,
        test.words,
        str(len(modules)),
        str(len(significant)),
        *extremes,
        _transformation_words(test, significant),
    )


def _transformation_words(test: ModuleTest, modules: Sequence[ModuleResult]) -> str:
    rows = [module.found for module in modules if isinstance(module.found, RowsFound)]
    neurons = [module.found for module in modules if isinstance(module.found, NeuronsFound)]
    heads = [module.found for module in modules if isinstance(module.found, HeadsFound)]
    mixtures = [module.found for module in modules if isinstance(module.found, ExpertsFound)]
    if rows:
        n_moved, n_signs = sum(layer.moves for layer in rows), sum(layer.negative > 0 for layer in rows)
        parts = [f"rows moved in {counted(n_moved, 'layer')}"] if n_moved else ["rows in place"]
        parts += [f"signs turned in {counted(n_signs, 'layer')}"] if n_signs else []
        return ", ".join(parts)
    if neurons:
        n_moved, n_all = sum(f.moved_neurons for f in neurons), sum(f.matched_neurons for f in neurons)
        what = "channels" if test is ModuleTest.CHANNELS else "neurons"
        return f"{n_moved} of {n_all} {what} moved" if n_moved else f"{what} in place"
    if heads:
        n_moved = sum(any(i != j for i, j in layer.heads) for layer in heads)
        return f"heads moved in {counted(n_moved, 'layer')}" if n_moved else "heads in place"
    return experts_words(mixtures) if mixtures else "–"


def layers_text(neurons: NeuronNumbers) -> str:
    """Describe matching layers, such as ``all 30 layers match, each in its place``."""
    own_layers = [match.candidate for match in neurons.matches]
    its_layers = [match.reference for match in neurons.matches]
    n_layers, n_its = len(neurons.candidate_layers), len(neurons.reference_layers)
    if n_layers == 1:
        text = f"its only layer matches layer {its_layers[0]}"
    elif own_layers == its_layers:
        which = (
            f"all {n_layers} layers match"
            if len(own_layers) == n_layers
            else f"{runs_text(own_layers)} of {n_layers} match"
        )
        text = f"{which}, each in its place"
    else:
        text = f"{runs_text(own_layers)} of {n_layers} match its {runs_text(its_layers)}"
    return f"{text} ({n_its} of its layers were compared)" if n_its < n_layers else text
