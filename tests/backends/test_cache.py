"""The artefact store: builds once, survives damage, never hands out a damaged entry."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import time
import warnings
from pathlib import Path

import pytest

from optpass.backends.cache import Store

pytestmark = pytest.mark.null


def write(text: str):
    def build(folder: Path) -> None:
        (folder / "artefact").write_text(text)

    return build


def never(folder: Path) -> None:
    raise AssertionError("built again")


def test_builds_once_and_finds_it_again(tmp_path):
    store = Store(tmp_path)
    entry = store.get_or_build("key", write("a"))
    assert (entry / "artefact").read_text() == "a"
    assert store.get_or_build("key", never) == entry
    assert Store(tmp_path).get_or_build("key", never) == entry
    assert store.get_or_build("other", write("b")) != entry
    stats = store.stats()
    assert (stats.entries, stats.builds, stats.hits) == (2, 2, 1)
    assert stats.size_bytes > 0


def test_default_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("OPTPASS_CACHE_DIR", str(tmp_path / "here"))
    assert Store.default().root == tmp_path / "here"
    monkeypatch.delenv("OPTPASS_CACHE_DIR")
    assert Store.default().root.name == "optpass"


def test_a_failed_build_leaves_nothing(tmp_path):
    store = Store(tmp_path)

    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.get_or_build("key", fail)
    assert store.stats().entries == 0
    assert (store.get_or_build("key", write("a")) / "artefact").exists()


def damage_byte(entry: Path) -> None:
    data = bytearray((entry / "artefact").read_bytes())
    data[0] ^= 1
    (entry / "artefact").write_bytes(data)


def drop_file(entry: Path) -> None:
    (entry / "artefact").unlink()


def drop_manifest(entry: Path) -> None:
    (entry / "manifest.json").unlink()


def cut_manifest(entry: Path) -> None:
    text = (entry / "manifest.json").read_text()
    (entry / "manifest.json").write_text(text[: len(text) // 2])


def empty_manifest(entry: Path) -> None:
    (entry / "manifest.json").write_text(json.dumps([]))


@pytest.mark.parametrize("damage", [damage_byte, drop_file, drop_manifest, cut_manifest, empty_manifest])
def test_damage_costs_one_rebuild_and_one_warning(tmp_path, damage):
    entry = Store(tmp_path).get_or_build("key", write("good"))
    damage(entry)
    store = Store(tmp_path)
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert (store.get_or_build("key", write("good")) / "artefact").read_text() == "good"
    damage(entry)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # told once already
        store.get_or_build("key", write("good"))
        assert Store(tmp_path).get_or_build("key", never) == entry


def test_an_unusable_root_builds_privately(tmp_path):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "store")
    with pytest.warns(RuntimeWarning, match="cannot lock"):
        entry = store.get_or_build("key", write("a"))
    assert (entry / "artefact").read_text() == "a"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.get_or_build("key", never) == entry
        store.get_or_build("other", write("b"))


def test_a_full_disk_builds_privately(tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    store = Store(tmp_path)
    with pytest.warns(RuntimeWarning, match="No space left"):
        entry = store.get_or_build("key", write("a"))
    assert (entry / "artefact").read_text() == "a"
    assert store.get_or_build("key", never) == entry
    assert store.stats().entries == 0


def _slow_build(folder: Path) -> None:
    time.sleep(0.2)
    (folder / "artefact").write_text("a")
    with open(os.environ["BUILDS"], "a") as log:
        log.write("x")


def _ask(root: str) -> None:
    assert (Store(Path(root)).get_or_build("key", _slow_build) / "artefact").read_text() == "a"


def test_processes_that_ask_at_once_build_once(tmp_path, monkeypatch):
    monkeypatch.setenv("BUILDS", str(tmp_path / "log"))
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_ask, args=(str(tmp_path / "store"),)) for _ in range(4)]
    for p in processes:
        p.start()
    for p in processes:
        p.join()
    assert [p.exitcode for p in processes] == [0] * 4
    assert (tmp_path / "log").read_text() == "x"


def _die_while_building(root: str) -> None:
    Store(Path(root)).get_or_build("key", lambda folder: os._exit(9))


def test_a_killed_writer_is_harmless(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=_die_while_building, args=(str(tmp_path),))
    process.start()
    process.join()
    assert process.exitcode == 9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (Store(tmp_path).get_or_build("key", write("a")) / "artefact").read_text() == "a"


def test_the_entries_used_longest_ago_go_first(tmp_path):
    store = Store(tmp_path, limit_bytes=2500)
    old, used = store.get_or_build("old", write("x" * 1000)), store.get_or_build("used", write("y" * 1000))
    for entry, age in ((old, 9000), (used, 8000)):
        os.utime(entry, (time.time() - age,) * 2)
    store.get_or_build("new", write("z" * 1000))
    assert not old.exists()
    assert used.exists()


def test_recent_entries_stay_whatever_the_limit(tmp_path):
    store = Store(tmp_path, limit_bytes=1)
    assert store.get_or_build("a", write("x")).exists()
    assert store.get_or_build("b", write("x")).exists()
    assert store.stats().entries == 2


def test_clear(tmp_path):
    store = Store(tmp_path)
    entry = store.get_or_build("a", write("x"))
    assert store.clear() == 1
    assert not entry.exists()
    assert store.stats().entries == 0
    assert store.clear() == 0
