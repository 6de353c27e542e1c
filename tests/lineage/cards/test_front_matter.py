"""Front matter is read as data; a change of a field keeps every other byte."""

import time

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mdir_hf import plain_yaml
from mdir_hf.errors import CardError
from mdir_hf.lineage.cards.front_matter import BOM, parse_card, read_metadata, with_metadata


def card(text):
    return parse_card(text.encode("utf-8"), subject="o/n:README.md")


def metadata(text):
    return read_metadata(card(text), subject="o/n:README.md")


def set_fields(text, **values):
    return str(with_metadata(card(text), values, subject="o/n:README.md"))


HOSTILE = {
    "object": "a: !!python/object/apply:os.system ['true']",
    "contains itself": "a: &a [*a]",
    "not a mapping": "- a",
    "text": "just words",
    "unclosed": "{a: b",
    "deep": "a: " + "[" * 90_000,
    "long number": "a: " + "9" * 5000,
    "base 60": "a: 1" + ":59" * 5000,
    "tag": "a: !!timestamp x",
    "escape": "a: \x1b[31m",
    "list as key": "? [a]\n: b",
    "two documents": "a: b\n...\nc: d",
    "large": "a: " + "x" * (1 << 20),
    "merge of a text": "<<: x",
}
HOSTILE["merges of merges"] = "a0: &a0 {k: v}\n" + "\n".join(
    f"a{i}: &a{i}\n  <<: [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)
)
HOSTILE["aliases of aliases"] = (
    "a0: &a0 [x, x]\n" + "\n".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(40))[8:]
)


@pytest.mark.parametrize("block", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_yaml_is_refused_in_one_plain_line(block):
    begun = time.process_time()
    with pytest.raises(CardError) as caught:
        metadata(f"---\n{block}\n---\n")
    said = str(caught.value)
    assert said.startswith("o/n:README.md: ") and said.isprintable() and len(said) < 400
    assert time.process_time() - begun < 60  # not a benchmark: without limits, some of these never end


MANY = plain_yaml.MOST_MARKS + 1


@pytest.mark.parametrize(
    "text",
    [
        *(f"[{'a,' * MANY}]", f"{{{'a: b, ' * MANY}}}", "[" * MANY, "- a\n" * MANY, "-\ta\n" * MANY),
        *("a:\n" * MANY, "? a\n" * MANY, "a:\tb\n" * MANY, "- - - - a\n" * (MANY // 4 + 1)),
    ],
)
def test_more_values_than_a_card_has_are_refused_unparsed(text, monkeypatch):
    monkeypatch.setattr(yaml, "SafeLoader", None)
    with pytest.raises(ValueError, match=r"1\d\d,\d\d\d commas, dashes, colons and brackets|2\d\d,\d\d\d commas"):
        plain_yaml.read_yaml(text)


@settings(max_examples=100)
@given(st.lists(st.sampled_from([*"ab,[]{}:-?", "\n", "\n  ", " ", "\t", ": ", "- ", "? ", "'", '"', "&x ", "*x"])))
def test_no_text_has_more_than_two_values_for_each_mark(parts):
    text = "".join(parts)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return

    def n_values(node):
        pairs = node.value if isinstance(node.value, list) else []
        return 1 + sum(n_values(part) for one in pairs for part in (one if isinstance(one, tuple) else (one,)))

    if root is not None and "*x" not in text:
        assert n_values(root) <= 2 * len(plain_yaml._MARK.findall(text)) + 1


def test_a_card_that_is_not_utf8_is_refused():
    with pytest.raises(CardError, match="byte 4"):
        parse_card(b"abcd\xff", subject="o/n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # A new field is appended; order, comments and quotes stay.
        (
            "---\nlicense: 'mit' # why\ntags:\n- b\n- a\n# end\n---\n# T",
            "---\nlicense: 'mit' # why\ntags:\n- b\n- a\n# end\nbase_model: x/y\n---\n# T",
        ),
        ("---\r\nlicense: mit\r\n---\r\n# T\r\n", "---\r\nlicense: mit\r\nbase_model: x/y\r\n---\r\n# T\r\n"),
        (BOM + "---\nlicense: mit\n---\n", BOM + "---\nlicense: mit\nbase_model: x/y\n---\n"),
        ("# T\n", "---\nbase_model: x/y\n---\n# T\n"),
        ("# T\r\n", "---\r\nbase_model: x/y\r\n---\r\n# T\r\n"),
        (BOM + "# T\n", BOM + "---\nbase_model: x/y\n---\n# T\n"),
        ("", "---\nbase_model: x/y\n---\n"),
        ("---\n---\n# T\n", "---\nbase_model: x/y\n---\n---\n---\n# T\n"),  # two rules, which the Hub reads as text
        ("---\r\n---\r\n# T\r\n", "---\r\nbase_model: x/y\r\n---\r\n# T\r\n"),
        ("# T\rOf old\r", "---\nbase_model: x/y\n---\n# T\rOf old\r"),
        ("---\n# only a comment\n---\n", "---\n# only a comment\nbase_model: x/y\n---\n"),
        ("---\nx: |\n  two\n\n---\n", "---\nx: |\n  two\nbase_model: x/y\n---\n"),
        # An existing field is replaced in place.
        ("---\nbase_model: a/b  # old\nlicense: mit\n---\n", "---\nbase_model: x/y  # old\nlicense: mit\n---\n"),
        ("---\nbase_model:\n- a/b\n\n# c\nlicense: mit\n---\n", "---\nbase_model: x/y\n\n# c\nlicense: mit\n---\n"),
        ("---\nbase_model:\nlicense: mit\n---\n", "---\nbase_model: x/y\nlicense: mit\n---\n"),
        ("---\nbase_model: ''\n---\n", "---\nbase_model: x/y\n---\n"),
        ('---\n"base_model": [a/b]\n---\n', '---\n"base_model": x/y\n---\n'),
        ("---\nbase_model: >\n  a/b\nz: 1\n---\n", None),
        # A correct value keeps its form.
        ('---\nbase_model:   "x/y"\n---\n', '---\nbase_model:   "x/y"\n---\n'),
        ("---\na: .nan\n---\n", "---\na: .nan\nbase_model: x/y\n---\n"),
    ],
)
def test_one_field_is_set_and_every_other_byte_kept(before, after):
    if after is None:
        assert metadata(set_fields(before, base_model="x/y")) == {"base_model": "x/y", "z": 1}
        return
    assert set_fields(before, base_model="x/y") == after
    assert set_fields(after, base_model="x/y") == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("base_model:\n- a/b # one\n# then\nlicense: mit", "base_model:\n- a/b # one\n- x/y\n# then\nlicense: mit"),
        ("base_model:\n    - a/b\nlicense: mit", "base_model:\n    - a/b\n    - x/y\nlicense: mit"),
        ("base_model: [a/b]", "base_model: [a/b, x/y]"),
        ("base_model: a/b", "base_model: [a/b, x/y]"),
    ],
)
def test_a_list_that_grows_keeps_its_lines(before, after):
    changed = set_fields(f"---\n{before}\n---\n# T\n", base_model=["a/b", "x/y"])
    assert changed == f"---\n{after}\n---\n# T\n"


