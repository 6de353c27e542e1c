"""A small page that counts for its visitors, and lists the remains of sessions that do not listen."""

import sys
import time

import gradio as gr
from starlette.middleware import Middleware

from mdir_space.jobs.lease import Leases
from mdir_space.routes.streams import StreamLeases

leases = Leases()
at_work = []


def count(number):
    """Yield 0, 1, …, slowly."""
    at_work.append(number)
    try:
        for step in range(int(number)):
            time.sleep(0.05)
            yield str(step)
    finally:
        at_work.remove(number)


def left():
    """Return the sessions with a state, pending messages or events, and the running counts."""
    queue, states = demo._queue, demo.state_holder.session_data
    sessions = {*queue.pending_messages_per_session, *queue.pending_event_ids_session, *states} - {"looking"}
    return [sorted(sessions), list(at_work)]


with gr.Blocks(analytics_enabled=False) as demo:
    told, remains = gr.Textbox(), gr.JSON()
    gr.Button().click(count, gr.Number(), told, api_name="count")
    gr.Button().click(left, None, remains, api_name="left", queue=False)

_, url, _ = demo.launch(
    prevent_thread_lock=True,
    quiet=True,
    ssr_mode=False,
    app_kwargs={"middleware": [Middleware(StreamLeases, leases=leases)]},
)
sys.stdout.write(f"counting at {url}\n")
demo.block_thread()
