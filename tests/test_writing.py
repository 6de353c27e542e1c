"""The files of an output appear together, and a killed run is continued."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mdir_hf.errors import CompleteOutputError, InputError
from mdir_hf.writing import HIDDEN, Output, locked, write_together

CONTENTS = {"b": b"first", "a": b"second", "c": b""}


class Killed(BaseException):
    """Stands for a kill: nothing after it runs, except what a ``with`` block cannot avoid."""


def written(folder, inputs="x", *, names=tuple(CONTENTS), **options):
    with Output(folder, inputs, **options) as output:
        kept = [name for name in names if output.kept(name)]
        for name in names:
            if name not in kept:
                output.put(name, CONTENTS[name], note=name)
        if len(names) == len(CONTENTS):
            output.finish()
        return kept


def visible(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != HIDDEN}


def test_files_appear_together_with_a_manifest_of_their_hashes(tmp_path):
    written(tmp_path / "out", names=("b", "a"))
    assert visible(tmp_path / "out") == {}
    written(tmp_path / "out")
    assert visible(tmp_path / "out") == CONTENTS
    manifest = json.loads((tmp_path / "out" / HIDDEN / "manifest.json").read_text())
    assert list(manifest["files"]) == list(CONTENTS)
    assert manifest["files"]["c"]["sha256"] == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_later_run_continues_from_whole_files(tmp_path):
    written(tmp_path / "out", names=("b", "a"))
    (tmp_path / "out" / HIDDEN / "staged" / "c").write_bytes(b"half of a fi")
    assert written(tmp_path / "out") == ["b", "a"]
    assert visible(tmp_path / "out") == CONTENTS


def test_a_staged_file_that_changed_is_written_again(tmp_path):
    written(tmp_path / "out", names=("b", "a"))
    (tmp_path / "out" / HIDDEN / "staged" / "a").write_bytes(b"other!")
    assert written(tmp_path / "out") == ["b"]
    assert visible(tmp_path / "out") == CONTENTS


def test_a_finished_output_is_recognised(tmp_path):
    written(tmp_path / "out")
    with pytest.raises(CompleteOutputError, match="is complete; to write it again, add --restart"):
        written(tmp_path / "out")
    assert written(tmp_path / "out", restart=True) == []


def test_a_finished_output_that_changed_is_not_called_complete(tmp_path):
    written(tmp_path / "out")
    (tmp_path / "out" / "a").write_bytes(b"changed")
    with pytest.raises(InputError, match="its a has changed since it was written; name another folder, or start again"):
        written(tmp_path / "out")
    written(tmp_path / "out", restart=True)
    assert visible(tmp_path / "out") == CONTENTS


def test_outputs_of_other_inputs_are_never_mixed(tmp_path):
    written(tmp_path / "half", names=("b",))
    written(tmp_path / "whole")
    for name in ("half", "whole"):
        with pytest.raises(InputError, match="of other models, options or versions"):
            written(tmp_path / name, "y")
        assert written(tmp_path / name, "y", restart=True) == []


def test_a_restart_removes_what_the_new_output_lacks(tmp_path):
    written(tmp_path)
    with Output(tmp_path, "y", restart=True) as output:
        output.put("d", b"new")
        assert visible(tmp_path) == CONTENTS  # until all is whole
        output.finish()
    assert visible(tmp_path) == {"d": b"new"}


@pytest.mark.parametrize("restart", [False, True])
def test_a_folder_of_somebody_else_is_left_alone(tmp_path, restart):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match="is not empty; name a folder that does not exist"):
        written(tmp_path, restart=restart)
    write_together(tmp_path, {"report.json": b"{}"})
    with pytest.raises(InputError, match="is not empty"):
        written(tmp_path, restart=restart)


@pytest.mark.parametrize("n_moved", range(5))
def test_a_kill_while_files_are_moved_is_finished_by_the_next_run(tmp_path, monkeypatch, n_moved):
    """The manifest has been renamed, so the output is complete; three files, the manifest and its copy follow."""
    real, moves = Path.replace, []

    def replace(path, target):
        if moves or Path(target).parent == tmp_path:
            moves.append(target)
            if len(moves) > n_moved:
                raise Killed
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    if n_moved < 4:
        with pytest.raises(Killed):
            written(tmp_path)
    else:
        written(tmp_path)
    monkeypatch.undo()
    assert len(visible(tmp_path)) == min(n_moved, 3)
    with pytest.raises(CompleteOutputError):
        written(tmp_path)
    assert visible(tmp_path) == CONTENTS


def test_a_run_that_wrote_nothing_leaves_no_trace(tmp_path):
    with pytest.raises(KeyError), Output(tmp_path / "new" / "out", "x"):
        raise KeyError
    assert not (tmp_path / "new" / "out").exists()


def test_a_second_process_is_told_who_writes(tmp_path):
    with (
        Output(tmp_path / "out", "x"),
        pytest.raises(InputError, match=rf"process {os.getpid()} on .* is writing there; wait until it ends"),
    ):
        written(tmp_path / "out")
    written(tmp_path / "out")


def test_small_files_wait_for_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr("mdir_hf.writing.WAIT_S", 0.1)
    with Output(tmp_path, None), pytest.raises(InputError, match="is writing there"):
        write_together(tmp_path, CONTENTS)


def test_small_files_may_join_others(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    write_together(tmp_path, {"a": b"1"})
    write_together(tmp_path, {"a": b"2", "b": b"3"})
    assert visible(tmp_path) == {"notes.txt": b"x", "a": b"2", "b": b"3"}


def test_small_files_do_not_disturb_an_unfinished_output(tmp_path):
    written(tmp_path, names=("b",))
    with pytest.raises(InputError, match="holds an unfinished output of another command"):
        write_together(tmp_path, {"report.json": b"{}"})
    assert written(tmp_path) == ["b"]


@pytest.mark.parametrize("name", ["../b", "/etc/b", ".b", "b/c", "..", "", "b\\c", "b\0"])
def test_a_manifest_moves_no_file_of_another_folder(tmp_path, name):
    write_together(tmp_path / "out", {"a": b"1"})
    file = {"n_bytes": 1, "sha256": "0" * 64}
    manifest = {"schema": "mdir-hf/output/1", "inputs": None, "is_whole": True, "files": {name: file}}
    (tmp_path / "out" / HIDDEN / "next.json").write_text(json.dumps(manifest))
    (tmp_path / "b").write_text("mine")
    with pytest.raises(InputError, match="which is not written there; name another folder, or remove"):
        write_together(tmp_path / "out", {"a": b"2"})
    assert (tmp_path / "b").read_text() == "mine"


def test_the_lock_of_a_process_that_died_is_free(tmp_path):
    code = """
import os, sys
from pathlib import Path
from mdir_hf.writing import locked
with locked(Path(sys.argv[1], "lock"), Path(sys.argv[1])):
    os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert (tmp_path / "lock-owner").exists()
    with locked(tmp_path / "lock", tmp_path):
        pass
    assert not (tmp_path / "lock-owner").exists()


def test_a_disk_without_locks_is_named(tmp_path, monkeypatch):
    def acquire(self, timeout):
        raise NotImplementedError

    monkeypatch.setattr("mdir_hf.writing.FileLock.acquire", acquire)
    with pytest.raises(InputError, match="its file system has no locks; name a place on another disk"):
        written(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_among_staged_files_does_not_block(tmp_path):
    written(tmp_path / "out", names=("b", "a"))
    place = tmp_path / "out" / HIDDEN / "staged" / "a"
    place.unlink()
    os.mkfifo(place)
    assert written(tmp_path / "out") == ["b"]
