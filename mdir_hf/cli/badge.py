"""``mdir-hf badge report.json``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from mdir_hf.cli import arguments
from mdir_hf.cli.output import say


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``badge`` to the command line."""
    parser = commands.add_parser(
        "badge",
        help="make a badge of a report",
        description="Make a badge of a report: badge.svg, badge.md (the image, linked to the report) and badge.json "
        "(a shields endpoint), beside report.json. Reads only the report.",
    )
    parser.add_argument("report", metavar="REPORT.json", type=Path, help="output of `mdir-hf compare --json`")
    arguments.add_output(parser, "output folder (default: the folder of the report)")
    parser.add_argument("--image-url", default="badge.svg", help="URL or path of the image (default badge.svg)")
    parser.add_argument("--report-url", default="report.json", help="URL or path of the report (default report.json)")
    parser.add_argument("--bom-url", help="URL or path of a bill of materials, which the snippet then links as well")
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the badge and print the written files."""
    from mdir_hf.lineage.cards.badge import make_badge
    from mdir_hf.lineage.cards.badge_folder import write_badge
    from mdir_hf.lineage.cards.report_file import read_report

    report = read_report(options.report)
    badge = make_badge(report)
    snippet = badge.markdown(options.image_url, options.report_url, options.bom_url)
    written = write_badge(badge, report, snippet, options.output or options.report.parent)
    if options.json:
        result = {
            "label": badge.label,
            "message": badge.message,
            "markdown": snippet,
            "report_sha256": badge.claim.report_sha256,
            "files": [str(path) for path in written],
        }
        say(json.dumps(result) + "\n")
    else:
        say(f"{badge.label} | {badge.message}\n\n{snippet}\n\n")
        say("".join(f"wrote {path}\n" for path in written))
    return 0