@pytest.mark.parametrize("name", ["true", "123", "1.5", "null", "no", "1e3", "0x1f", "2026-01-01", "a-b_c.d"])
def test_an_id_that_looks_like_another_kind_of_value_stays_a_text(name):
    for before in ("# T\n", "---\nbase_model: a/b\n---\n", "---\nlicense: mit\n---\n"):
        assert metadata(set_fields(before, base_model=name))["base_model"] == name
        assert metadata(set_fields(before, base_model=["a/b", name]))["base_model"] == ["a/b", name]


@pytest.mark.parametrize(
    "block",
    [
        *("{license: mit}", "base_model: a/b\nbase_model: c/d", "license: mit\n...", "base: &b a/b\nbase_model: *b"),
        *("null", "~", "!!null", "--- # x", "--- null", "&a", "? base_model"),
    ],
)
def test_unsafe_changes_are_left_to_the_author(block):
    text = f"---\n{block}\n---\n"
    try:
        changed = set_fields(text, base_model="x/y")
    except CardError as exc:
        assert "by hand" in str(exc) or "times" in str(exc)
    else:
        assert metadata(changed) == {**metadata(text), "base_model": "x/y"}


_KEYS = st.sampled_from(
    ["license", "tags", "language", "model-index", "widget", "base_model", "x y", "base_model_relation"]
)
_LEAVES = st.sampled_from(
    ["mit", "yes", "1", "''", "'#'", '"a: b"', "[]", "[a, 'b']", "{a: b}", "|\n  text\n  more", ">-\n  f"]
)
_BLOCKS = _LEAVES | st.sampled_from(["\n- a\n- b", "\n  - a\n\n  # c\n  - {b: c}", "\n  k: v\n  l:\n  - m", ""])


