"""Describe the results for neurons, layers and projections as text."""

from __future__ import annotations

from collections.abc import Sequence

from mdir_hf.render.projection_words import projection_lines, projection_paragraphs, projection_table
from mdir_hf.render.sections import FigureName, Line, Section, SectionKind, Table, number
from mdir_hf.render.sentence import runs_text
from mdir_hf.report.parts import LayersResult, ModuleResult, NeuronNumbers
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.terms import ResidualMap
from mdir_hf.report.words import counted, neurons_text


def neuron_lines(neurons: NeuronNumbers) -> tuple[Line, ...]:
    """Return lines for a terminal on a comparison of neurons."""
    if not neurons.matches:
        return (Line("neurons", f"{neurons.step.words}: {_none_matches(neurons)}"),)
    pairs = ", ".join(f"{i}>{j}" for i, j in neurons.matches)
    return (Line("neurons", neurons_text(neurons)), Line("", f"reference>candidate: {pairs}"))


def neuron_paragraphs(neurons: NeuronNumbers) -> tuple[str, ...]:
    """Describe how neurons were compared, and the result."""
    how = (
        f"Step {neurons.step.value}: {neurons.step.words}. {neurons.tested} neurons of each layer were compared, after "
        f"a rotation fitted on {neurons.fitted} others. Two layers match if at least half of the neurons are copies."
    )
    result = neurons_text(neurons) if neurons.matches else _none_matches(neurons)
    return how, f"{result[:1].upper()}{result[1:]}."


def neuron_tables(neurons: NeuronNumbers) -> tuple[Table, ...]:
    """Return the table of matching layers; empty if none match."""
    rows = {layer: i for i, layer in enumerate(neurons.reference_layers)}
    columns = {layer: j for j, layer in enumerate(neurons.candidate_layers)}
    cells = tuple(
        (
            str(j),
            str(i),
            f"{neurons.certain[rows[i]][columns[j]]} of {neurons.tested}",
            "–" if neurons.is_searched else f"{neurons.own_number[rows[i]][columns[j]]} of {neurons.tested}",
        )
        for i, j in neurons.matches
    )
    headers = ("candidate layer", "reference layer", "copied neurons", "neurons with their own number")
    return (Table("Layers whose neurons match, counted from 0", headers, cells),) if cells else ()


def _none_matches(neurons: NeuronNumbers) -> str:
    return f"no layers match; at most {neurons.most_certain} of {neurons.tested} neurons of a pair of layers are copies"


def layers_section(report: HomologyReport) -> Section:
    """Return the section on layers that agree, which may be empty."""
    layers = report.layers
    if layers is None:
        return Section(SectionKind.LAYERS, "Layers")
    agree = "agrees with a layer" if len(layers.matches) == 1 else "agree with layers"
    summary = (
        f"{len(layers.matches)} of {counted(len(layers.candidate_layers), 'layer')} of the candidate {agree} of the "
        f"reference, compared by their {layers.role.words} {basis_words(layers)} ({layers.method}): "
        f"{layers.pattern.words}"
    )
    brief = [Line("layers", summary)]
    if layers.matches:
        pairs = ", ".join(f"{m.reference}>{m.candidate}" for m in layers.matches)
        brief.append(Line("", f"reference>candidate: {pairs}"))
    rows = tuple((str(m.candidate), str(m.reference), number(m.log10_p)) for m in layers.matches)
    columns = ("candidate layer", "its partner in the reference", "log10 p")
    return Section(
        SectionKind.LAYERS,
        "Layers",
        brief=tuple(brief),
        paragraphs=(f"{summary}. This describes the models; the verdict does not rest on it.",),
        tables=(Table("Which layer agrees with which, counted from 0", columns, rows),) if rows else (),
        figures=(FigureName.LAYERS, FigureName.FLOW) if layers.matrix else (),
    )


def basis_words(layers: LayersResult) -> str:
    """Say in which residual basis the layers were compared."""
    if layers.residual_map is ResidualMap.IDENTITY:
        return "in the same residual basis"
    if layers.residual_map is ResidualMap.ROTATION:
        return f"after a rotation fitted on the {layers.fitted_on}"
    return f"through the channels matched on the {layers.fitted_on}"


def modules_section(report: HomologyReport) -> Section:
    """Return the section on projections, which may be empty."""
    tables = _tables_of_algorithm_3(report.modules or ())
    if report.projections is None:
        return Section(SectionKind.MODULES, "Modules", tables=tables)
    return Section(
        SectionKind.MODULES,
        "Modules",
        brief=projection_lines(report.projections),
        paragraphs=projection_paragraphs(report),
        tables=(projection_table(report.projections), *tables),
        figures=(FigureName.DRIFT,),
    )


def _tables_of_algorithm_3(modules: Sequence[ModuleResult]) -> tuple[Table, ...]:
    rows = tuple(
        (
            str(module.layer.candidate),
            str(module.layer.reference),
            module.role.words,
            f"{module.trace:.2f}",
            f"{module.normalized_trace:.3f}",
            number(module.log10_p),
        )
        for module in modules
    )
    columns = ("candidate layer", "reference layer", "projection", "trace", "normalized trace", "log10 p")
    return (Table("The paper's Algorithm 3, as printed", columns, rows),) if rows else ()


def layers_text(neurons: NeuronNumbers) -> str:
    """Describe matching layers, such as ``all 4 compared layers match, each in its place``."""
    own_layers = [match.candidate for match in neurons.matches]
    its_layers = [match.reference for match in neurons.matches]
    n_layers, n_its = len(neurons.candidate_layers), len(neurons.reference_layers)
    if len(own_layers) == 1:
        text = f"layer {own_layers[0]} matches its layer {its_layers[0]}"
    elif own_layers == its_layers:
        are_all = len(own_layers) == n_layers
        which = f"all {n_layers} compared layers" if are_all else f"{runs_text(own_layers)} of {n_layers} compared"
        text = f"{which} match, each in its place"
    else:
        text = f"{runs_text(own_layers)} of {n_layers} compared match its {runs_text(its_layers)}"
    return f"{text} ({n_its} of its layers were compared)" if n_its < n_layers else text
