"""The page: two fields, a verdict and tabs with evidence, plus the API and the MCP server."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import Navbar
from markupsafe import Markup
from starlette.middleware import Middleware
from starlette.routing import Route

from mdir_hf.installing import install_command
from mdir_hf.lineage.survey.reads import SurveyReads
from mdir_space.html.links import CARD_PATH, DOWNLOAD_PATH, MCP_PATH, read_link
from mdir_space.html.notices import stored_notice
from mdir_space.html.plans import notice_of
from mdir_space.html.reconstruction_tab import reconstruction_end
from mdir_space.html.templates import render
from mdir_space.jobs.examples import Example, example_of, stored_examples
from mdir_space.jobs.question import DEFAULT_ALPHA, LEVELS, PairQuestion, RefusedError, parse_question, split_names
from mdir_space.jobs.results import WHAT_IS_KEPT
from mdir_space.jobs.service import Service
from mdir_space.page.answer import answer_question, refuse_stored, show_example, show_kept
from mdir_space.page.method import method_page, suspect_page
from mdir_space.page.panels import Panels, Updates, accumulated
from mdir_space.page.reconstruction import show_reconstruction
from mdir_space.page.suggestions import Suggestions, datalist
from mdir_space.page.theme import theme
from mdir_space.routes.api import add_endpoints
from mdir_space.routes.body_limit import BodyLimit
from mdir_space.routes.cards import Cards
from mdir_space.routes.first_paint import FirstPaint
from mdir_space.routes.hosts import KnownHosts, known_hosts
from mdir_space.routes.mcp import McpMiddleware, McpServer
from mdir_space.routes.pictures import PREFIX, StaticPictures
from mdir_space.routes.reconstructions import ReconstructionFiles
from mdir_space.routes.streams import StreamLeases

TITLE = "mdir-hf: do two models share weight ancestry?"
HERE = Path(__file__).resolve().parent
SCRIPTS = ("page.js", "figures.js")
PREFLIGHT_DELAY_S = 0.4
"""Delay of the plan after a visitor leaves a field; clicking the button meanwhile cancels the plan."""
OTHER_NAME_S = 0.8
"""Further delay unless two models are named; entering another name meanwhile cancels the plan."""
DISTRIBUTING_S = 0.15
"""Pause in which the browser shows both filled fields, because it shows only the last update of each frame."""
STOPPED = "Stopped. Nothing more is read."
STOPPING_S, LAST_WORDS_S = 5.0, 0.3
"""Longest time for a cancelled job to end, and for its last update to arrive. A later update would show Cancel
again."""
TABS = {
    "Evidence": ("evidence",),
    "Layers": ("layers", "modules"),
    "Share": ("badge", "reproduce", "reconstruction"),
}
"""Tabs below a verdict, and the panels in each."""
MAX_SESSIONS = 64
"""Number of page states that gradio stores, 2 MB each; its default is 10,000."""


def build_page(service: Service) -> gr.Blocks:
    """Build the whole Space around a service."""
    suggestions = Suggestions()
    service.warm_up()
    demo = gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=False)
    demo.queue(api_open=False)  # a direct call has no session, and would not end with its connection
    # Otherwise, each event makes a table of the last 10,000 events for a page that is turned off.
    demo._queue.ANALYTICS_MAX_EVENTS, demo._queue.ANAYLTICS_CACHE_FREQUENCY = 1, sys.maxsize
    with demo:
        Navbar(main_page_name="Compare", elem_id="navigation")
        with gr.Column(elem_id="page"):
            gr.HTML(introduction())
            with gr.Row(elem_id="models"):
                first = _model_field("One model, or several", "model-a", "HuggingFaceTB/SmolLM2-135M-Instruct")
                second = _model_field("Compare with, optional", "model-b", "owner/name, or its address")
            options = [gr.HTML(datalist(f"{name}-names", ()), elem_classes="unseen") for name in ("model-a", "model-b")]
            with gr.Accordion("Options", open=False, elem_id="options"):
                level = gr.Radio(
                    [(f"{name}: {what}", name) for name, what in LEVELS.items()],
                    value="auto",
                    label="Level",
                    elem_id="level",
                )
                alpha = gr.Textbox(
                    f"{DEFAULT_ALPHA:g}",
                    label="Alpha",
                    info="The largest p-value that counts as significant, fixed in advance.",
                    max_lines=1,
                    elem_id="alpha",
                )
            opener = gr.Button("Open the link", elem_id="open-link", elem_classes="unseen")
            with gr.Row(elem_id="actions"):
                compare = gr.Button("Compare", variant="primary", elem_id="compare")
                cancel = gr.Button("Cancel", variant="stop", elem_id="cancel", visible="hidden")
                if service.settings.may_sign_in:
                    gr.LoginButton("Sign in for gated models", "Sign out {}", size="md", elem_id="sign-in")
            plan = gr.HTML(elem_id="plan")  # under the button, so that a plan does not move it
            status, alert = gr.HTML(elem_id="status"), gr.HTML(elem_id="alert")
            examples = _examples()
            if service.settings.named_models:
                gr.HTML(render("named_models", names=service.settings.named_models))
            panels = _panels(plan, status, alert, compare, cancel)
            gr.HTML(footer())
        fields = [first, second, level, alpha]
        _listen(service, fields, panels, examples, opener)
        for field, names in zip((first, second), options, strict=True):
            _suggest(suggestions, field, names)
        add_endpoints(service)
    with demo.route("A suspicion", "/suspect"):
        suspect_page()
    with demo.route("How it works", "/method"):
        method_page()
    return demo


def introduction() -> Markup:
    """Return the head of the page: the name, the question, and an image for yes and for no."""
    return render("introduction", folder=PREFIX.lstrip("/"))


def footer() -> Markup:
    """Return the foot of the page."""
    return render(
        "footer",
        install=install_command(for_others=True),
        what_is_kept=WHAT_IS_KEPT,
        api="gradio_api/openapi.json",
        mcp=MCP_PATH.lstrip("/"),
    )


def launch_options(service: Service, host: str) -> dict[str, Any]:
    """Return the arguments of ``launch``, except the port; ``host`` is the address to bind."""
    limits = service.settings.limits
    mcp = McpServer(service)
    look, css = theme(), (HERE / "style.css").read_text(encoding="utf-8")
    return {
        "server_name": host,
        "theme": look,
        "css": css,
        "head": "".join(f"<script>{(HERE / name).read_text(encoding='utf-8')}</script>" for name in SCRIPTS),
        "footer_links": [],
        "run_history": False,
        "enable_monitoring": False,
        "max_file_size": 1,  # bytes: there are no uploads
        "app_kwargs": {
            "middleware": [
                Middleware(KnownHosts, hosts=known_hosts(host)),
                Middleware(BodyLimit),
                Middleware(StreamLeases, leases=service.leases),
                Middleware(McpMiddleware, server=mcp),
                Middleware(StaticPictures),
                Middleware(FirstPaint, service=service, theme=look, css=css, title=TITLE, introduction=introduction()),
            ],
            "lifespan": mcp.lifespan,
            "routes": [
                Route(CARD_PATH, Cards(service).show),
                Route(f"{DOWNLOAD_PATH}/{{name}}.zip", ReconstructionFiles(service).send),
            ],
        },
        "show_error": False,
        "mcp_server": False,  # gradio's returns results without a structure; see mdir_space.routes.mcp
        "state_session_capacity": MAX_SESSIONS,
        # Each waiting comparison holds a slot of this queue, which costs next to nothing.
        "max_threads": limits.n_running + limits.n_waiting + 40,
        "ssr_mode": False,
        "quiet": True,
    }


def _model_field(label: str, element_id: str, placeholder: str) -> gr.Textbox:
    return gr.Textbox(
        label=label,
        placeholder=placeholder,
        max_lines=1,
        lines=1,
        elem_id=element_id,
        min_width=280,
    )


def _examples() -> list[tuple[gr.Button, Example]]:
    stored = stored_examples()
    if not stored:
        return []

    def buttons(some: list[Example]) -> list[tuple[gr.Button, Example]]:
        return [
            (gr.Button(example.words, size="sm", variant="secondary", elem_classes="example", min_width=120), example)
            for example in some
        ]

    gr.HTML('<p class="examples-head" id="examples-head">Questions with a stored answer:</p>')
    with gr.Column(elem_id="examples"):
        first = buttons([example for example in stored if example.question])
        with gr.Accordion("More stored answers", open=False, elem_id="more-examples"):
            return first + buttons([example for example in stored if not example.question])


def _panels(plan: gr.HTML, status: gr.HTML, alert: gr.HTML, compare: gr.Button, cancel: gr.Button) -> Panels:
    verdict = gr.HTML(elem_id="verdict")
    tabs = {}
    # The script of the page opens the right tab, once. Opening it here would undo a later choice of the visitor.
    with gr.Column(visible=False, elem_id="details") as details, gr.Tabs(overflow_behavior="wrap"):
        for tab, contents in TABS.items():
            with gr.Tab(tab, elem_id=f"tab-{tab.lower()}", id=tab.lower()):
                for name in contents:
                    tabs[name] = gr.HTML(elem_classes="panel", elem_id=f"panel-{name}")
    return Panels(plan, status, alert, verdict, details, compare=compare, cancel=cancel, **tabs)


def _listen(
    service: Service, fields: list[Any], panels: Panels, examples: list[tuple[gr.Button, Example]], opener: gr.Button
) -> None:
    """Connect the page to the service. A visitor's data exists only in these calls."""
    at_work: defaultdict[str | None, set[object]] = defaultdict(set)  # running answers of each open page
    hidden: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}

    async def run(
        first: str,
        second: str,
        level: str,
        alpha: str,
        request: gr.Request,
        account: gr.OAuthProfile | None,
        account_token: gr.OAuthToken | None,
    ) -> AsyncGenerator[Updates, None]:
        visitor = service.visitor(request, account, account_token)
        pair = split_names(first, allow_local=service.settings.allow_local)
        if not second.strip() and len(pair) == 2:
            first, second = pair
            yield {fields[0]: first, fields[1]: second}
            await asyncio.sleep(DISTRIBUTING_S)
        async for updates in counted(
            answer_question(service, panels, (first, second, level, alpha), visitor, request), request
        ):
            yield updates

    async def counted(updates: AsyncGenerator[Updates, None], request: gr.Request) -> AsyncGenerator[Updates, None]:
        answer = object()
        at_work[request.session_hash].add(answer)
        try:
            async with aclosing(accumulated(updates)) as all_:
                async for more in all_:
                    yield more
        finally:
            at_work[request.session_hash].discard(answer)
            if not at_work[request.session_hash]:
                del at_work[request.session_hash]

    async def ended(request: gr.Request) -> bool:
        """Wait until the cancelled answers of a page have ended; return whether no other one has begun meanwhile."""
        cancelled = set(at_work.get(request.session_hash, ()))
        ends = time.monotonic() + STOPPING_S
        while cancelled & at_work.get(request.session_hash, set()) and time.monotonic() < ends:
            await asyncio.sleep(0.05)
        await asyncio.sleep(LAST_WORDS_S)
        return not at_work.get(request.session_hash, set()) - cancelled

    async def stop(request: gr.Request) -> Updates:
        if not await ended(request):
            return {panels.plan: gr.skip()}
        stopped = render("status", said=STOPPED, is_stopped=True)
        return {panels.status: stopped, **panels.busy(False)}

    async def run_reconstruction(
        pair: str, request: gr.Request, account: gr.OAuthProfile | None, account_token: gr.OAuthToken | None
    ) -> AsyncGenerator[Updates, None]:
        visitor = service.visitor(request, account, account_token)
        async for updates in counted(show_reconstruction(service, panels, pair, visitor, request), request):
            yield updates

    async def stop_reconstruction(request: gr.Request) -> Updates:
        if not await ended(request):
            return {panels.reconstruction: gr.skip()}
        return {panels.reconstruction: reconstruction_end(Markup("<p>{}</p>").format(STOPPED))}

    async def open_link(
        request: gr.Request, account: gr.OAuthProfile | None, account_token: gr.OAuthToken | None
    ) -> AsyncGenerator[Updates, None]:
        link = read_link(request)
        level, alpha = (link.level if link.level in LEVELS else "auto"), link.alpha or f"{DEFAULT_ALPHA:g}"
        if link.level not in LEVELS:
            gr.Warning("The level in the link is unknown; using auto.", title="Level", duration=10)
        example = next((example for _, example in examples if example.name == link.example), None)
        names = (link.reference, link.candidate)
        if example is not None:
            updates = show_example(panels, example, request)
            names = example.models
        elif not any(names):
            yield dict(zip(fields, (*names, level, alpha), strict=True))
            return
        else:
            visitor = service.visitor(request, account, account_token)
            show = show_kept if link.version else answer_question
            updates = show(service, panels, (*names, level, alpha, link.only), visitor, request)
        filled = dict(zip(fields, (*names, level, alpha), strict=True))
        async for more in counted(_after(filled, updates), request):
            yield more

    async def preflight(
        first: str,
        second: str,
        level: str,
        alpha: str,
        request: gr.Request,
        account: gr.OAuthProfile | None,
        account_token: gr.OAuthToken | None,
    ) -> Updates:
        await asyncio.sleep(PREFLIGHT_DELAY_S)
        fields = [field.strip() for field in (first, second, level, alpha)]
        stored = example_of(name for field in (first, second) for name in split_names(field))
        if stored is not None:
            return {panels.plan: stored_notice(stored, fields)}
        try:
            question = parse_question(first, second, level, alpha, allow_local=service.settings.allow_local)
            refuse_stored(question.names)
            if not isinstance(question, PairQuestion):
                await asyncio.sleep(OTHER_NAME_S)
            visitor = service.visitor(request, account, account_token)
            plan = await service.plan(question, visitor)
        except RefusedError:
            return {panels.plan: ""}  # the visitor may still be typing; the click shows the refusal
        updates: Updates = {panels.plan: notice_of(plan, service.pace, service.settings.limits, fields)}
        if isinstance(plan, SurveyReads):  # the name may be an author's, which only the server knows
            updates[panels.compare] = gr.update(value=f"Survey {len(plan.n_rows)} models")
        return updates

    # Done in the browser, so that the label of the button always fits the fields.
    label = f"(first, second) => buttonLabel(first, second, {json.dumps(service.settings.allow_local)})"
    gr.on([field.change for field in fields[:2]], None, fields[:2], panels.compare, js=label, queue=False, **hidden)
    planning = gr.on(
        [fields[0].blur, fields[1].blur, fields[2].change, fields[3].blur],
        preflight,
        fields,
        [panels.plan, panels.compare],
        trigger_mode="always_last",
        concurrency_limit=8,
        **hidden,
    )
    gr.on(
        [fields[0].input, fields[1].input, fields[2].input, fields[3].input],
        None,
        None,
        None,
        cancels=[planning],
        queue=False,
        **hidden,
    )
    # The script of the page clicks these two for the buttons in the tab.
    start, end = (
        gr.Button(name, elem_id=name, elem_classes="unseen pressed") for name in ("reconstruct", "stop-reconstruction")
    )
    shown = gr.Textbox(visible="hidden")  # carries the query of the answer that is shown
    reconstructing = start.click(
        run_reconstruction,
        shown,
        panels.reconstruction,
        js="() => document.getElementById('address').dataset.query",
        concurrency_limit=None,
        **hidden,
    )
    end.click(None, None, None, cancels=[reconstructing], queue=False, **hidden).then(
        stop_reconstruction, None, panels.reconstruction, queue=False, **hidden
    )
    # In two steps, here and below, because gradio runs an event's function before its ``cancels``.
    running = [
        gr.on(
            [panels.compare.click, fields[0].submit, fields[1].submit],
            None,
            None,
            None,
            cancels=[planning, reconstructing],
            queue=False,
            **hidden,
        ).then(run, fields, [*panels.all(), *fields[:2]], concurrency_limit=None, **hidden),
        # The script of the page clicks it if there is a link. A load event would take the focus away on every visit.
        opener.click(open_link, None, [*fields, *panels.all()], concurrency_limit=None, **hidden),
    ]
    for button, example in examples:
        running.append(_open_on_click(button, example, fields, panels, hidden, cancels=[reconstructing]))
    panels.cancel.click(None, None, None, cancels=running, queue=False, **hidden).then(
        stop, None, panels.all(), queue=False, **hidden
    )


async def _after(first: Updates, updates: AsyncGenerator[Updates, None]) -> AsyncGenerator[Updates, None]:
    yield first
    async with aclosing(updates) as all_:
        async for more in all_:
            yield more


def _open_on_click(
    button: gr.Button,
    example: Example,
    fields: list[Any],
    panels: Panels,
    hidden: dict[str, Any],
    cancels: list[Any],
) -> gr.events.Dependency:
    async def show(request: gr.Request) -> AsyncGenerator[Updates, None]:
        named = dict(zip(fields[:2], example.models, strict=True))
        async for updates in accumulated(_after(named, show_example(panels, example, request))):
            yield updates

    shown: gr.events.Dependency = button.click(None, None, None, cancels=cancels, queue=False, **hidden).then(
        show, None, [*fields[:2], *panels.all()], concurrency_limit=8, **hidden
    )
    return shown


def _suggest(suggestions: Suggestions, field: gr.Textbox, names: gr.HTML) -> None:
    element_id = f"{field.elem_id}-names"

    def suggest(typed: str) -> str:
        return datalist(element_id, suggestions.models(typed))

    field.input(
        suggest,
        field,
        names,
        queue=False,
        trigger_mode="always_last",
        show_progress="hidden",
        api_visibility="private",
    )