@settings(deadline=None)
@given(
    fields=st.lists(
        st.tuples(_KEYS, _BLOCKS, st.sampled_from(["", "  # note", "\n# note", "\n"])), unique_by=lambda f: f[0]
    ),
    end=st.sampled_from(["\n", "\r\n"]),
    body=st.text(alphabet="# a\n-", max_size=20),
)
def test_any_card_gets_the_fields_and_no_other_change(fields, end, body):
    block = "\n".join(
        f"{key}: {value}{note if '|' not in value and '>' not in value else ''}" for key, value, note in fields
    )
    text = f"---\n{block}\n---\n{body}".replace("\n", end)
    wanted = {"base_model": "x/y", "base_model_relation": "merge"}
    try:
        before = metadata(text)
        changed = set_fields(text, **wanted)
    except CardError:
        return
    assert metadata(changed) == {**before, **wanted}
    assert changed.endswith(card(text).body)
    # All other lines are unchanged, in their order.
    kept = iter(changed.split(end))
    own = {key for key, _, _ in fields} & set(wanted)
    if not own:
        assert all(line in kept for line in text.split(end) if line)


# Lines of other fields, each hard to preserve.
_OTHERS = [
    "license: mit  # why", "# a comment: with a colon", "", "plain: x  #\ta\ttab", 'title: "a\tb"', "'k k': 'it''s'",
    "notes: |\n  two\n\n  lines\n", "folded: >-\n  a\n  b", 'quoted: "a\n  b"', "license: a\nlicense: b",
    "one: &one [x]\ntwo: *one", "<<: {k: v}", "model-index:\n- name: x\n  results: []", "? asked\n: answered",
    "url: http://x#y", "empty:", "word: ä漢\U0001f917", "nested:\n  base_model: in/side", "date: 2026-01-01",
]  # fmt: skip
# Forms of base_model: the key, its value, and the text after it.
_OWN = [
    ("base_model:", " old/one", "  # said so"), ("base_model:", "", "  # nobody"), ("base_model :", "  ''", ""),
    ("base_model:", "\n- old/one  # first\n- old/two", "  # second\n# of all"),
    ("'base_model':", ' "old/one"', "  #\ttab"),
    ("base_model:", "\n    - old/one", "\n\n"), ("base_model:", " [old/one, # x\n  old/two]", ""),
    ("base_model:", " &unused old/one", ""), ("base_model:", " |\n  old/one\n", "\n# then"),
    ("base_model:", " >-\n  old/one", "\n"), ("base_model:", " !!str old/one", ""), ("? base_model\n:", " old/one", ""),
]  # fmt: skip


@settings(deadline=None, max_examples=100)
@given(
    mark=st.sampled_from(["", BOM]),
    others=st.lists(st.sampled_from(_OTHERS), max_size=6, unique=True),
    place=st.integers(0, 6),
    own=st.none() | st.sampled_from(_OWN),
    body=st.sampled_from(["", "\n", "\n# T", "  \n# T\n\n---\nbase_model: a/b\n---\n", "\n\n\ttext \n\u2028\x85\x00"]),
    end=st.sampled_from(["\n", "\r\n"]),
    value=st.sampled_from(["x/y", ["old/one", "x/y"], ["a: b", "x/y"]]),
)
def test_every_byte_of_an_odd_card_but_the_value_is_kept(mark, others, place, own, body, end, value):
    if own is None:
        head, old, tail = "\n".join([f"{mark}---", *others]), "", f"\n---{body}"
    else:
        key, old, behind = own
        head = "\n".join([f"{mark}---", *others[:place], key])
        tail = "\n".join([behind, *others[place:], f"---{body}"])
    head, old, tail = (part.replace("\n", end) for part in (head, old, tail))
    if head == f"{mark}---" and tail.startswith(f"{end}---"):
        return  # two rules in a row, which the Hub reads as text
    changed = set_fields(head + old + tail, base_model=value)
    assert metadata(changed) == {**metadata(head + old + tail), "base_model": value}
    assert changed.startswith(head) and changed.endswith(tail)
    assert set_fields(changed, base_model=value) == changed


@given(mark=st.sampled_from(["", BOM]), body=st.text() | st.text(alphabet="a-# \t\r\n"))
def test_a_card_without_front_matter_gets_one_in_front(mark, body):
    body = body.encode("utf-8", "ignore").decode()
    if card(mark + body).opening or body.startswith(BOM):
        return
    changed = set_fields(mark + body, base_model="x/y")
    added = changed.removeprefix(mark).removesuffix(body)
    assert changed == mark + added + body and added.splitlines() == ["---", "base_model: x/y", "---"]
    assert metadata(changed) == {"base_model": "x/y"}
