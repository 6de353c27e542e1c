"""Bills of materials of the results of this package: a report, a check of a card, a family."""

from __future__ import annotations

from datetime import datetime

from mdir_hf.lineage.bom.model_facts import facts_of_summary
from mdir_hf.lineage.bom.records import records_of_check, records_of_family, records_of_report
from mdir_hf.lineage.bom.write import bom_json
from mdir_hf.lineage.cards.verify_lineage import LineageCheck
from mdir_hf.lineage.family import Family
from mdir_hf.report import HomologyReport, ModelFacts


def bom_of_report(
    report: HomologyReport,
    *,
    facts: ModelFacts | None = None,
    version: str = "1.6",
    timestamp: datetime | None = None,
) -> str:
    """Write the bill of materials of the candidate of a report, with the reference in its pedigree.

    Args:
        report: The report.
        facts: Digests, licence and date of the candidate, which a report does not hold.
        version: Version of CycloneDX, 1.6 or 1.7.
        timestamp: Date of the document; None: the date of the facts.

    Raises:
        InputError: If the version is not one of these.
        MissingExtraError: If cyclonedx-python-lib is not installed.
    """
    model = facts or facts_of_summary(report.candidate)
    return bom_json(model, records_of_report(report), version=version, timestamp=timestamp)


def bom_of_result(
    result: LineageCheck | Family,
    facts: ModelFacts,
    *,
    version: str = "1.6",
    timestamp: datetime | None = None,
) -> str:
    """Write the bill of materials of a model that ``verify`` or ``family`` has looked at.

    Args:
        result: Its declarations and their measurements.
        facts: Name, digests, licence and date of the model.
        version: Version of CycloneDX, 1.6 or 1.7.
        timestamp: Date of the document; None: the date of the facts.

    Raises:
        InputError: If the version is not one of these.
        MissingExtraError: If cyclonedx-python-lib is not installed.
    """
    records = records_of_family(result) if isinstance(result, Family) else records_of_check(result)
    return bom_json(facts, records, version=version, timestamp=timestamp)
