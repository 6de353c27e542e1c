"""The header of the page, and the demo's models on it."""

from mdir_space.html.templates import render
from mdir_space.jobs.examples import stored_examples
from mdir_space.page.method import SUSPECT
from mdir_space.page.page import introduction
from mdir_space.routes.pictures import PICTURES


def test_the_head_names_the_product_and_shows_a_yes_and_a_no():
    head = introduction()
    assert "mdir-hf" in head and "Related:" in head and "Unrelated:" in head
    for picture in ("landing-yes-light.webp", "landing-no-dark.webp"):
        assert picture in head and (PICTURES / picture).is_file()


def test_three_stored_answers_are_questions():
    assert sum(example.words.endswith("?") for example in stored_examples()) == 3


def test_models_of_the_demo_are_buttons_with_their_names():
    shown = render("named_models", names=("demo/base", "<b>"))
    assert 'data-name="demo/base"' in shown and "&lt;b&gt;" in shown


def test_a_suspicion_has_a_paragraph_for_each_reader():
    text = SUSPECT.read_text(encoding="utf-8")
    assert all(f"## If you are {who}" in text for who in ("a lawyer", "a journalist", "an engineer"))
